"""When a client can take part: intervals of virtual time, in whole nanoseconds from the start of the run."""

from dataclasses import dataclass
from typing import NamedTuple, Protocol

SECOND = 1_000_000_000
"""Nanoseconds per second."""

FOREVER = 2**62
"""A time that is never reached."""


class Interval(NamedTuple):
    """A time in which a client is available.

    Args:
        start: the first nanosecond
        end: the first nanosecond after it; ``FOREVER`` if it does not end
    """

    start: int
    end: int


NEVER_AGAIN = Interval(FOREVER, FOREVER)
"""The interval of a client that does not come back."""


class Availability(Protocol):
    """The availability of one client. The same call returns the same interval, whatever was asked before."""

    def interval(self, at: int) -> Interval:
        """Return the first interval that ends after ``at``: the current one, or the next one if the client is away."""
        ...


@dataclass(frozen=True)
class Always:
    """A client that is always available."""

    def interval(self, at: int) -> Interval:
        """Return an interval without an end."""
        return Interval(0, FOREVER)


ALWAYS = Always()


def nanoseconds(seconds: float) -> int:
    """Return a time in whole nanoseconds.

    >>> nanoseconds(1.5)
    1500000000
    """
    return round(seconds * SECOND)
