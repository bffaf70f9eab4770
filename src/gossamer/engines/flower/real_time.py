"""Tasks on Flower nodes under a schedule: the clock is that of the server's machine.

A task is in flight from the time at which its message is sent until the server has the reply. The server asks the
SuperLink for replies again and again, and for the list of nodes from time to time. A task ends in one of these ways:

- Its reply arrives, and is checked against the version of the model that the task started from.
- There is no reply within the deployment's ``deadline``: it has failed.
- Its node is no longer connected: the client has left.
- The schedule does not wait for it: it is cancelled. The node goes on and does not know. It gets no other task before
  its reply has arrived, which is ignored, or is overdue.

A node has at most one message at a time, so it never runs two tasks. What is in flight when the server dies is lost:
the nodes count their uploads as lost ones, and start again from the version of the resumed run.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from flwr.app import MessageType, RecordDict

from gossamer.core.availability import SECOND, nanoseconds
from gossamer.core.errors import RunError
from gossamer.core.schedule import Schedule
from gossamer.core.wire import Body
from gossamer.engines.dispatch import CANCELLED, FAILED, FOLDED, LEFT, Dispatcher, Flight, Host
from gossamer.engines.flower.fleet import NOT_ACCEPTED, NodePool, NodeReply, no_reply, pause
from gossamer.engines.flower.messages import CheckedReply
from gossamer.engines.flower.node import OUT_OF_STEP
from gossamer.engines.flower.settings import Settings
from gossamer.engines.inbox import ClientReply, Replies
from gossamer.engines.metrics import Ledger
from gossamer.engines.stage import Stage
from gossamer.runs.records import Record

LOOK = 5 * SECOND
"""Nanoseconds between two requests for the list of nodes."""

GONE, BUSY = "the node is no longer connected", "the node still runs an earlier task"
"""Why there is no reply."""

LATE = "late"
"""The kind of bytes in replies that the server did not wait for."""

UNHEARD = ClientReply(silent=True)
"""The reply of a client whose task was stopped, or that has left."""


class Deployed(Host, Protocol):
    """A deployed run, as its clock sees it.

    Args:
        fleet: the nodes
        settings: the settings of the deployment
        metrics: the records so far
        left_out: clients that are left out of the rest of the run
        anew: clients that have to start over
    """

    fleet: NodePool
    settings: Settings
    metrics: list[Record]
    left_out: dict[int, str]
    anew: set[int]

    def client_task(
        self, stage: Stage, client: int, common: dict[int, Body | None], ledger: Ledger | None, **more: Any
    ) -> RecordDict:
        """Return the content of the message to a client."""
        ...

    def check_task(self, stage: Stage, client: int, reply: NodeReply, samples: int) -> CheckedReply:
        """Check the reply to a task of a stage. ``samples`` is the client's number of samples."""
        ...


class Outstanding(NamedTuple):
    """A message without a reply: its client and node, and the time at which the reply is overdue."""

    client: int
    node: int
    overdue: int


@dataclass(eq=False)
class NodeTask(Flight):
    """A task on a node.

    Args:
        number: the number of its message
        samples: the client's number of samples
        answer: the node's reply, or why there is none; none as long as neither is known
        checked: the reply after it was checked
    """

    number: str = ""
    samples: int = 0
    answer: NodeReply | None = None
    checked: CheckedReply | None = None

    def hear(self, now: int, answer: NodeReply) -> None:
        """Note the reply, or why there is none."""
        self.end, self.answer = now, answer


class RealTime(Dispatcher):
    """Tasks in flight on Flower nodes.

    Args:
        run: the deployed run
        schedule: the schedule
        clock: returns the time in nanoseconds, from any start
        sleep: waits some seconds
    """

    run: Deployed
    flights: dict[int, NodeTask]  # type: ignore[assignment]

    def __init__(
        self,
        run: Deployed,
        schedule: Schedule,
        clock: Callable[[], int] = time.monotonic_ns,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        super().__init__(run, schedule)
        self.clock, self.sleep = clock, sleep
        self.outstanding: dict[str, Outstanding] = {}
        self.common: dict[int, Body | None] = {}
        self.late_bytes = 0
        self._zero: int | None = None
        self._heard = self._looked = 0
        self._offered: set[int] = set()

    # Time.

    @property
    def now(self) -> int:
        """Nanoseconds from the start of the run. The time between the end of a server and its restart does not count.

        Before the first round, it is the time of the last record.
        """
        before = nanoseconds(self.run.metrics[-1]["time"]) if self._zero is None and self.run.metrics else 0
        return before if self._zero is None else self.clock() - self._zero

    def begin_round(self) -> None:
        """Begin a round; before the first, start the clock."""
        if self._zero is None:
            self._zero = self.clock() - self.now
        super().begin_round()

    def _rest(self, until: int | None) -> None:
        """Wait a moment, at most until a time."""
        now = self.now
        longest = pause((now - self._heard) / SECOND)
        self.sleep(longest if until is None else max(0.0, min(longest, (until - now) / SECOND)))

    # Clients.

    @property
    def busy(self) -> set[int]:
        """The clients whose nodes have a task, whether the server waits for it or not."""
        return {*self.flights, *(each.client for each in self.outstanding.values())}

    def idle(self) -> Mapping[int, int]:
        """Return the connected clients without a task, with their numbers of samples."""
        busy, peers = self.busy, sorted(self.run.fleet.peers.items())
        return {c: peer.samples for c, peer in peers if c not in busy and c not in self.run.left_out}

    def eligible(self) -> Mapping[int, int]:
        """Return the clients that can be sampled, and remember them."""
        found = super().eligible()
        self._offered = set(found)
        return found

    def gather(self, needed: int) -> Mapping[int, int]:
        """Wait until enough clients can be sampled, and return them; raise after the ``wait`` of the settings."""
        wait = self.run.settings.wait
        until, self._looked = self.now + nanoseconds(wait), self.now - LOOK
        self._hear()
        while len(found := self.eligible()) < needed:
            if self.now >= until:
                raise RunError(
                    f"{len(found)} of {needed} clients were connected and had no task after {wait:g} s, "
                    f"{len(self.busy)} still train: start more SuperNodes, or use fewer clients"
                )
            self._rest(until)
            self._hear()
        return found

    # Tasks.

    def exchange(self, stage: Stage, ledger: Ledger, replies: Replies) -> None:
        """Run an exchange, and count the bytes of replies that came too late."""
        self.common = {}
        super().exchange(stage, ledger, replies)
        if self.late_bytes:
            ledger.up[LATE] += self.late_bytes
        self.late_bytes = 0

    def launch(self, stage: Stage, client: int, ledger: Ledger) -> NodeTask:
        """Send a client its task."""
        task, peer = NodeTask(client, stage.number, self.now), self.run.fleet.peers.get(client)
        if peer is None or client in self.busy:
            task.hear(task.start, NodeReply(0, None, GONE if peer is None else BUSY))
            return task
        task.samples = peer.samples
        with ledger.time("download"):
            number = stage.exchange.number
            records = self.run.client_task(stage, client, self.common, ledger, exchange=number)
        deadline = self.run.settings.deadline
        task.number = self.run.fleet.push(MessageType.TRAIN, peer.node, records, deadline)
        if task.number:
            self.outstanding[task.number] = Outstanding(client, peer.node, task.start + nanoseconds(deadline))
        else:
            task.hear(task.start, NodeReply(peer.node, None, NOT_ACCEPTED))
        return task

    def wait(self, stage: Stage, until: int | None) -> Sequence[Flight] | None:
        """Wait until a task ends, or another client is connected that can fill a free slot."""
        while True:
            self._hear()
            ended = [task for task in self.flights.values() if task.answer is not None]
            if ended:
                first = min(ended, key=lambda task: (task.end, task.client))
                self._judge_reply(stage, first)
                return [first]
            if until is not None and self.now >= until:
                return None
            if self.schedule.refills and self.free and set(super().eligible()) - self._offered:
                return []
            if not self.flights:
                return None
            self._rest(until)

    def _judge_reply(self, stage: Stage, task: NodeTask) -> None:
        """Check the reply of a task that has ended."""
        assert task.answer is not None
        if task.answer.fault == GONE:
            task.finish(task.end, LEFT, UNHEARD)
            return
        at = stage
        if task.version != stage.number:
            at = stage.earlier(task.version, self.versions[task.version], [task.client])
        task.checked = self.run.check_task(at, task.client, task.answer, task.samples)
        reply = task.checked.reply
        task.finish(task.end, FAILED if reply.failure else FOLDED, reply)

    def stop(self, flight: Flight) -> None:
        """Do not wait for a task any more. Its node gets no other one before it has replied."""
        assert isinstance(flight, NodeTask)
        if flight.answer is not None:
            self._ignore(flight.client, flight.answer)
        flight.finish(self.now, CANCELLED, UNHEARD)

    def settle(self, flight: Flight, ledger: Ledger) -> None:
        """Record what the reply of a task cost."""
        assert isinstance(flight, NodeTask)
        if flight.checked is not None:
            flight.checked.note(flight.client, ledger)

    # Replies.

    def _hear(self) -> None:
        """Take the replies that have arrived; notice replies that are overdue, and nodes that are gone."""
        fleet = self.run.fleet
        answers = fleet.pull({number: each.node for number, each in self.outstanding.items()})
        if self.now >= self._looked + LOOK or any(answer.message is None for answer in answers.values()):
            fleet.look()
            self._looked = self.now
        else:
            fleet.listen()
        now = self.now
        for number, each in list(self.outstanding.items()):
            answer, peer = answers.get(number), fleet.peers.get(each.client)
            if answer is None or answer.message is None:
                if peer is None or peer.node != each.node:
                    answer = NodeReply(each.node, None, GONE)
                elif answer is None and now >= each.overdue:
                    answer = NodeReply(each.node, None, no_reply(self.run.settings.deadline))
            if answer is None:
                continue
            del self.outstanding[number]
            self._heard = now
            task = self.flights.get(each.client)
            if task is not None and task.number == number:
                task.hear(now, answer)
            else:
                self._ignore(each.client, answer)

    def _ignore(self, client: int, answer: NodeReply) -> None:
        """Count the bytes of a reply that the server did not wait for."""
        self.late_bytes += answer.nbytes
        if answer.flag(OUT_OF_STEP):
            self.run.anew.add(client)
