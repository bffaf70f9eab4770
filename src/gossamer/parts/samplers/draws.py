"""Samplers: how the clients of a round are drawn.

    Uniform         without replacement, as in FedAvg (McMahan et al., 2017, https://arxiv.org/abs/1602.05629)
    BySize          probabilities proportional to the number of samples, without replacement
    RoundRobin      in turn, equally often, without randomness
    Poisson         every client independently of the others, with the same probability
    PowerOfChoice   the candidates with the largest losses (Cho et al., 2020, https://arxiv.org/abs/2010.01243)

**By size.** For each client, u is drawn uniformly from (0, 1). The cohort is the clients with the smallest
-log(u) / samples. This takes one pass over all clients, and has the same distribution as drawing them one after the
other (Efraimidis and Spirakis, 2006, https://doi.org/10.1016/j.ipl.2005.11.003). Clients with many samples are drawn
often, so all clients of a cohort have equal weight in the aggregation.

**Poisson.** The number of clients of a round varies, and a round may have none. Differential privacy is amplified most
by this scheme, and its accounting is tight (``gossamer.parts.privacy``).

**Power of choice.** In each round, candidates are drawn by size. Each receives the global model, and returns its mean
training loss, one number. The clients with the largest losses then train, with equal aggregation weights. If the number
of candidates is the size of the cohort, this is sampling by size.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from typing import Literal

import torch

from gossamer.core.errors import require, wrong
from gossamer.core.exchange import Outcome
from gossamer.core.method import Exchange
from gossamer.core.privacy import Sampling
from gossamer.core.random import Key, fold, permutation, uniform
from gossamer.core.random.private import words_of
from gossamer.core.sampler import Pool, Sampler
from gossamer.core.types import Clock
from gossamer.parts.codecs.dense import Dense
from gossamer.parts.servers.mean import Listen
from gossamer.parts.solvers.probes import LossProbe
from gossamer.parts.views.entries import Full


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
    waits = -torch.log1p(-uniform(key, pool.clients, dtype=torch.float64))  # [clients]
    over = {c: float(waits[c]) / samples if samples else math.inf for c, samples in pool.available.items()}
    return sorted(sorted(over, key=lambda client: (over[client], client))[:count])


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


@dataclass(frozen=True)
class Poisson(Sampler):
    """Draws every available client independently.

    Args:
        rate: the probability of a client to take part in a round; times the number of clients, it is the expected
            number of clients per round
    """

    rate: float = 0.1

    def __post_init__(self) -> None:
        require((0 < self.rate <= 1, wrong(self, "rate", "must be above 0 and at most 1")))

    @property
    def scheme(self) -> Sampling:
        """Independent draws."""
        return "poisson"

    def expected(self, clients: int, count: int) -> float:
        """Return the rate times the number of clients."""
        return self.rate * clients

    def propose(self, pool: Pool, clock: Clock, key: Key) -> list[int]:
        """Return the available clients whose own draw is below the rate."""
        drawn = words_of(fold(key, "poisson", clock.round), pool.clients, pool.secret)
        below = (drawn >> 11 & (1 << 53) - 1).double() * 0.5**53 < self.rate  # the top 53 bits, as a fraction
        return sorted(pool.available.keys() & torch.nonzero(below).flatten().tolist())


@dataclass(frozen=True)
class PowerOfChoice(Sampler):
    """Selects the clients with the largest losses among random candidates.

    See https://arxiv.org/abs/2010.01243.

    Args:
        candidates: the number of clients that compute their loss, at least the size of the cohort
    """

    candidates: int = 20

    def __post_init__(self) -> None:
        require((self.candidates >= 1, wrong(self, "candidates", "must be at least 1")))

    @property
    def weights(self) -> Literal["uniform"]:
        """Equal weights, as in the paper: candidates are drawn by size."""
        return "uniform"

    @property
    def probe(self) -> Exchange:
        """The exchange that sends the global model, and returns one loss per candidate."""
        return Exchange(Full(), LossProbe(), Dense(), Listen(), Dense(), send="sections")

    def propose(self, pool: Pool, clock: Clock, key: Key) -> list[int]:
        """Return the candidates."""
        return drawn_by_size(pool, max(self.candidates, pool.count), fold(key, "candidates", clock.round))

    def choose(self, outcomes: Sequence[Outcome], count: int) -> list[int]:
        """Return the candidates with the largest losses. Ties are broken by client number."""
        replied = [outcome for outcome in outcomes if outcome.folded]
        by_loss = sorted(replied, key=lambda outcome: (-float(outcome.sections["loss"]), outcome.client))
        return sorted(outcome.client for outcome in by_loss[:count])
