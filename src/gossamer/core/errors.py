"""What can go wrong, as a tree.

GossamerError
├── ConfigError      the user asked for something that cannot be: found before any work starts
├── PayloadError     a message that is truncated, altered, out of range or not finite: refused
└── RunError         a run folder that is busy, damaged, full or not a run

Every message says what, where and what to do. A ``ConfigError`` carries all mistakes found, not only the first.

Collects what is wrong, so that the user sees all of it at once.
"""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, ParamSpec, TypeVar


class GossamerError(Exception):
    """Anything that Gossamer refuses, with a message meant for people."""


class Setting(NamedTuple):
    """A field of a part, and the value that it has or should have, where that matters.

    >>> print(Setting("OneBit", "retain", "signs"), Setting("SGD", "lr"), Setting("", "fresh", False))
    OneBit.retain=signs SGD.lr fresh=False
    """

    part: str
    field: str
    value: object = None

    def __str__(self) -> str:
        """As Python's users know it."""
        name = f"{self.part}.{self.field}" if self.part else self.field
        return name if self.value is None else f"{name}={self.value}"


class Mistake(str):
    """What is wrong, as text that can be shown as it is, and the settings that it is about.

    Args:
        about: the setting that the text begins with, if it is about one
        rest: the text after that; it may name other settings, as ``{}``
        others: these
    """

    about: Setting | None
    rest: str
    others: tuple[Setting, ...]

    def __new__(cls, rest: str, about: Setting | None = None, *others: Setting) -> "Mistake":
        """The text, made of its pieces."""
        made = super().__new__(cls, _sentence(rest, about, others, str))
        made.about, made.rest, made.others = about, rest, others
        return made

    @property
    def settings(self) -> tuple[Setting, ...]:
        """All settings that it names."""
        return (*((self.about,) if self.about else ()), *self.others)

    def written(self, write: Callable[[Setting], str]) -> str:
        """The text with settings written in another way, as flags for example."""
        return _sentence(self.rest, self.about, self.others, write)


def _sentence(rest: str, about: Setting | None, others: tuple[Setting, ...], write: Callable[[Setting], str]) -> str:
    end = rest.format(*map(write, others)) if others else rest
    return end if about is None else f"{write(about)}{'' if end[:1] in ':,' else ' '}{end}"


def wrong(part: Any, field: str, rest: str) -> Mistake:
    """That a field of a part has a wrong value: ``TopK.share must be in (0, 1], got 3``."""
    about = Setting(type(part).__name__.removeprefix("Bound"), field)
    return Mistake(f"{rest}, got {getattr(part, field)!r}", about)


def wrong_argument(name: str, value: object, rest: str) -> Mistake:
    """That a parameter or an option has a wrong value: ``rounds must be at least 1, got 0``."""
    return Mistake(f"{rest}, got {value!r}", Setting("", name))


class ConfigError(GossamerError, ValueError):
    """Wrong configuration, listing every mistake at once."""

    def __init__(self, *mistakes: str) -> None:
        super().__init__("\n".join(mistakes))
        self.mistakes = tuple(mistake if isinstance(mistake, Mistake) else Mistake(mistake) for mistake in mistakes)


class PayloadError(GossamerError, ValueError):
    """A message that must not be trusted, with the reason."""


class RunError(GossamerError, RuntimeError):
    """A run folder that cannot be used as asked; what was finished in it is kept."""


def require(*checks: tuple[bool, str]) -> None:
    """Raise one ``ConfigError`` with the message of every check that does not hold.

    >>> require((True, "fine"), (1 < 2, "also fine"))
    """
    mistakes = [message for holds, message in checks if not holds]
    if mistakes:
        raise ConfigError(*mistakes)


def gather(mistakes: list[str]) -> None:
    """Raise the mistakes collected so far, if there are any."""
    if mistakes:
        raise ConfigError(*mistakes)


def listed(names: Iterable[str]) -> str:
    """Names as a message shows them: sorted, with commas."""
    return ", ".join(sorted(names))


P = ParamSpec("P")
T = TypeVar("T")


class Mistakes:
    """What was found wrong so far, each thing once."""

    def __init__(self, found: Iterable[str] = ()) -> None:
        self.found: list[str] = []
        self.note(*found)

    def note(self, *mistakes: str) -> None:
        """Remember mistakes."""
        self.found += [mistake for mistake in dict.fromkeys(mistakes) if mistake not in self.found]

    def attempt(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T | None:
        """What a function returns; ``None`` when it finds mistakes, which are remembered."""
        try:
            return function(*args, **kwargs)
        except ConfigError as error:
            self.note(*error.mistakes)
            return None

    def settle(self) -> None:
        """Stop here if there are any."""
        gather(self.found)
