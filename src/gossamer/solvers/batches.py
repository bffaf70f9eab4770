"""How samples are dealt into batches, for every solver that goes through them epoch by epoch."""

from typing import Any

import numpy as np

from gossamer.errors import ConfigError
from gossamer.random import Key, fold, permutation
from gossamer.solvers.base import Solver


class InBatches(Solver):
    """Mini-batches for a number of epochs or of steps: the fields ``epochs``, ``steps`` and ``batch`` of a solver."""

    epochs: int
    steps: int | None
    batch: int | None

    def batch_rules(self) -> list[tuple[bool, str]]:
        """What must hold of these fields, and what to say where it does not."""
        name = type(self).__name__
        return [
            (self.epochs >= 1, f"{name}.epochs must be at least 1, got {self.epochs}"),
            (self.steps is None or self.steps >= 1, f"{name}.steps must be at least 1, got {self.steps}"),
            (self.batch is None or self.batch >= 1, f"{name}.batch must be at least 1, got {self.batch}"),
        ]

    def batches(self, samples: int) -> int:
        """How many batches one pass over the samples has."""
        return -(-samples // (self.batch or samples))

    def plan(self, samples: int, key: Key) -> list[np.ndarray]:
        """Each epoch a fresh order, cut into batches: no sample is dropped, none comes twice in an epoch."""
        steps = self.steps or self.epochs * self.batches(samples)
        plan: list[np.ndarray] = []
        for epoch in range(-(-steps // self.batches(samples))):
            order = permutation(fold(key, "epoch", epoch), samples)
            plan += [order[i : i + (self.batch or samples)] for i in range(0, samples, self.batch or samples)]
        return plan[:steps]


def batch_size(solver: Any) -> int:
    """How many samples a solver's batches have, for whoever must know before there are any."""
    batch = getattr(solver, "batch", None)
    if not isinstance(batch, int):
        raise ConfigError("how much memory training takes depends on the size of a batch: give one (--batch N)")
    return batch
