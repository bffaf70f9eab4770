"""How much of the model a client can hold."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, ClassVar

from gossamer.core.errors import ConfigError, require, wrong
from gossamer.core.random import Key, fold, uniform
from gossamer.core.types import Clock
from gossamer.fleet.units import read_size


@dataclass(frozen=True)
class Room:
    """As much as can be trained in so much memory.

    Args:
        size: bytes
    """

    size: int
    takes: ClassVar[str] = "SIZE"

    def __post_init__(self) -> None:
        require((self.size >= 1, wrong(self, "size", "must be at least 1 byte")))

    def __str__(self) -> str:
        """As it can be typed."""
        return f"{self.size}B"

    @classmethod
    def of_text(cls, text: str) -> "Room":
        """From a size with a unit, such as ``64MB``."""
        if text[-1:] != "B":
            raise ValueError("a size such as 64MB")
        return cls(read_size(text))


Shares = tuple[float, ...]
"""Shares of the model, from 0 (not included) to 1."""

Capacities = tuple[float | Room, ...]
"""Shares of the model, or room for one."""

SHARES: Shares = (1.0, 1 / 2, 1 / 4, 1 / 8, 1 / 16)
"""The shares of a model that are tried."""

Needs = Callable[[float], int]
"""From a share of the model to the bytes that training it takes."""


def check_capacities(name: str, capacities: Capacities) -> None:
    """Refuse what cannot be a row of capacities."""
    shares = (share for share in capacities if not isinstance(share, Room))
    require(
        (len(capacities) > 0, f"{name}.capacities must not be empty"),
        *((0 < share <= 1, f"{name}.capacities must be in (0, 1], got {share}") for share in shares),
    )


def check_shares(name: str, capacities: Capacities) -> None:
    """Refuse memory too, where a smaller share needs no less of it."""
    check_capacities(name, capacities)
    rooms = [share for share in capacities if isinstance(share, Room)]
    require((not rooms, f"{name}.capacities must be shares: masks take as much memory as the whole model"))


def capacity(capacities: Any, drawn: bool, clock: Clock, key: Key) -> float:
    """A client's share in a round: its own for good, in turn by client number, or drawn anew for everybody."""
    number = int(uniform(fold(key, "capacity"), 1).item() * len(capacities)) if drawn else clock.client
    return float(capacities[number % len(capacities)])


def largest_share(memory: int, needs: Needs, shares: Sequence[float] = SHARES, name: str = "a device") -> float:
    """The largest share of the model whose training fits so many bytes; refused if none does."""
    require(
        (len(shares) > 0, "shares must not be empty"),
        *((0 < share <= 1, f"shares must be in (0, 1], got {share}") for share in shares),
    )
    for share in sorted(shares, reverse=True):
        if needs(share) <= memory:
            return share
    least = min(shares)
    raise ConfigError(
        f"{name} has {memory:,} bytes of memory, but training the smallest share, {Fraction(least).limit_denominator()}"
        f" of the model, takes {needs(least):,}: try a smaller share, batch or model, or leave it out"
    )
