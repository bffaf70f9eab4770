"""A simulation on a virtual clock: tasks begin and end by the device, the links and the availability of their client.

The clock goes from event to event. Training has to be done before the clock passes the time at which the task could
have finished it, and not before. So a task waits until its result is needed. It is then trained together with all
others that started from the same version, whatever their virtual ends are. The wait is exact: the download is made when
the task starts, and the number of local steps is known, so the earliest end of training follows from the device. What
is known only after training (the size of a coded message, further operations) can only make the task longer.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Protocol

import torch

from gossamer.core.availability import FOREVER, SECOND, nanoseconds
from gossamer.core.binding import BoundMethod
from gossamer.core.bound import BoundExchange
from gossamer.core.channel import Channel, Cost
from gossamer.core.errors import RunError
from gossamer.core.jobs import SILENT, own_key
from gossamer.core.random import Key, fold
from gossamer.core.schedule import Schedule
from gossamer.core.types import Clock, Flops, State
from gossamer.core.wire import Body
from gossamer.engines.client import Client, ClientResult, ClientTask, Failure, TaskOutcome
from gossamer.engines.dispatch import CANCELLED, FAILED, FOLDED, LEFT, LOST, NOTHING, Dispatcher, Flight, Host
from gossamer.engines.inbox import FAILED_ON_PURPOSE, ClientReply, Replies
from gossamer.engines.metrics import Ledger
from gossamer.engines.stage import Stage
from gossamer.engines.virtual.events import CHANGES, Event, EventQueue, Kind, Phase, Roster, TimedFlight
from gossamer.runs.records import Record

ENTRY = "virtual_time"
"""The entry of a checkpoint."""

SMALL = 4096
"""Bytes of a client's own piece of a download up to which its task is kept until it is trained, if it has no state."""

IN_FLIGHT = ("client", "version", "start")
"""What a checkpoint keeps of a task in flight: it is trained again."""

ENDS = {FOLDED: Kind.ARRIVED, LOST: Kind.LOST, LEFT: Kind.LEFT, FAILED: Kind.FAILED}


class Simulated(Host, Protocol):
    """A simulation, as its clock sees it.

    Args:
        method: the method
        metrics: the records so far
        excluded: the clients that are not sampled any more
    """

    method: BoundMethod
    metrics: list[Record]
    excluded: Sequence[int]

    def client_task(
        self, stage: Stage, client: int, common: dict[int, Body | None]
    ) -> tuple[ClientTask, dict[str, int]]:
        """Return the task of a client, and the bytes of its download by kind."""
        ...

    def client_of(self, exchange: BoundExchange) -> Client:
        """Return what runs the tasks of an exchange one at a time."""
        ...

    def trained(self, stage: Stage, tasks: Callable[[Stage], Iterator[ClientTask]]) -> Iterator[TaskOutcome]:
        """Train the clients of a stage, and return their uploads as they are made."""
        ...

    def fails(self, client_task: ClientTask) -> bool:
        """Return whether a client fails on purpose."""
        ...


class VirtualTime(Dispatcher):
    """Tasks in flight on a virtual clock.

    Args:
        run: the simulation
        schedule: the schedule
        channel: the devices and links of the run
        sizes: the number of samples of each client
    """

    run: Simulated
    flights: dict[int, TimedFlight]  # type: ignore[assignment]

    def __init__(self, run: Simulated, schedule: Schedule, channel: Channel, sizes: Mapping[int, int]) -> None:
        super().__init__(run, schedule)
        self.channel, self.queue = channel, EventQueue()
        busy, took_part = (lambda client: client in self.flights), (lambda client: client in self.took_part)
        self.roster = Roster(channel, sizes, self.queue, busy, took_part)
        self.common: dict[int, dict[int, Body | None]] = {}
        self.certain: tuple[Replies, Ledger] | None = None
        self._now, self._open, self._kept = 0, False, list[tuple[int, int, int]]()

    # Time.

    @property
    def now(self) -> int:
        """The virtual time."""
        return self._now

    def idle(self) -> Mapping[int, int]:
        """Return the available clients without a task. If nobody has a task, wait for somebody."""
        while not self.roster.idle and not self.flights:
            if not self.queue:
                raise RunError(f"no client is available after {self._now / SECOND:,.0f} s of virtual time")
            event = self.queue.pop()
            if event.kind in CHANGES:  # others are of tasks that were stopped
                self._turn(event)
        return self.roster.idle

    def eligible(self) -> Mapping[int, int]:
        """Return the clients that can be sampled. They are known, and not searched: this is asked after each task."""
        self.idle()
        return self.roster.eligible

    def expects(self) -> bool:
        """Return whether a client that has not taken part in this round will be available."""
        out = {*self.took_part, *self.run.excluded}
        return any(client not in out and self.roster.returns(client, self._now) for client in self.roster.sizes)

    def begin_round(self) -> None:
        """Begin a round; before the first, find out who is available, and start tasks again that were in flight."""
        if not self._open:
            self._open = True
            for client in self.roster.sizes:
                self.roster.follow(client, self._now)
            stage = Stage(self.run.method.training, len(self.run.metrics), {})
            for client, version, start in self._kept:
                self.flights[client] = flight = TimedFlight(client, version, start)
                self._schedule(flight, stage.earlier(version, self.versions[version], [client]), None)
        super().begin_round()
        self.roster.begin_round()

    def _turn(self, event: Event) -> bool:
        """Let all clients leave or come back that do so at the time of an event. Return whether any came back."""
        self._now, changes = event.time, [event]
        while self.queue and self.queue.next.time == event.time and self.queue.next.kind in CHANGES:
            changes.append(self.queue.pop())
        for change in changes:
            self.roster.follow(change.client, change.time)
        return any(change.kind == Kind.BACK for change in changes)

    def exchange(self, stage: Stage, ledger: Ledger, replies: Replies) -> None:
        """Run an exchange. If nothing can stop a task that is trained, its reply is handed over at once."""
        self.certain = (replies, ledger) if self.goal is None and not self.schedule.keeps_late else None
        super().exchange(stage, ledger, replies)
        self.common = {version: common for version, common in self.common.items() if version in self.versions}

    def wait(self, stage: Stage, until: int | None) -> Sequence[Flight] | None:
        """Go from event to event until a task ends, or another client is available."""
        while self.queue and (until is None or self.queue.next.time <= until):
            event = self.queue.pop()
            if event.kind == Kind.READY:
                self._need(stage, event, until)
            elif event.kind in CHANGES:
                if self._turn(event) and self.schedule.refills:
                    return []
            elif (flight := self.flights.get(event.client)) is not None and flight.event == event.sequence:
                self._now = event.time
                self.roster.release(event.client, self._now)
                return [flight]
        self._now = self._now if until is None else until
        return None

    # Tasks.

    def launch(self, stage: Stage, client: int, ledger: Ledger) -> TimedFlight:
        """Start a task: make its download, and find out when its training is needed."""
        flight = TimedFlight(client, stage.number, self._now)
        self._schedule(flight, stage, ledger)
        return flight

    def _schedule(self, flight: TimedFlight, stage: Stage, ledger: Ledger | None) -> None:
        """Add the event from which on the result of a task is needed. A ledger counts the bytes of the download."""
        client, start = flight.client, flight.start
        self.roster.occupy(client)
        client_task, kinds = self.run.client_task(stage, client, self.common.setdefault(flight.version, {}))
        small = not client_task.state and len(client_task.data.single) <= SMALL
        flight.client_task = client_task if small else None
        if ledger is not None:
            ledger.down.update(kinds)
        clock, key = self._at(client_task, start)
        flight.leaves = self.roster.leaves(client, start)
        flight.download = self._phase(
            client, start, self.channel.receive(sum(kinds.values()), clock, fold(key, "download"))
        )
        if self.run.fails(client_task):
            self._end(flight, flight.download.end, FAILED, FAILED_ON_PURPOSE)
            return
        try:
            begin = flight.download.end  # of training, which takes at least as long as its operations
            if self._looks_ahead or self.roster.leaves(client, begin) != FOREVER:
                least = self.run.client_of(stage.exchange).least_flops(client_task)
                flight.work = self._work(client_task, begin, least)
            else:
                flight.work = Phase(begin, begin, Cost())
        except Exception as error:  # one of the client's samples, on which operations are counted
            self._end(flight, flight.download.end, FAILED, ClientReply(failure=Failure.of(error)))
            return
        if flight.leaves < flight.work.end or flight.work.end == FOREVER:
            self._end(flight, flight.work.end, LEFT)
        else:
            flight.event = self.queue.add(flight.work.end if self._looks_ahead else start, Kind.READY, client)

    @property
    def _looks_ahead(self) -> bool:
        """Whether it matters when the result of a task is needed: not if all tasks of a round are waited for."""
        return self.schedule.refills or self.schedule.deadline is not None

    def _work(self, client_task: ClientTask, begin: int, flops: Flops) -> Phase:
        """Return the time of training."""
        clock, key = self._at(client_task, begin)
        return self._phase(clock.client, begin, self.channel.work(flops, clock, fold(key, "work")))

    def _phase(self, client: int, begin: int, cost: Cost) -> Phase:
        if begin < FOREVER and not cost.seconds < (FOREVER - begin) / SECOND:
            raise RunError(
                f"client {client} needs {cost.seconds:.3g} s for a transfer or for training, and virtual time ends "
                "after 146 years: check the speed and the rates of its device"
            )
        return Phase(begin, self.roster.after(client, begin, nanoseconds(cost.seconds)), cost)

    def _at(self, client_task: ClientTask, time: int) -> tuple[Clock, Key]:
        """Return the clock of a task at a time, and the key of its client."""
        return client_task.clock._replace(seconds=time / SECOND), own_key(client_task.key, client_task.clock)

    def _end(self, flight: TimedFlight, time: int, outcome: str, reply: ClientReply = NOTHING) -> None:
        """Note how a task ends, and add the event. A client that leaves before ends there."""
        if time == FOREVER:
            flight.leaves = self.roster.gone(flight.client, flight.start)
        if flight.leaves < time:
            time, outcome, reply = flight.leaves, LEFT, NOTHING
        flight.finish(time, outcome, reply)
        flight.trained, flight.event = True, self.queue.add(time, ENDS[outcome], flight.client)

    # Training.

    def _need(self, stage: Stage, event: Event, until: int | None) -> None:
        """Train a task whose result is needed now, together with others from the same version."""
        flight = self.flights.get(event.client)
        if flight is None or flight.event != event.sequence:
            return  # it is of a task that was stopped, or that was trained with others
        horizon = FOREVER if until is None or self.schedule.keeps_late else until
        alike = [each for each in self.flights.values() if each.version == flight.version and not each.trained]
        clients = [each.client for each in alike if each.work.end <= horizon]
        state = self.versions[flight.version]
        at = stage if flight.version == stage.number else stage.earlier(flight.version, state, clients)
        for client_task, result in self.run.trained(at.only(sorted(clients)), self._tasks):
            trained = self.flights[client_task.clock.client]
            self._trained(trained, client_task, result)
            if self.certain is not None and trained.end <= horizon:
                self.deliver(trained, *self.certain)

    def _tasks(self, stage: Stage) -> Iterator[ClientTask]:
        """Yield the tasks of a stage; those that would need memory while they wait are made again."""
        common = self.common.setdefault(stage.number, {})
        for client in stage.active:
            kept, self.flights[client].client_task = self.flights[client].client_task, None
            yield kept or self.run.client_task(stage, client, common)[0]

    def _trained(self, flight: TimedFlight, client_task: ClientTask, result: ClientResult | Failure) -> None:
        """Find out when a trained task ends, and how."""
        if isinstance(result, Failure):
            self._end(flight, flight.work.end, FAILED, ClientReply(failure=result))
            return
        flight.work = self._work(client_task, flight.download.end, result.flops)
        begin, data = flight.work.end, result.sent.data
        if data:
            clock, key = self._at(client_task, begin)
            receipt = self.channel.send(len(data), clock, fold(key, "channel"))
            flight.upload = self._phase(flight.client, begin, Cost(receipt.seconds, receipt.joules))
            flight.receipt = receipt
            reply = ClientReply(data if receipt.delivered else None, result.state)
            self._end(flight, flight.upload.end, FOLDED if receipt.delivered else LOST, reply)
        else:
            self._end(flight, begin, FOLDED, ClientReply(None, result.state))
        flight.result = result._replace(sent=result.sent._replace(data=SILENT.data), state={})

    # The end of a task.

    def stop(self, flight: Flight) -> None:
        """Stop a task now."""
        flight.finish(self._now, CANCELLED)
        self.roster.release(flight.client, self._now)

    def settle(self, flight: Flight, ledger: Ledger) -> None:
        """Record what a task cost: what was not finished, in proportion to its time."""
        assert isinstance(flight, TimedFlight)
        download, work, upload = flight.close(partial(self.roster.worked, flight.client))
        ledger.receive(flight.client, {}, download)
        ledger.work(flight.client, work)
        result, receipt = flight.result, flight.sent
        if result is not None and flight.computed is not None:
            ledger.train(result.loss, result.flops)
            ledger.report(result.sent.figures)
        if result is not None and receipt is not None:
            ledger.send(flight.client, result.sent.kinds, receipt, result.delivery)
        else:
            ledger.interrupt(flight.client, upload)

    def _close(self, ended: Sequence[Flight], ledger: Ledger) -> None:
        """Record also the energy of clients that wait for the end of the round, and have not left."""
        for flight in ended if not self.schedule.refills else ():
            if flight.outcome != LEFT:
                waited = (self._now - flight.end) / SECOND
                ledger.idle(flight.client, self.channel.idle_power(flight.client) * waited)
        super()._close(ended, ledger)

    # Checkpoints.

    def state(self) -> State:
        """Return the entry of a checkpoint: the time, tasks in flight by version, and these versions."""
        flights = sorted(self.flights.values(), key=lambda flight: (flight.start, flight.client))
        columns = {name: torch.tensor([getattr(f, name) for f in flights], dtype=torch.int64) for name in IN_FLIGHT}
        versions = {str(version): state for version, state in self.versions.items()}
        return {ENTRY: {"now": torch.tensor(self._now), **columns, "versions": versions}}

    def recall(self, state: State) -> None:
        """Continue from the entry of a checkpoint, and remove it from the state."""
        kept: State = state.pop(ENTRY)
        self._now = int(kept["now"])
        self.versions = {int(version): found for version, found in kept.get("versions", {}).items()}
        self._kept = list(zip(*(kept[name].tolist() for name in IN_FLIGHT), strict=True))
