"""Coordinate-wise median.

Yin et al., Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates, ICML 2018,
https://arxiv.org/abs/1803.01498. Each entry of the aggregate is the median of that entry in all updates, or the mean of
the two middle values of an even number. Updates count equally, as in the paper.

Breaking point: with less than half of the updates hostile, each entry is between two honest values.
"""

from dataclasses import dataclass

from torch import Tensor

from gossamer.core.random import Key
from gossamer.core.types import State
from gossamer.parts.servers.robust.by_coordinate import by_coordinate
from gossamer.parts.servers.robust.rule import Aggregate, Rule, minority
from gossamer.parts.servers.robust.updates import Updates


@dataclass(frozen=True)
class Median(Rule):
    """Coordinate-wise median of the updates."""

    @property
    def min_updates(self) -> int:
        """Three: of two values, one may be hostile."""
        return 3

    def tolerates(self, updates: int) -> int:
        """Return the largest minority."""
        return minority(updates)

    def aggregate(self, updates: Updates, memory: State, key: Key) -> Aggregate:
        """Return the median of each entry."""
        return Aggregate(by_coordinate(updates, middle, self.min_updates))


def middle(ranked: Tensor, holders: Tensor) -> Tensor:
    """Return the median of the first ``holders`` values of each sorted column."""
    low, high = ((holders - 1).clamp(min=0) // 2)[None], (holders // 2)[None]
    # Halved before the sum, which cannot overflow then.
    return (ranked.gather(0, low) / 2 + ranked.gather(0, high) / 2)[0]
