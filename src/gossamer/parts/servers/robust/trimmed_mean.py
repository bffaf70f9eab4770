"""Coordinate-wise trimmed mean.

Yin et al., Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates, ICML 2018,
https://arxiv.org/abs/1803.01498. Of each entry's n values, the floor(share n) largest and as many smallest are left
out; the aggregate is the mean of the others. Updates count equally, as in the paper.

Breaking point: floor(share n) hostile updates. With up to that number, each entry is between two honest values. A share
of 0.2 tolerates 20 % hostile clients, and not 30 %.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from gossamer.core.errors import require, wrong
from gossamer.core.random import Key
from gossamer.core.types import State
from gossamer.parts.servers.robust.by_coordinate import by_coordinate
from gossamer.parts.servers.robust.rule import Aggregate, Rule
from gossamer.parts.servers.robust.updates import Updates


@dataclass(frozen=True)
class TrimmedMean(Rule):
    """Coordinate-wise mean without the largest and the smallest values.

    Args:
        share: fraction of the values that is left out at each end, below 1/2
    """

    share: float

    def __post_init__(self) -> None:
        require((0 < self.share < 0.5, wrong(self, "share", "must be above 0 and below 0.5")))

    @property
    def min_updates(self) -> int:
        """The smallest number of which at least one is left out at each end."""
        return math.ceil(round(1 / self.share, 9))

    def tolerates(self, updates: int) -> int:
        """Return the number of values that are left out at each end."""
        return math.floor(round(self.share * updates, 9))  # a product such as 0.29 * 100 is below the exact one

    def aggregate(self, updates: Updates, memory: State, key: Key) -> Aggregate:
        """Return the trimmed mean of each entry."""
        trimmed = torch.tensor([self.tolerates(number) for number in range(updates.count + 1)])

        def combine(ranked: Tensor, holders: Tensor) -> Tensor:
            out = trimmed.to(holders.device)[holders]
            rank = torch.arange(len(ranked), device=ranked.device)[:, None]
            kept = (rank >= out) & (rank < holders - out)
            return torch.where(kept, ranked, 0).sum(0) / (holders - 2 * out).clamp(min=1)

        return Aggregate(by_coordinate(updates, combine, self.min_updates))
