"""Learning rate schedules: a factor for each round. Rounds are counted from 0."""

import math
from dataclasses import dataclass
from typing import Protocol

from gossamer.core.errors import require, wrong
from gossamer.core.fields import CheckedFields


class LRSchedule(Protocol):
    """A factor of the learning rate for each round."""

    def factor(self, round_: int, rounds: int) -> float:
        """Return the factor of the learning rate in round ``round_`` of ``rounds``."""
        ...


@dataclass(frozen=True)
class Constant(CheckedFields):
    """The same learning rate in every round."""

    def factor(self, round_: int, rounds: int) -> float:
        """Return 1."""
        return 1.0


@dataclass(frozen=True)
class Exponential(CheckedFields):
    """Exponential decay: ``rate ** round``, as in FedSpa (0.998).

    Args:
        rate: factor of the learning rate per round
    """

    rate: float

    def __post_init__(self) -> None:
        require((0 < self.rate <= 1, wrong(self, "rate", "must be in (0, 1]")))

    def factor(self, round_: int, rounds: int) -> float:
        """Return ``rate`` to the power of the round."""
        return self.rate**round_


@dataclass(frozen=True)
class Steps(CheckedFields):
    """Step decay: the learning rate is multiplied by ``rate`` at the given rounds, as in HeteroFL (0.1 at 150 and 250).

    Args:
        at: rounds at which the learning rate is reduced
        rate: factor of the learning rate at each of these rounds
    """

    at: tuple[int, ...]
    rate: float = 0.1

    def __post_init__(self) -> None:
        require(
            (all(r >= 0 for r in self.at), wrong(self, "at", "must not have negative rounds")),
            (0 < self.rate <= 1, wrong(self, "rate", "must be in (0, 1]")),
        )

    def factor(self, round_: int, rounds: int) -> float:
        """Return ``rate`` to the power of the number of rounds in ``at`` up to this round."""
        return float(self.rate ** sum(round_ >= r for r in self.at))


@dataclass(frozen=True)
class Cosine(CheckedFields):
    """Cosine decay, from 1 in the first round to 0 after the last."""

    def factor(self, round_: int, rounds: int) -> float:
        """Return ``(1 + cos(pi * round / rounds)) / 2``."""
        return (1 + math.cos(math.pi * round_ / rounds)) / 2


LR_SCHEDULES: dict[str, type[LRSchedule]] = {
    "constant": Constant,
    "exponential": Exponential,
    "steps": Steps,
    "cosine": Cosine,
}
"""Schedules by their name on the command line."""
