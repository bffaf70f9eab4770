"""What can go wrong, as a tree.

GossamerError
├── ConfigError      the user asked for something that cannot be: found before any work starts
├── PayloadError     a message that is truncated, altered, out of range or not finite: refused
└── RunError         a run folder that is busy, damaged, full or not a run

Every message says what, where and what to do. A ``ConfigError`` carries all mistakes found, not only the first.
"""

from collections.abc import Iterable


class GossamerError(Exception):
    """Anything that Gossamer refuses, with a message meant for people."""


class ConfigError(GossamerError, ValueError):
    """Wrong configuration, listing every mistake at once."""

    def __init__(self, *mistakes: str) -> None:
        super().__init__("\n".join(mistakes))
        self.mistakes: tuple[str, ...] = mistakes


class PayloadError(GossamerError, ValueError):
    """A message that must not be trusted, with the reason."""


class RunError(GossamerError, RuntimeError):
    """A run folder that cannot be used as asked; what was finished in it is kept."""


def require(*checks: tuple[bool, str]) -> None:
    """Raise one :class:`ConfigError` with the message of every check that does not hold.

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
