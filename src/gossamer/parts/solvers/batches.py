"""Batch schedule of solvers that train for epochs or steps."""

import numpy as np

from gossamer.core.errors import wrong
from gossamer.core.random import Key, fold, permutation
from gossamer.core.solver import Solver


class Batched(Solver):
    """A solver with mini-batches: the field ``batch``."""

    batch: int | None

    def batches(self, samples: int) -> int:
        """Return the number of batches per epoch."""
        return -(-samples // (self.batch or samples))


class InBatches(Batched):
    """A solver with mini-batches for a number of epochs or steps: the fields ``epochs``, ``steps`` and ``batch``."""

    epochs: int
    steps: int | None

    def batch_rules(self) -> list[tuple[bool, str]]:
        """Return the checks of these fields, each with its error message."""
        return [
            (self.epochs >= 1, wrong(self, "epochs", "must be at least 1")),
            (self.steps is None or self.steps >= 1, wrong(self, "steps", "must be at least 1")),
            (self.batch is None or self.batch >= 1, wrong(self, "batch", "must be at least 1")),
        ]

    def plan(self, samples: int, key: Key) -> list[np.ndarray]:
        """Return the sample indices of each batch. Every epoch is a new permutation of all samples."""
        return plan(samples, self.batch, self.steps or self.epochs * self.batches(samples), key)


def plan(samples: int, batch: int | None, steps: int, key: Key) -> list[np.ndarray]:
    """Return the sample indices of a number of batches. Every epoch is a new permutation of all samples."""
    size, batches = batch or samples, list[np.ndarray]()
    for epoch in range(-(-steps // -(-samples // size))):
        order = permutation(fold(key, "epoch", epoch), samples)
        batches += [order[i : i + size] for i in range(0, samples, size)]
    return batches[:steps]
