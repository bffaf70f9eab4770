"""Geometric median of the updates, by smoothed Weiszfeld iterations (RFA).

Pillutla et al., Robust Aggregation for Federated Learning, IEEE Transactions on Signal Processing 2022,
https://arxiv.org/abs/1912.13445. The aggregate z minimizes the weighted sum of distances, sum_k p_k |z - D_k|. One
iteration (Algorithm 2) is

    z <- sum_k b_k D_k / sum_k b_k        b_k = p_k / max(smoothing, |z - D_k|)

The weights p_k are those of the mean that the rule replaces. The paper starts from the mean, which an update of a huge
norm carries far away. Here the start is the mean of the updates with norms clipped at their median. The minimum is the
same; a few iterations are enough to come close to it.

Breaking point: hostile clients with less than half of the total weight. The error is a constant times the spread of the
honest updates. Weights that clients claim count, so limit them in a deployment (``max_weight``).
"""

import math
from dataclasses import dataclass
from typing import ClassVar

from gossamer.core.errors import require, wrong
from gossamer.core.random import Key
from gossamer.core.types import State
from gossamer.parts.servers.clipping import shrink
from gossamer.parts.servers.robust.clip import bound
from gossamer.parts.servers.robust.rule import Aggregate, Rule, minority
from gossamer.parts.servers.robust.updates import Updates


@dataclass(frozen=True)
class GeometricMedian(Rule):
    """Weighted geometric median of the updates.

    Args:
        iterations: number of Weiszfeld iterations, each of which decodes large updates twice
        smoothing: smallest distance in the denominator of a weight
    """

    weighted: ClassVar[bool] = True

    iterations: int = 8
    smoothing: float = 1e-6

    def __post_init__(self) -> None:
        require(
            (self.iterations >= 1, wrong(self, "iterations", "must be at least 1")),
            (0 < self.smoothing < math.inf, wrong(self, "smoothing", "must be a positive number")),
        )

    @property
    def min_updates(self) -> int:
        """Three: between two updates, every point has the same sum of distances."""
        return 3

    def tolerates(self, updates: int) -> int:
        """Return the largest minority, of equal weights."""
        return minority(updates)

    def aggregate(self, updates: Updates, memory: State, key: Key) -> Aggregate:
        """Return the result of the last iteration."""
        norms = updates.norms()
        found = updates.mean(updates.weights, shrink(norms, bound("median", norms)))
        for _ in range(self.iterations):
            nearness = updates.weights / updates.distances(found).clamp(min=self.smoothing)
            found = updates.mean(nearness / nearness.sum())
        return Aggregate(found)
