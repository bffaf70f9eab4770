"""Rules that select updates by their distances to others: Krum and Multi-Krum.

Blanchard et al., Machine Learning with Adversaries: Byzantine Tolerant Gradient Descent, NeurIPS 2017,
https://arxiv.org/abs/1703.02757. ``Krum`` takes the update that is closest to its nearest neighbours, ``MultiKrum``
(section 4) the mean of the updates with the best scores. Updates count equally, as in the paper.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gossamer.core.errors import require, wrong
from gossamer.core.random import Key
from gossamer.core.types import State
from gossamer.parts.servers.robust.server import Aggregate, Rule
from gossamer.parts.servers.robust.updates import Updates, blocks


@dataclass(frozen=True)
class Scored(Rule):
    """Base of rules that select updates by the scores of Krum.

    With n updates of which at most f are hostile, the score of an update is the sum of its squared distances to the
    n - f - 2 nearest others, and small ones are good.

    Breaking point: f hostile updates, and n >= 2 f + 3.

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


@dataclass(frozen=True)
class Krum(Scored):
    """The update with the smallest sum of distances to its neighbours.

    Krum takes one client's update per round, so training is slower than with a mean; where the clients' data differ,
    the others are never heard (``Bucketing`` helps).

    Args:
        f: the number of hostile clients in a round that is tolerated
    """

    def aggregate(self, updates: Updates, memory: State, key: Key) -> Aggregate:
        """Return the best update."""
        return mean_of(updates, ranking(updates, self.f)[:1])


@dataclass(frozen=True)
class MultiKrum(Scored):
    """Mean of the updates with the smallest sums of distances to their neighbours.

    m = 1 is Krum; more updates make the aggregate less noisy. Damaskinos et al., AggregaThor, MLSys 2019, prove that f
    hostile updates are tolerated for m up to n - f - 2, which is the default and the largest value here. If fewer
    updates arrive than in a full round, m is reduced to it.

    Args:
        f: the number of hostile clients in a round that is tolerated
        m: the number of updates in the mean; none: the number of updates minus f + 2
    """

    m: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        require((self.m is None or self.m >= 1, wrong(self, "m", "must be at least 1")))

    @property
    def min_cohort(self) -> int:
        """The number of clients of which m can be selected."""
        return max(self.min_updates, (self.m or 1) + self.f + 2)

    def aggregate(self, updates: Updates, memory: State, key: Key) -> Aggregate:
        """Return the mean of the best updates."""
        most = updates.count - self.f - 2
        return mean_of(updates, ranking(updates, self.f)[: min(self.m or most, most)])


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
    """Return the squared distance of every two updates, in float64, from inner products over ranges of entries.

    The distance of two clients that hold parts of the model is over the entries that both hold, scaled to the size of
    the model. It is infinite if they have none in common.
    """
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
