"""Clients in turn: every client takes part equally often, without any randomness."""

from dataclasses import dataclass
from itertools import islice

from gossamer.core.random import Key
from gossamer.core.sampler import Pool, Sampler
from gossamer.core.types import Clock


@dataclass(frozen=True)
class RoundRobin(Sampler):
    """The next clients by number; after the last comes the first. Who is not there is passed over."""

    def propose(self, pool: Pool, clock: Clock, key: Key) -> list[int]:
        """From where the round before would end if everybody was there."""
        start = clock.round * pool.count % pool.clients
        order = ((start + place) % pool.clients for place in range(pool.clients))
        return sorted(islice((client for client in order if client in pool.available), pool.count))
