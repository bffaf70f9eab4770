"""Schedule interface: when clients start, when the server aggregates, and how stale updates count.

A round is one aggregation. The engine keeps ``slots`` clients in training. It aggregates as soon as ``goal`` updates
have arrived, at the ``deadline``, or when no client is left in training. What happens then:

    refills    keeps_late    schedule
    no         no            clients start together; those in training at the aggregation stop (synchronous, deadline)
    no         yes           clients start together; later updates are aggregated in a later round (deadline, late=fold)
    yes        yes           a free slot is filled at once, with the newest model (FedBuff, FedAsync)

The version of a model is the number of the round that starts from it. The staleness of an update is the number of
aggregations between the start of its training and its own aggregation. The same schedule runs in a simulation, with
virtual time, and in a deployment, with real time.
"""

from abc import ABC, abstractmethod

from gossamer.core.errors import Mistake, Setting, require
from gossamer.core.exchange import Arrival
from gossamer.core.fields import CheckedFields
from gossamer.core.types import Params

ABOUT = Setting("", "schedule")
"""What mistakes are about."""


class Schedule(CheckedFields, ABC):
    """When clients start, and when the server aggregates."""

    @property
    def deadline(self) -> int | None:
        """Nanoseconds from the start of a round, or of each exchange of it, to its end. None means no deadline."""
        return None

    @property
    def refills(self) -> bool:
        """Whether a free slot is filled at once, and not with the next round."""
        return False

    @property
    def keeps_late(self) -> bool:
        """Whether clients that train at an aggregation go on. Updates of several versions are then aggregated."""
        return self.refills

    @abstractmethod
    def slots(self, cohort: int) -> int:
        """Return the number of clients that train at the same time, given the clients per round."""

    @abstractmethod
    def goal(self, cohort: int) -> int | None:
        """Return the number of updates of an aggregation. None means that it waits for all clients in training."""

    def factor(self, staleness: int) -> float | None:
        """Return the factor of an update. None means that it is too stale, and is not aggregated."""
        return 1.0

    def adapt(self, arrival: Arrival, model: Params) -> Arrival:
        """Return an arrival as the server folds it. ``model`` is the current model. Not called without a factor."""
        return arrival.scaled(self.factor(arrival.staleness) or 0.0)

    def check(self, cohort: int, clients: int) -> None:
        """Raise ``ConfigError`` if the schedule does not fit the numbers of clients. Called before the first round."""
        slots, goal = self.slots(cohort), self.goal(cohort)
        never = f"waits for {goal} updates, and there are {clients} clients, each of which sends one per aggregation"
        require(
            (slots <= clients, Mistake(f"lets {slots} clients train at once, and there are {clients}", ABOUT)),
            (goal is None or goal <= clients, Mistake(never, ABOUT)),
        )
