"""Exceptions, and helpers that collect configuration mistakes.

GossamerError
├── ConfigError      invalid configuration; raised before any training
├── MissingExtraError     an optional package is not installed (``gossamer.core.extras``)
├── PayloadError     a message that is truncated, altered, out of range or not finite
└── RunError         a run folder that is in use, damaged, on a full disk, or not a run

Every message says what is wrong, where, and what to do: ``TopK.share must be above 0 and at most 1, got 3``. A
``ConfigError`` lists all mistakes at once. A mistake is a value (``Mistake``): the command line shows the same mistake
with its flags in place of field names. A part checks its fields in ``__post_init__``:

    require(
        (0 < self.share <= 1, wrong(self, "share", "must be above 0 and at most 1")),
        (self.steps >= 1, wrong(self, "steps", "must be at least 1")),
    )
"""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, ParamSpec, TypeVar


class GossamerError(Exception):
    """Base class of all exceptions that Gossamer raises on purpose."""


class Setting(NamedTuple):
    """A field of a part, with or without a value.

    >>> print(Setting("OneBit", "retain", "signs"), Setting("SGD", "lr"), Setting("", "fresh", False))
    OneBit.retain=signs SGD.lr fresh=False
    """

    part: str
    field: str
    value: object = None

    def __str__(self) -> str:
        """Return the setting in Python notation."""
        name = f"{self.part}.{self.field}" if self.part else self.field
        return name if self.value is None else f"{name}={self.value}"


class Mistake(str):
    """A configuration mistake: a text, and the settings that it names.

    Args:
        rest: the text after the setting; ``{}`` stands for each of the other settings
        about: the setting at the start of the text, if there is one
        others: the other settings, in order
    """

    about: Setting | None
    rest: str
    others: tuple[Setting, ...]

    def __new__(cls, rest: str, about: Setting | None = None, *others: Setting) -> "Mistake":
        """Build the text from its pieces."""
        made = super().__new__(cls, _sentence(rest, about, others, str))
        made.about, made.rest, made.others = about, rest, others
        return made

    @property
    def settings(self) -> tuple[Setting, ...]:
        """All settings that the text names."""
        return (*((self.about,) if self.about else ()), *self.others)

    def written(self, write: Callable[[Setting], str]) -> str:
        """Return the text with settings in another notation, for example as command-line flags."""
        return _sentence(self.rest, self.about, self.others, write)


def _sentence(rest: str, about: Setting | None, others: tuple[Setting, ...], write: Callable[[Setting], str]) -> str:
    end = rest.format(*map(write, others)) if others else rest
    return end if about is None else f"{write(about)}{'' if end[:1] in ':,' else ' '}{end}"


def wrong(part: Any, field: str, rest: str) -> Mistake:
    """Return the mistake that a field of a part has a wrong value: ``TopK.share must be in (0, 1], got 3``."""
    about = Setting(type(part).__name__.removeprefix("Bound"), field)
    return Mistake(f"{rest}, got {getattr(part, field)!r}", about)


def wrong_argument(name: str, value: object, rest: str) -> Mistake:
    """Return the mistake that an argument or an option has a wrong value: ``rounds must be at least 1, got 0``."""
    return Mistake(f"{rest}, got {value!r}", Setting("", name))


class ConfigError(GossamerError, ValueError):
    """Invalid configuration. Lists all mistakes; ``mistakes`` holds them as values."""

    def __init__(self, *mistakes: str) -> None:
        super().__init__("\n".join(mistakes))
        self.mistakes = tuple(mistake if isinstance(mistake, Mistake) else Mistake(mistake) for mistake in mistakes)


class PayloadError(GossamerError, ValueError):
    """A message or a payload that is refused, with the reason."""


class RunError(GossamerError, RuntimeError):
    """A run folder that cannot be used as requested. Finished rounds in it are kept."""


def require(*checks: tuple[bool, str]) -> None:
    """Raise one ``ConfigError`` with the messages of all checks that fail.

    >>> require((True, "fine"), (1 < 2, "also fine"))
    """
    mistakes = [message for holds, message in checks if not holds]
    if mistakes:
        raise ConfigError(*mistakes)


def gather(mistakes: list[str]) -> None:
    """Raise a ``ConfigError`` with these mistakes, if there are any."""
    if mistakes:
        raise ConfigError(*mistakes)


def listed(names: Iterable[str]) -> str:
    """Return names for a message: sorted, separated by commas."""
    return ", ".join(sorted(names))


P = ParamSpec("P")
T = TypeVar("T")


class Mistakes:
    """A collection of mistakes without duplicates."""

    def __init__(self, found: Iterable[str] = ()) -> None:
        self.found: list[str] = []
        self.note(*found)

    def note(self, *mistakes: str) -> None:
        """Add mistakes."""
        self.found += [mistake for mistake in dict.fromkeys(mistakes) if mistake not in self.found]

    def attempt(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T | None:
        """Return the result of a function. If it raises ``ConfigError``, add its mistakes and return ``None``."""
        try:
            return function(*args, **kwargs)
        except ConfigError as error:
            self.note(*error.mistakes)
            return None

    def settle(self) -> None:
        """Raise a ``ConfigError`` if there are mistakes."""
        gather(self.found)
