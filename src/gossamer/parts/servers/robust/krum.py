"""Krum: the update that is closest to its nearest neighbours.

Blanchard et al., Machine Learning with Adversaries: Byzantine Tolerant Gradient Descent, NeurIPS 2017,
https://arxiv.org/abs/1703.02757. With n updates of which at most f are hostile, the score of an update is the sum of
its squared distances to the n - f - 2 nearest others. The aggregate is the update with the smallest score. Weights are
not used, as in the paper.

Breaking point: f hostile updates, and n >= 2 f + 3. Krum takes one client's update per round, so training is slower
than with a mean; where the clients' data differ, the others are never heard (``Bucketing`` helps).

Distances come from inner products, which are summed over ranges of entries in float64. The distance of two clients that
hold parts of the model is over the entries that both hold, scaled to the size of the model. It is infinite if they have
none in common.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gossamer.core.errors import require, wrong
from gossamer.core.random import Key
from gossamer.core.types import State
from gossamer.parts.servers.robust.rule import Aggregate, Rule
from gossamer.parts.servers.robust.updates import Updates, blocks


@dataclass(frozen=True)
class Krum(Rule):
    """The update with the smallest sum of distances to its neighbours.

    Args:
        f: the number of hostile clients in a round that is tolerated
    """

    f: int

    def __post_init__(self) -> None:
        require((self.f >= 1, wrong(self, "f", "must be at least 1")))

    @property
    def min_updates(self) -> int:
        """2 f + 3, as the theorem requires."""
        return 2 * self.f + 3

    def tolerates(self, updates: int) -> int:
        """Return f, or nothing with too few updates."""
        return self.f if updates >= self.min_updates else 0

    def aggregate(self, updates: Updates, memory: State, key: Key) -> Aggregate:
        """Return the best update."""
        return mean_of(updates, ranking(updates, self.f)[:1])


def mean_of(updates: Updates, used: Sequence[int]) -> Aggregate:
    """Return the mean of some of the updates, with equal weights."""
    weights = torch.zeros(updates.count, dtype=torch.float64)
    weights[list(used)] = 1 / len(used)
    return Aggregate(updates.mean(weights), used=sorted(used))


def ranking(updates: Updates, f: int) -> list[int]:
    """Return the indices of the updates by their scores, the smallest first; equal ones in the order of clients."""
    apart = squared_distances(updates)
    nearest = apart.fill_diagonal_(torch.inf).sort(1).values[:, : updates.count - f - 2]
    found: list[int] = nearest.sum(1).sort(stable=True).indices.tolist()
    return found


def squared_distances(updates: Updates) -> Tensor:
    """Return the squared distance of every two updates, in float64."""
    zero = torch.zeros(updates.count, updates.count, dtype=torch.float64, device=updates.like.device)
    squares, products, common = zero, zero.clone(), zero.clone()
    for rows, held in (block for chunk in updates.chunks() for block in blocks(chunk)):
        x = rows.double()
        products += x @ x.T
        # The squares of each update, over the entries that the other holds.
        squares += (x * x).sum(1, keepdim=True) if held is None else (x * x) @ held.T.double()
        common += rows.shape[1] if held is None else held.double() @ held.T.double()
    found = (squares + squares.T - 2 * products).clamp(min=0) * (updates.size / common)
    return found.nan_to_num(nan=torch.inf, posinf=torch.inf)
