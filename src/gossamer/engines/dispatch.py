"""Tasks in flight under a schedule: which clients start when, and which updates an aggregation takes.

``Dispatcher`` follows the schedule. Its subclasses start tasks and wait for their ends: in a simulation with virtual
time, in a deployment with real time. A task is in flight from its start until it ends, which may be several rounds
later. The server states that such tasks started from are kept, by version.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from gossamer.core.availability import SECOND
from gossamer.core.binding import BoundMethod
from gossamer.core.errors import Mistake, require
from gossamer.core.random import Key
from gossamer.core.schedule import ABOUT, Schedule
from gossamer.core.types import Clock, State
from gossamer.engines.inbox import ClientReply, Replies
from gossamer.engines.metrics import Ledger
from gossamer.engines.stage import Stage

FOLDED, LOST, LEFT, CANCELLED, STALE, FAILED = "folded", "lost", "left", "cancelled", "stale", "failed"
"""How a task ends. ``FOLDED``: its update arrived, and is aggregated unless it is refused."""

NOTHING = ClientReply()
"""The reply of a client of which nothing arrived, and whose state does not change."""


@dataclass(eq=False)
class Flight:
    """A client's task, from its start to its end. Times are in nanoseconds from the start of the run.

    Args:
        client: the client
        version: the version of the model that it trains
        start: the start of the download
        exchange: the number of the exchange in the round
        received: the end of the download; none if it was not reached, or is not known
        computed: the end of training
        end: the end of the task
        outcome: how the task ended; empty as long as it has not
        reply: what arrived
        joules: the energy that the client spent
        delivered: whether the reply was handed over
    """

    client: int
    version: int
    start: int
    exchange: int = 0
    received: int | None = None
    computed: int | None = None
    end: int = 0
    outcome: str = ""
    reply: ClientReply = NOTHING
    joules: float = 0.0
    delivered: bool = False

    def finish(self, end: int, outcome: str, reply: ClientReply = NOTHING) -> None:
        """Record how the task ended."""
        self.end, self.outcome, self.reply = end, outcome, reply


COLUMNS = ("client", "version", "exchange", "start", "received", "computed", "end", "outcome", "joules")
"""The entries of a record for tasks that ended in its round, one list each."""


@dataclass
class Account:
    """What the tasks that ended in a round took.

    Args:
        ended: the tasks, in the order of their ends
        begin: the time at which the round began
    """

    begin: int = 0
    ended: list[Flight] = field(default_factory=list)

    def notes(self, now: int) -> dict[str, Any]:
        """Return the entries of a record."""
        vain = [flight for flight in self.ended if flight.outcome != FOLDED]
        return {
            "time": now / SECOND,
            "tasks": {name: [getattr(flight, name) for flight in self.ended] for name in COLUMNS},
            "spent_in_vain": {
                "joules": sum((flight.joules for flight in vain), 0.0),
                "seconds": sum(flight.end - flight.start for flight in vain) / SECOND,
            },
        }


class Host(Protocol):
    """A run, as a dispatcher sees it.

    Args:
        server: the server state
        key: the run's random key
        cohort_size: clients per round
    """

    server: State
    key: Key
    cohort_size: int

    def all_clients(self) -> int:
        """Return the number of clients."""
        ...

    def propose(self, number: int, available: Mapping[int, int], count: int) -> list[int]:
        """Let the sampler choose from available clients, given with their numbers of samples."""
        ...

    def clock(self, number: int, client: int = -1) -> Clock:
        """Return the clock of a round."""
        ...


class Dispatcher(ABC):
    """Starts tasks by a schedule, and collects the updates of each aggregation.

    Args:
        run: the run
        schedule: the schedule
    """

    def __init__(self, run: Host, schedule: Schedule) -> None:
        self.run, self.schedule = run, schedule
        self.slots, self.goal = schedule.slots(run.cohort_size), schedule.goal(run.cohort_size)
        self.flights: dict[int, Flight] = {}
        self.versions: dict[int, State] = {}
        self.took_part: set[int] = set()
        self.account = Account()

    # Implemented by engines.

    @property
    @abstractmethod
    def now(self) -> int:
        """The time, in nanoseconds from the start of the run."""

    @abstractmethod
    def idle(self) -> Mapping[int, int]:
        """Return the available clients without a task, with their numbers of samples."""

    @abstractmethod
    def launch(self, stage: Stage, client: int, ledger: Ledger) -> Flight:
        """Start the task of a client, and return it."""

    @abstractmethod
    def wait(self, stage: Stage, until: int | None) -> Sequence[Flight] | None:
        """Wait until tasks end, and return them; an empty list if other clients have become available.

        None means that nothing can happen any more, or that the time ``until`` has come.
        """

    @abstractmethod
    def stop(self, flight: Flight) -> None:
        """Stop a task, which the server does not wait for."""

    @abstractmethod
    def settle(self, flight: Flight, ledger: Ledger) -> None:
        """Record what a task that has ended cost."""

    # The schedule.

    def begin_round(self) -> None:
        """Begin a round: every client may take part again."""
        self.took_part, self.account = set(), Account(self.now)

    @property
    def free(self) -> int:
        """The number of clients that can start."""
        return max(0, self.slots - len(self.flights))

    def eligible(self) -> Mapping[int, int]:
        """Return the clients that can be sampled: available, without a task, and not yet in this round."""
        idle = self.idle()
        if not self.took_part:
            return idle
        return {client: samples for client, samples in idle.items() if client not in self.took_part}

    def expects(self) -> bool:
        """Return whether a client that has not taken part in this round may become available."""
        return len(self.took_part) < self.run.all_clients()

    def exchange(self, stage: Stage, ledger: Ledger, replies: Replies) -> None:
        """Run an exchange: start its clients, wait by the schedule, and hand over what arrived."""
        schedule = self.schedule
        until = None if schedule.deadline is None else self.now + schedule.deadline
        self.versions[stage.number] = self.run.server
        for client in stage.active:
            self._start(stage, client, ledger)
        ended, arrived = list[Flight](), 0
        while self.goal is None or arrived < self.goal:
            if not self.flights and not (schedule.refills and self.expects()):
                break
            if schedule.refills:
                self._refill(stage, ledger)
            if (found := self.wait(stage, until)) is None:
                break
            for flight in found:
                del self.flights[flight.client]
                self._judge(stage, flight)
                self.took_part.add(flight.client)
                arrived += flight.outcome == FOLDED
            ended += found
        ended += self._stop_late()
        self._hand_over(ended, replies, ledger)
        self._close(ended, ledger)

    def _start(self, stage: Stage, client: int, ledger: Ledger) -> None:
        self.flights[client] = self.launch(stage, client, ledger)
        self.flights[client].exchange = stage.exchange.number
        self.took_part.add(client)

    def _refill(self, stage: Stage, ledger: Ledger) -> None:
        """Fill free slots with clients that start from the current version."""
        if not self.free or not (pool := self.eligible()):
            return
        chosen = self.run.propose(stage.number, pool, self.free)
        assert isinstance(stage.assigned, dict)
        stage.assigned.update(
            stage.exchange.server.assign(self.run.server, chosen, self.run.clock(stage.number), self.run.key) or {}
        )
        for client in chosen:
            self._start(stage, client, ledger)

    def _judge(self, stage: Stage, flight: Flight) -> None:
        """Leave out an update that is too stale. The client knows that it arrived."""
        stale = flight.outcome == FOLDED and self.schedule.factor(stage.number - flight.version) is None
        if stale:
            flight.outcome, flight.reply = STALE, flight.reply._replace(data=None)

    def _stop_late(self) -> list[Flight]:
        """Stop the tasks that the schedule does not keep, in client order."""
        late = [] if self.schedule.keeps_late else [self.flights.pop(client) for client in sorted(self.flights)]
        for flight in late:
            self.stop(flight)
        return late

    def _hand_over(self, ended: Sequence[Flight], replies: Replies, ledger: Ledger) -> None:
        """Fold what arrived: in the order of arrival if slots are refilled, else in client order."""
        order = ended if self.schedule.refills else sorted(ended, key=lambda flight: flight.client)
        for flight in order:
            if not flight.delivered:
                self.deliver(flight, replies, ledger)

    def deliver(self, flight: Flight, replies: Replies, ledger: Ledger) -> None:
        """Record what a task cost, and hand over its reply."""
        self.settle(flight, ledger)
        replies.put(flight.client, flight.reply._replace(version=flight.version))
        flight.delivered, flight.reply = True, NOTHING

    def _close(self, ended: Sequence[Flight], ledger: Ledger) -> None:
        """Record the times of the round so far, and drop what no task needs any more."""
        refused = {failure["client"] for failure in ledger.failures}
        for flight in ended:
            flight.outcome = FAILED if flight.client in refused else flight.outcome
        self.account.ended += ended
        ledger.delay = (self.now - self.account.begin) / SECOND
        ledger.notes |= self.account.notes(self.now)
        started = {flight.version for flight in self.flights.values()}
        self.versions = {version: state for version, state in self.versions.items() if version in started}


def check_values(schedule: Schedule, cohort: int) -> None:
    """Refuse a schedule whose methods return what no schedule can."""
    name, factor = type(schedule).__name__, schedule.factor(0)
    slots, goal, deadline = schedule.slots(cohort), schedule.goal(cohort), schedule.deadline

    def whole(value: object) -> bool:
        return isinstance(value, int) and not isinstance(value, bool) and value >= 1

    require(
        (whole(slots), f"{name}.slots must return a whole number, at least 1, got {slots!r}"),
        (goal is None or whole(goal), f"{name}.goal must return a whole number, at least 1, or none, got {goal!r}"),
        (deadline is None or whole(deadline), f"{name}.deadline must be whole nanoseconds, or none, got {deadline!r}"),
        (
            factor is None or 0 <= factor < math.inf,
            f"{name}.factor must return at least 0, or none, got {factor!r}",
        ),
        (schedule.keeps_late or not schedule.refills, f"{name}.keeps_late must be true, since it refills slots"),
    )


def check_schedule(schedule: Schedule, method: BoundMethod, cohort: int) -> None:
    """Refuse a schedule that is wrong, and a method that does not work under it."""
    check_values(schedule, cohort)
    several = len(method.exchanges) > 1 or method.probe is not None
    reason = "its rounds have several exchanges" if several else method.training.unmixable()
    refused = f"aggregates updates from several versions of the model, which this method does not allow: {reason}"
    require(
        (
            method.training.secure is None,
            Mistake("has no times for the phases of secure aggregation: leave out one of them", ABOUT),
        ),
        (not method.pooled, Mistake("is for clients on devices, and this method pools all samples", ABOUT)),
        (
            method.pooled or not (schedule.keeps_late and reason),
            Mistake(f"{refused}: use sync, or deadline with late=drop", ABOUT),
        ),
    )
