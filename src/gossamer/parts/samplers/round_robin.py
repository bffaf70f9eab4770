"""Round-robin sampling: clients take part in turn, equally often, without randomness."""

from dataclasses import dataclass
from itertools import islice

from gossamer.core.random import Key
from gossamer.core.sampler import Pool, Sampler
from gossamer.core.types import Clock


@dataclass(frozen=True)
class RoundRobin(Sampler):
    """Takes the next clients by number, in cyclic order. Clients that are not available are skipped."""

    def separation(self, clients: int, count: int) -> int:
        """Return the number of whole cohorts: a client takes part again after all others had their turn."""
        return max(1, clients // count)

    def propose(self, pool: Pool, clock: Clock, key: Key) -> list[int]:
        """Return the next available clients, starting at ``round * count`` modulo the number of clients."""
        start = clock.round * pool.count % pool.clients
        order = ((start + offset) % pool.clients for offset in range(pool.clients))
        return sorted(islice((client for client in order if client in pool.available), pool.count))
