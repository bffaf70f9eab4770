"""Centered clipping: updates are clipped around the aggregate of the previous round.

Karimireddy et al., Learning from History for Byzantine Robust Optimization, ICML 2021,
https://arxiv.org/abs/2012.10333. With the previous aggregate as the first center v, one iteration is

    v <- v + 1/n sum_k (D_k - v) min(1, radius / |D_k - v|)

The center is part of the server state. Before the first round it is 0. Updates count equally, as in the paper. The
radius is a number, or the median of the round's distances |D_k - v|, which is this library's addition.

Breaking point: less than half of the updates hostile. f hostile updates of n move v by at most radius f / n per
iteration.
"""

from dataclasses import dataclass

from gossamer.core.errors import require, wrong
from gossamer.core.random import Key
from gossamer.core.types import State
from gossamer.parts.servers.clipping import shrink
from gossamer.parts.servers.robust.clip import Bound, bound, positive
from gossamer.parts.servers.robust.rule import Aggregate, Rule, minority
from gossamer.parts.servers.robust.updates import Updates


@dataclass(frozen=True)
class CenteredClipping(Rule):
    """Mean of the updates, clipped around the previous aggregate.

    Args:
        radius: largest distance from the center: a number, or median for that of the round
        iterations: number of iterations per round
    """

    radius: Bound = "median"
    iterations: int = 1

    def __post_init__(self) -> None:
        require(positive(self, "radius"), (self.iterations >= 1, wrong(self, "iterations", "must be at least 1")))

    @property
    def min_updates(self) -> int:
        """Three: of two, one may be hostile."""
        return 3

    def tolerates(self, updates: int) -> int:
        """Return the largest minority."""
        return minority(updates)

    def aggregate(self, updates: Updates, memory: State, key: Key) -> Aggregate:
        """Return the center after the last iteration. The next round starts from it."""
        center = memory["center"] if memory else updates.like.new_zeros(updates.size)
        for _ in range(self.iterations):
            apart = updates.distances(center)
            factors = shrink(apart, bound(self.radius, apart))
            center = center + updates.mean(updates.equal_weights, factors, center)
        return Aggregate(center, {"center": center})
