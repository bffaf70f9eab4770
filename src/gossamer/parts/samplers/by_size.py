"""Sampling with probabilities proportional to the number of samples, without replacement.

For each client, u is drawn uniformly from (0, 1). The cohort is the clients with the smallest -log(u) / samples. This
takes one pass over all clients, and has the same distribution as drawing them one after the other (Efraimidis and
Spirakis, 2006, https://doi.org/10.1016/j.ipl.2005.11.003). Clients with many samples are drawn often, so all clients of
a cohort have equal weight in the aggregation.
"""

from dataclasses import dataclass
from typing import Literal

import torch

from gossamer.core.random import Key, fold, uniform
from gossamer.core.sampler import Pool, Sampler
from gossamer.core.types import Clock


@dataclass(frozen=True)
class BySize(Sampler):
    """Draws clients with probabilities proportional to their number of samples, with equal aggregation weights."""

    @property
    def weights(self) -> Literal["uniform"]:
        """Equal weights: the number of samples is already in the sampling probability."""
        return "uniform"

    def propose(self, pool: Pool, clock: Clock, key: Key) -> list[int]:
        """Return a cohort drawn by size."""
        return drawn_by_size(pool, pool.count, fold(key, "by-size", clock.round))


def drawn_by_size(pool: Pool, count: int, key: Key) -> list[int]:
    """Return ``count`` available clients, in client order. Clients without samples are drawn last."""
    waits = -torch.log1p(-uniform(key, pool.clients, dtype=torch.float64))
    order = sorted(pool.available, key=lambda client: (_over(float(waits[client]), pool.available[client]), client))
    return sorted(order[:count])


def _over(wait: float, samples: int) -> float:
    return wait / samples if samples else float("inf")
