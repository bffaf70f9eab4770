"""What a sampler is: who takes part in a round."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from gossamer.core.random import Key
from gossamer.core.types import Clock

if TYPE_CHECKING:
    from gossamer.core.exchange import Outcome
    from gossamer.core.method import Exchange


@dataclass(frozen=True)
class Pool:
    """Whom a round's clients are drawn from.

    Args:
        clients: how many clients there are in all, numbered from 0
        available: those of them that are there, with their numbers of training samples
        count: how many take part in a round
    """

    clients: int
    available: Mapping[int, int]
    count: int


class Sampler(ABC):
    """Draws the clients of a round. What is drawn depends on who is there and on the run's key alone."""

    @property
    def weights(self) -> Literal["uniform"] | None:
        """What clients must count for in the mean, given how they are drawn; none leaves that to the server."""
        return None

    @property
    def probe(self) -> "Exchange | None":
        """An exchange with the clients that are proposed, by which those who take part are chosen; none needs none."""
        return None

    @abstractmethod
    def propose(self, pool: Pool, clock: Clock, key: Key) -> list[int]:
        """The clients of a round, in client order; where there is a probe, its candidates."""

    def choose(self, outcomes: "Sequence[Outcome]", count: int) -> list[int]:
        """Of the candidates, given what came of the probe, those who take part, in client order."""
        return [outcome.client for outcome in outcomes][:count]
