"""How the learning rate changes from round to round: a factor for each round, counted from 0."""

import math
from dataclasses import dataclass
from typing import Protocol

from gossamer.core.errors import require, wrong


class Schedule(Protocol):
    """A factor for the learning rate, by round."""

    def factor(self, round_: int, rounds: int) -> float:
        """What the learning rate is multiplied by in round ``round_`` of ``rounds``."""
        ...


@dataclass(frozen=True)
class Constant:
    """The same learning rate in every round."""

    def factor(self, round_: int, rounds: int) -> float:
        """Always 1."""
        return 1.0


@dataclass(frozen=True)
class Exponential:
    """``rate ** round``, as in FedSpa (0.998).

    Args:
        rate: what each round multiplies the learning rate by
    """

    rate: float

    def __post_init__(self) -> None:
        require((0 < self.rate <= 1, wrong(self, "rate", "must be in (0, 1]")))

    def factor(self, round_: int, rounds: int) -> float:
        """``rate`` to the power of the round."""
        return self.rate**round_


@dataclass(frozen=True)
class Steps:
    """Multiplied by ``rate`` at each of the given rounds, as in HeteroFL (0.1 at 150 and 250).

    Args:
        at: the rounds from which on the learning rate is lower
        rate: what each of them multiplies it by
    """

    at: tuple[int, ...]
    rate: float = 0.1

    def __post_init__(self) -> None:
        require(
            (all(r >= 0 for r in self.at), wrong(self, "at", "must be rounds from 0 on")),
            (0 < self.rate <= 1, wrong(self, "rate", "must be in (0, 1]")),
        )

    def factor(self, round_: int, rounds: int) -> float:
        """``rate`` to the power of how many of the rounds ``at`` have come."""
        return float(self.rate ** sum(round_ >= r for r in self.at))


@dataclass(frozen=True)
class Cosine:
    """Half a cosine, from 1 in the first round to 0 after the last."""

    def factor(self, round_: int, rounds: int) -> float:
        """``(1 + cos(pi * round / rounds)) / 2``."""
        return (1 + math.cos(math.pi * round_ / rounds)) / 2


SCHEDULES: dict[str, type[Schedule]] = {
    "constant": Constant,
    "exponential": Exponential,
    "steps": Steps,
    "cosine": Cosine,
}
"""Schedules by the name that the command line uses."""
