"""What a virtual clock keeps: events in their order, the times of a task, and which clients are available.

Events are ordered by time, then by kind, by client, and by the order in which they were added. So the order does not
depend on how clients are trained. A task has phases: download, training and upload, with their times and energy on a
device and its links. A ``Roster`` knows who is available, as time goes on.
"""

import heapq
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

from gossamer.core.availability import FOREVER, Availability, nanoseconds
from gossamer.core.channel import Channel, Cost, Receipt
from gossamer.engines.client import ClientResult, ClientTask
from gossamer.engines.dispatch import Flight


class Kind(IntEnum):
    """What happens, in the order in which it happens at one time.

    ``READY`` is not visible: from this time on, the clock cannot go on without the result of a task's training.
    Clients leave and come back before tasks end, so that a client that leaves at this time does not start at it.
    """

    READY = 0
    AWAY = 1
    BACK = 2
    ARRIVED = 3
    LOST = 4
    LEFT = 5
    FAILED = 6


CHANGES = (Kind.AWAY, Kind.BACK)
"""Events that change which clients are available."""


class Event(NamedTuple):
    """Something that happens to a client.

    Args:
        time: nanoseconds from the start of the run
        kind: what happens
        client: the client
        sequence: the number of the event, in the order in which events were added
    """

    time: int
    kind: Kind
    client: int
    sequence: int


class EventQueue:
    """Events in their order."""

    def __init__(self) -> None:
        self._heap: list[Event] = []
        self._added = 0

    @property
    def taken(self) -> int:
        """The number of events that were removed."""
        return self._added - len(self._heap)

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, time: int, kind: Kind, client: int) -> int:
        """Add an event, and return its number."""
        self._added += 1
        heapq.heappush(self._heap, Event(time, kind, client, self._added))
        return self._added

    @property
    def next(self) -> Event:
        """The next event."""
        return self._heap[0]

    def pop(self) -> Event:
        """Remove the next event, and return it."""
        return heapq.heappop(self._heap)


Worked = Callable[[int, int], int]
"""How long a client works from one time to another."""


class Phase(NamedTuple):
    """A part of a task.

    Args:
        begin: its start, in nanoseconds
        end: its end, if the task lasts until then
        cost: its time and energy, if the task lasts until its end
    """

    begin: int
    end: int
    cost: Cost

    def until(self, time: int, worked: Worked) -> Cost:
        """Return what it has cost until a time, in proportion to the work.

        >>> Phase(0, 4_000_000_000, Cost(4.0, 1.0)).until(2_000_000_000, lambda begin, end: end - begin)
        Cost(seconds=2.0, joules=0.5)
        """
        if time >= self.end:
            return self.cost
        if time <= self.begin:
            return Cost()
        share = worked(self.begin, time) / nanoseconds(self.cost.seconds)
        return Cost(share * self.cost.seconds, share * self.cost.joules)


NO_PHASE = Phase(0, 0, Cost())


@dataclass(eq=False)
class TimedFlight(Flight):
    """A task with virtual times.

    Args:
        download: the download
        work: training; before it is done, as long as it takes at least
        upload: the upload
        leaves: when the client leaves, and loses its work
        trained: whether the result of training is known
        result: the result of training, without message and client state; none if there is none
        receipt: what became of the upload; none if there is none
        event: the number of the next event of the task
        client_task: what the client is to do, as long as it waits for training; none if it is made again
    """

    download: Phase = NO_PHASE
    work: Phase = NO_PHASE
    upload: Phase = NO_PHASE
    leaves: int = 0
    trained: bool = False
    result: ClientResult | None = None
    receipt: Receipt | None = None
    event: int = 0
    client_task: ClientTask | None = None

    @property
    def sent(self) -> Receipt | None:
        """The receipt of an upload that was sent whole; none if there was none, or if it was interrupted."""
        return self.receipt if self.upload.end <= self.end else None

    def close(self, worked: Worked) -> tuple[Cost, Cost, Cost]:
        """Set the other times and the energy of a task whose end is known. Return the costs of its phases."""
        self.received = self.download.end if self.download.end <= self.end else None
        self.computed = self.work.end if self.result is not None and self.work.end <= self.end else None
        download, work, upload = (phase.until(self.end, worked) for phase in (self.download, self.work, self.upload))
        self.joules = download.joules + work.joules + upload.joules
        return download, work, upload


Sizes = Mapping[int, int]


class Roster:
    """The clients without a task that are available now, kept up to date by events.

    ``idle`` has all of them, and ``eligible`` those that have not taken part in the round.

    Args:
        channel: the channel, which may know when devices are available
        sizes: the number of samples of each client
        queue: the queue for the times at which clients leave and come back
        busy: whether a client has a task
        took_part: whether a client has taken part in the round
    """

    def __init__(
        self,
        channel: Channel,
        sizes: Sizes,
        queue: EventQueue,
        busy: Callable[[int], bool],
        took_part: Callable[[int], bool],
    ) -> None:
        self.channel = channel
        self.sizes, self.queue, self.busy, self.took_part = sizes, queue, busy, took_part
        self.idle: dict[int, int] = {}
        self.eligible: dict[int, int] = {}
        self._known: dict[int, Availability] = {}

    def begin_round(self) -> None:
        """Let every client take part again."""
        self.eligible = dict(self.idle)

    def availability(self, client: int) -> Availability:
        """Return when a client is available."""
        if client not in self._known:
            self._known[client] = self.channel.availability(client)
        return self._known[client]

    def follow(self, client: int, now: int) -> None:
        """Note whether a client is available, and add its next change to the queue."""
        interval = self.availability(client).interval(now)
        here = interval.start <= now
        if here and not self.busy(client):
            self.idle[client] = self.sizes[client]
            if not self.took_part(client):
                self.eligible[client] = self.sizes[client]
        elif not here:
            self.occupy(client)
        change = interval.end if here else interval.start
        if change < FOREVER:
            self.queue.add(change, Kind.AWAY if here else Kind.BACK, client)

    def occupy(self, client: int) -> None:
        """Note that a client has a task, or is away."""
        self.idle.pop(client, None)
        self.eligible.pop(client, None)

    def release(self, client: int, now: int) -> None:
        """Note that the task of a client has ended."""
        if self.availability(client).interval(now).start <= now:
            self.idle[client] = self.sizes[client]

    def leaves(self, client: int, now: int) -> int:
        """Return when a client leaves and loses its work: now if it is away, ``FOREVER`` if it does not."""
        if self.channel.pauses(client):
            return FOREVER
        interval = self.availability(client).interval(now)
        return interval.end if interval.start <= now else now

    def returns(self, client: int, now: int) -> bool:
        """Return whether a client is available now or later."""
        return self.availability(client).interval(now).start < FOREVER

    def gone(self, client: int, now: int) -> int:
        """Return when a client leaves for the last time."""
        while self.returns(client, now):
            now = self.availability(client).interval(now).end
        return now

    def after(self, client: int, at: int, duration: int) -> int:
        """Return the end of some work that begins at ``at``; work pauses while the client is away, if it goes on."""
        if not duration or not self.channel.pauses(client):
            return at + duration
        known = self.availability(client)
        while at < FOREVER:
            interval = known.interval(at)
            at = max(at, interval.start)
            if interval.end - at >= duration:
                return at + duration
            duration -= interval.end - at
            at = interval.end
        return FOREVER

    def worked(self, client: int, begin: int, end: int) -> int:
        """Return how long a client works from one time to another: all the time, or as long as it is available."""
        if not self.channel.pauses(client):
            return end - begin
        known, total = self.availability(client), 0
        while begin < end:
            interval = known.interval(begin)
            total += max(0, min(end, interval.end) - max(begin, interval.start))
            begin = interval.end
        return total
