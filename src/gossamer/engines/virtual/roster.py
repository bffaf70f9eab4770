"""Which clients are available, as time goes on."""

from collections.abc import Callable, Mapping

from gossamer.core.availability import FOREVER, Availability
from gossamer.core.channel import Channel
from gossamer.engines.virtual.events import Event, EventQueue, Kind

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

    def open(self, now: int) -> None:
        """Find out who is available, and add the next change of each client to the queue."""
        for client in self.sizes:
            self._follow(client, now)

    def begin_round(self) -> None:
        """Let every client take part again."""
        self.eligible = dict(self.idle)

    def availability(self, client: int) -> Availability:
        """Return when a client is available."""
        if client not in self._known:
            self._known[client] = self.channel.availability(client)
        return self._known[client]

    def pauses(self, client: int) -> bool:
        """Return whether a client that leaves goes on when it is back."""
        return self.channel.pauses(client)

    def idle_power(self, client: int) -> float:
        """Return the watts of a client that waits."""
        return self.channel.idle_power(client)

    def _follow(self, client: int, now: int) -> None:
        """Note whether a client is available, and when that changes."""
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

    def change(self, event: Event) -> None:
        """Let a client leave or come back."""
        self._follow(event.client, event.time)

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
        if self.pauses(client):
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
        if not duration or not self.pauses(client):
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
        if not self.pauses(client):
            return end - begin
        known, total = self.availability(client), 0
        while begin < end:
            interval = known.interval(begin)
            total += max(0, min(end, interval.end) - max(begin, interval.start))
            begin = interval.end
        return total
