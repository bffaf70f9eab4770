"""Poisson sampling: every client takes part independently of the others, with the same probability.

The number of clients of a round varies, and a round may have none. Differential privacy is amplified most by this
scheme, and its accounting is tight (``gossamer.parts.privacy``).
"""

from dataclasses import dataclass

import torch

from gossamer.core.errors import require, wrong
from gossamer.core.privacy import Sampling
from gossamer.core.random import Key, fold
from gossamer.core.random.private import words_of
from gossamer.core.sampler import Pool, Sampler
from gossamer.core.types import Clock


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
        below = (drawn >> 11 & (1 << 53) - 1).double() * 0.5**53 < self.rate
        return sorted(pool.available.keys() & torch.nonzero(below).flatten().tolist())
