"""Schedules: the batches of a round, and the learning rates of the rounds. Rounds are counted from 0."""

import math
from abc import ABC
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from gossamer.core.errors import require, wrong
from gossamer.core.fields import CheckedFields
from gossamer.core.random import Key, fold, permutation
from gossamer.core.solver import Solver

# Batches.


def plan(samples: int, batch: int | None, steps: int, key: Key) -> list[np.ndarray]:
    """Return the sample indices of a number of batches. Every epoch is a new permutation of all samples."""
    size, batches = batch or samples, list[np.ndarray]()
    for epoch in range(-(-steps // -(-samples // size))):
        order = permutation(fold(key, "epoch", epoch), samples)
        batches += [order[i : i + size] for i in range(0, samples, size)]
    return batches[:steps]


class Batched(Solver, ABC):
    """A solver with mini-batches: the field ``batch``; none takes all samples."""

    batch: int | None

    def batches(self, samples: int) -> int:
        """Return the number of batches per epoch."""
        return -(-samples // (self.batch or samples))


class InBatches(Batched, ABC):
    """A solver with mini-batches for a number of epochs or steps: the fields ``epochs``, ``steps`` and ``batch``."""

    epochs: int
    steps: int | None

    def plan(self, samples: int, key: Key) -> list[np.ndarray]:
        """Return the sample indices of each batch. Every epoch is a new permutation of all samples."""
        return plan(samples, self.batch, self.steps or self.epochs * self.batches(samples), key)


def batch_rules(solver: Solver) -> list[tuple[bool, str]]:
    """Return the checks of the fields ``epochs``, ``steps`` and ``batch``, each with its error message."""
    epochs, steps, batch = (getattr(solver, name) for name in ("epochs", "steps", "batch"))
    return [
        (epochs >= 1, wrong(solver, "epochs", "must be at least 1")),
        (steps is None or steps >= 1, wrong(solver, "steps", "must be at least 1")),
        (batch is None or batch >= 1, wrong(solver, "batch", "must be at least 1")),
    ]


# Learning rates.


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
