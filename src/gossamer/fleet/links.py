"""Transfers over a link: how long it takes to send bits from a time on."""

from dataclasses import dataclass
from typing import Protocol

from gossamer.core.errors import require, wrong


class Transfer(Protocol):
    """One direction of a link."""

    def sending(self, bits: int, at: float, attempts: int = 1, pause: float = 0.0) -> float:
        """Return the seconds of sending, from ``at`` seconds on, if it takes several attempts with a pause after each.

        The pauses are not part of the result.
        """
        ...

    @property
    def mean(self) -> float:
        """The mean rate in bits per second."""
        ...


@dataclass(frozen=True)
class FixedRate:
    """A constant rate.

    Args:
        rate: bits per second
    """

    rate: float

    def __post_init__(self) -> None:
        require((self.rate > 0, wrong(self, "rate", "must be positive")))

    def sending(self, bits: int, at: float, attempts: int = 1, pause: float = 0.0) -> float:
        """Return bits over rate."""
        return attempts * bits / self.rate

    @property
    def mean(self) -> float:
        """The rate."""
        return self.rate
