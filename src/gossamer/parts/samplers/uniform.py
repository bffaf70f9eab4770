"""Clients drawn uniformly, without replacement: the sampling of federated averaging (McMahan et al., 2017).

https://arxiv.org/abs/1602.05629
"""

from dataclasses import dataclass
from itertools import islice

from gossamer.core.random import Key, fold, permutation
from gossamer.core.sampler import Pool, Sampler
from gossamer.core.types import Clock


@dataclass(frozen=True)
class Uniform(Sampler):
    """Every client is as likely as any other, in every round anew."""

    def propose(self, pool: Pool, clock: Clock, key: Key) -> list[int]:
        """The first of a random order of all clients, as far as they are there."""
        order = permutation(fold(key, "cohort", clock.round), pool.clients)
        return sorted(islice((client for client in order.tolist() if client in pool.available), pool.count))
