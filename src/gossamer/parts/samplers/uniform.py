"""Uniform sampling without replacement, as in FedAvg (McMahan et al., 2017, https://arxiv.org/abs/1602.05629)."""

from dataclasses import dataclass
from functools import lru_cache
from itertools import islice

from gossamer.core.privacy import Sampling
from gossamer.core.random import Key, fold, permutation
from gossamer.core.random.private import words_of
from gossamer.core.sampler import Pool, Sampler
from gossamer.core.types import Clock


@dataclass(frozen=True)
class Uniform(Sampler):
    """Draws clients uniformly without replacement, independently in each round."""

    @property
    def scheme(self) -> Sampling:
        """A fixed number without replacement."""
        return "fixed"

    def propose(self, pool: Pool, clock: Clock, key: Key) -> list[int]:
        """Return the first available clients in a random order of all clients."""
        if pool.secret:  # the first clients in the order of words from the operating system
            order = words_of(key, pool.clients, True).argsort(stable=True).tolist()
        else:
            order = _order(fold(key, "cohort", clock.round), pool.clients)
        return sorted(islice((client for client in order if client in pool.available), pool.count))


@lru_cache(maxsize=2)
def _order(key: Key, clients: int) -> list[int]:
    """Return a random order of all clients; it is kept, because a schedule may sample many times in a round."""
    order: list[int] = permutation(key, clients).tolist()
    return order
