"""Differential privacy: what the parts of a method guarantee, independent of how it is computed.

A part that adds noise is ``private``: a server (central privacy), a codec (distributed and local privacy) or a solver
(privacy of examples). It returns a ``Guarantee``, which states the epsilon of a number of rounds. Engines ask for it
once, write the epsilon to every record, and end a run before it exceeds its budget.

Where noise comes from is not a field of such a part but a fact of the run, which the part reads in ``bind`` as
``context.network.secure_noise``: from the operating system in every deployment, and from the seed in a simulation that
does not ask for the other. Noise from the seed can be repeated, and therefore subtracted: it protects nobody.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Literal, NamedTuple

Unit = Literal["client", "example"]
"""Whose data a guarantee protects: all samples of a client, or one sample."""

Relation = Literal["add-remove", "replace-one", "zero-out"]
"""Which data sets are neighbours: one unit more or less, one unit replaced, or the contribution of one unit is zero."""

Sampling = Literal["poisson", "fixed", "all", "other"]
"""How the clients of a round are drawn: independently, a fixed number without replacement, all, or unknown."""

SYSTEM, SEED = "operating system", "seed"
"""Where the noise of a run came from, as its records say."""


class Participation(NamedTuple):
    """Who takes part in a run.

    Args:
        clients: the number of clients
        cohort: clients per round; with Poisson sampling their expected number, which need not be whole
        sampling: how they are drawn
        rounds: the planned number of rounds
        samples: the smallest number of samples of a client
        separation: the number of rounds from one participation of a client to the next, at least
    """

    clients: int
    cohort: float
    sampling: Sampling
    rounds: int
    samples: int = 0
    separation: int = 1


@dataclass(frozen=True)
class Guarantee(ABC):
    """A statement of differential privacy about a run.

    Args:
        unit: whose data is protected
        relation: which data sets are neighbours
        mechanism: the mechanism in words, with its noise
        sampling: how sampling is taken into account, in words
        protects_from: who learns no more than epsilon: everybody who sees the model, the server too, or all others
    """

    unit: Unit
    relation: Relation
    mechanism: str
    sampling: str
    protects_from: str

    @abstractmethod
    def epsilon(self, rounds: int, delta: float, again: int = 0) -> float:
        """Return the epsilon of the first rounds of a run, for a delta.

        ``again`` of them were repeated with new noise after their results may have been seen.
        """

    def cases(self) -> tuple["Guarantee", ...]:
        """Return the guarantees of which the largest epsilon counts; several if units differ, as clients in size."""
        return (self,)
