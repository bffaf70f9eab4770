"""How much of the model a client can hold."""

from gossamer.errors import require
from gossamer.random import Key, fold, uniform
from gossamer.types import Clock

Capacities = tuple[float, ...]
"""Shares of the model, from 0 (not included) to 1."""


def check_capacities(name: str, capacities: Capacities) -> None:
    """Refuse what cannot be a row of capacities."""
    require(
        (len(capacities) > 0, f"{name}.capacities must not be empty"),
        *((0 < share <= 1, f"{name}.capacities must be in (0, 1], got {share}") for share in capacities),
    )


def capacity(capacities: Capacities, drawn: bool, clock: Clock, key: Key) -> float:
    """A client's share in a round: its own for good, in turn by client number, or drawn anew for everybody."""
    number = int(uniform(fold(key, "capacity"), 1).item() * len(capacities)) if drawn else clock.client
    return capacities[number % len(capacities)]
