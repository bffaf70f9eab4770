"""Client capacities: the fraction of the model that a client can train."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, ClassVar

from gossamer.core.errors import ConfigError, Mistake, Setting, require, wrong
from gossamer.core.random import Key, fold, uniform
from gossamer.core.types import Clock
from gossamer.fleet.units import read_size


@dataclass(frozen=True)
class Room:
    """The largest fraction of the model that can be trained in a given memory.

    Args:
        size: memory in bytes
    """

    size: int
    takes: ClassVar[str] = "SIZE"

    def __post_init__(self) -> None:
        require((self.size >= 1, wrong(self, "size", "must be at least 1 byte")))

    def __str__(self) -> str:
        """Return the size as text that ``of_text`` reads."""
        return f"{self.size}B"

    @classmethod
    def of_text(cls, text: str) -> "Room":
        """Parse a size with a unit, such as ``64MB``."""
        if text[-1:] != "B":
            raise ValueError("a size such as 64MB")
        return cls(read_size(text))


Shares = tuple[float, ...]
"""Fractions of the model, in (0, 1]."""

Capacities = tuple[float | Room, ...]
"""Fractions of the model, or memory sizes."""

SHARES: Shares = (1.0, 1 / 2, 1 / 4, 1 / 8, 1 / 16)
"""Default candidates for the fraction of the model."""

Needs = Callable[[float], int]
"""Map a fraction of the model to the bytes that its training takes."""


def check_capacities(name: str, capacities: Capacities) -> None:
    """Refuse invalid capacities."""
    shares = (share for share in capacities if not isinstance(share, Room))
    about = Setting(name, "capacities")
    require(
        (len(capacities) > 0, Mistake("must not be empty", about)),
        *((0 < share <= 1, Mistake(f"must be in (0, 1], got {share}", about)) for share in shares),
    )


def check_shares(name: str, capacities: Capacities) -> None:
    """Refuse invalid capacities and memory sizes, for views in which a smaller fraction saves no memory."""
    check_capacities(name, capacities)
    rooms = [share for share in capacities if isinstance(share, Room)]
    rule = "must be shares: masks take as much memory as the whole model"
    require((not rooms, Mistake(rule, Setting(name, "capacities"))))


def capacity(capacities: Any, drawn: bool, clock: Clock, key: Key) -> float:
    """Return a client's fraction: constant, by client number, or drawn in every round."""
    number = int(uniform(fold(key, "capacity"), 1).item() * len(capacities)) if drawn else clock.client
    return float(capacities[number % len(capacities)])


def held(size: int, share: float) -> int:
    """Return the number of channels or ranks that a client holds: ``size`` times ``share``, rounded up.

    >>> held(8, 0.5), held(8, 1 / 16)
    (4, 1)
    """
    return max(1, math.ceil(size * share - 1e-9))  # the slack absorbs rounding errors of the product


def largest_share(memory: int, needs: Needs, shares: Sequence[float] = SHARES, name: str = "a device") -> float:
    """Return the largest fraction of the model whose training fits into ``memory`` bytes; raise if none does."""
    require(
        (len(shares) > 0, "shares must not be empty"),
        *((0 < share <= 1, f"shares must be in (0, 1], got {share}") for share in shares),
    )
    for share in sorted(shares, reverse=True):
        if needs(share) <= memory:
            return share
    smallest = min(shares)
    raise ConfigError(
        f"{name} has {memory:,} bytes of memory, but training the smallest share, "
        f"{Fraction(smallest).limit_denominator()} of the model, takes {needs(smallest):,}: "
        "try a smaller share, batch or model, or leave it out"
    )
