"""Sampler interface: which clients take part in a round.

At the start of each round, the engine calls ``propose``. A sampler without a ``probe`` returns the cohort itself. A
sampler with a ``probe`` returns candidates. The engine runs the probe exchange with them, and ``choose`` then selects
the cohort from the outcomes.

A complete sampler that takes the first available clients:

    @dataclass(frozen=True)
    class First(Sampler):
        def propose(self, pool, clock, key):
            return sorted(pool.available)[: pool.count]
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from gossamer.core.fields import CheckedFields
from gossamer.core.privacy import Sampling
from gossamer.core.random import Key
from gossamer.core.types import Clock

if TYPE_CHECKING:
    from gossamer.core.exchange import Outcome
    from gossamer.core.method import Exchange


@dataclass(frozen=True)
class Pool:
    """The clients that a round can use.

    Args:
        clients: the number of all clients; they are numbered from 0
        available: the number of training samples of each client that is available
        count: the size of the cohort
        secret: whether nobody may know the cohort beforehand: privacy counts on it, and no draw follows from the seed
    """

    clients: int
    available: Mapping[int, int]
    count: int
    secret: bool = False


class Sampler(CheckedFields, ABC):
    """Draws the cohort of a round. The result depends only on the available clients, the round and the run's key."""

    @property
    def weights(self) -> Literal["uniform"] | None:
        """The aggregation weights that this sampling scheme requires. ``None`` leaves them to the server."""
        return None

    @property
    def probe(self) -> "Exchange | None":
        """The exchange with the proposed clients on which ``choose`` is based. ``None`` if there is none."""
        return None

    @property
    def scheme(self) -> Sampling:
        """How clients are drawn, which decides whether sampling amplifies differential privacy.

        poisson (each independently with the same probability) and fixed (a fixed number, uniformly and without
        replacement, independently in each round) do, other schemes do not.
        """
        return "other"

    def expected(self, clients: int, count: int) -> float:
        """Return the expected size of a cohort if all clients are available, given ``Pool.count``."""
        return count

    def separation(self, clients: int, count: int) -> int:
        """Return the number of rounds from one participation of a client to its next one, at least.

        All clients are available in every round.
        """
        return 1

    @abstractmethod
    def propose(self, pool: Pool, clock: Clock, key: Key) -> list[int]:
        """Return the cohort of ``clock.round``, or with a ``probe`` its candidates, in client order.

        ``key`` is the run's key. Fold the round into it: ``fold(key, "my-sampler", clock.round)``. For a secret cohort
        it is a new key from the operating system.
        """

    def choose(self, outcomes: "Sequence[Outcome]", count: int) -> list[int]:
        """Return the cohort, at most ``count`` clients in client order, given the outcomes of the probe."""
        return [outcome.client for outcome in outcomes][:count]
