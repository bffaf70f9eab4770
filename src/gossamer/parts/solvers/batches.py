"""How samples are dealt into batches, for every solver that goes through them epoch by epoch."""

import numpy as np

from gossamer.core.errors import wrong
from gossamer.core.random import Key, fold, permutation
from gossamer.core.solver import Solver


class InBatches(Solver):
    """Mini-batches for a number of epochs or of steps: the fields ``epochs``, ``steps`` and ``batch`` of a solver."""

    epochs: int
    steps: int | None
    batch: int | None

    def batch_rules(self) -> list[tuple[bool, str]]:
        """What must hold of these fields, and what to say where it does not."""
        return [
            (self.epochs >= 1, wrong(self, "epochs", "must be at least 1")),
            (self.steps is None or self.steps >= 1, wrong(self, "steps", "must be at least 1")),
            (self.batch is None or self.batch >= 1, wrong(self, "batch", "must be at least 1")),
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
