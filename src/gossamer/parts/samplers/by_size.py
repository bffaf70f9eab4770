"""Clients drawn with a probability proportional to their number of samples, without replacement.

Each client draws u uniformly from (0, 1) and the round takes those with the smallest -log(u) / samples: one pass over
all clients, and the same distribution as drawing one after the other (Efraimidis and Spirakis, 2006,
https://doi.org/10.1016/j.ipl.2005.11.003). Who has many samples is drawn often, so all that are drawn count alike.
"""

from dataclasses import dataclass
from typing import Literal

import torch

from gossamer.core.random import Key, fold, uniform
from gossamer.core.sampler import Pool, Sampler
from gossamer.core.types import Clock


@dataclass(frozen=True)
class BySize(Sampler):
    """Clients with more samples are drawn more often, and count alike."""

    @property
    def weights(self) -> Literal["uniform"]:
        """One each: a client's samples count by how often it is drawn."""
        return "uniform"

    def propose(self, pool: Pool, clock: Clock, key: Key) -> list[int]:
        """Those with the smallest exponential variates."""
        return drawn_by_size(pool, pool.count, fold(key, "by-size", clock.round))


def drawn_by_size(pool: Pool, count: int, key: Key) -> list[int]:
    """So many of the clients that are there, in client order; one without samples is drawn last."""
    waits = -torch.log1p(-uniform(key, pool.clients, dtype=torch.float64))
    order = sorted(pool.available, key=lambda client: (_over(float(waits[client]), pool.available[client]), client))
    return sorted(order[:count])


def _over(wait: float, samples: int) -> float:
    return wait / samples if samples else float("inf")
