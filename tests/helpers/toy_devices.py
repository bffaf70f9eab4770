"""Simulated devices with known times: a channel for tests of schedules."""

from dataclasses import dataclass

from gossamer.core.availability import ALWAYS, FOREVER, NEVER_AGAIN, SECOND, Availability, Interval
from gossamer.core.channel import Channel, Cost, Receipt
from gossamer.core.random import Key
from gossamer.core.types import Clock, Flops


@dataclass(frozen=True)
class Cycle:
    """Available for ``on`` nanoseconds, away for ``off``, and so on; ``shift`` of the first cycle are over at 0."""

    on: int
    off: int
    shift: int

    def interval(self, at: int) -> Interval:
        """Return the interval around ``at``, or the next one."""
        length = self.on + self.off
        start = (at + self.shift) // length * length - self.shift
        if at >= start + self.on:
            start += length
        return Interval(start, start + self.on)


@dataclass(frozen=True)
class ToyDevices(Channel):
    """Devices that are slower the larger their number is, modulo a prime.

    Args:
        leaving: whether most clients are away a third of the time
        pausing: whether clients that leave go on when they are back
        lossy: whether some uploads are lost
        coarse: whether all times are multiples of half a second, so that many events happen at the same time
        speed: operations per second of the fastest devices
        rate: bytes per second of the best downlinks
    """

    leaving: bool = False
    pausing: bool = False
    lossy: bool = False
    coarse: bool = False
    speed: float = 3000.0
    rate: float = 1500.0

    def _cost(self, seconds: float, watts: float, clock: Clock) -> Cost:
        slower = 1 + 0.25 * (int(clock.seconds) % 3)  # the same link is slower at other times
        seconds = round(2 * seconds) / 2 if self.coarse else seconds * slower
        return Cost(seconds, watts * seconds)

    def receive(self, nbytes: int, clock: Clock, key: Key) -> Cost:
        return self._cost(nbytes * (1 + clock.client % 3) / self.rate, 0.2, clock)

    def work(self, flops: Flops, clock: Clock, key: Key) -> Cost:
        return self._cost(flops.useful * (1 + clock.client % 7) / self.speed, 2.0, clock)

    def send(self, nbytes: int, clock: Clock, key: Key) -> Receipt:
        lost = self.lossy and (3 * clock.round + clock.client) % 7 == 2
        return Receipt(not lost, *self._cost(nbytes * (1 + clock.client % 4) / (0.6 * self.rate), 1.0, clock))

    def availability(self, client: int) -> Availability:
        if not self.leaving or client % 5 == 0:
            return ALWAYS
        return Cycle((6 + client % 4) * SECOND, (2 + client % 3) * SECOND, client * 3 * SECOND // 2)

    def pauses(self, client: int) -> bool:
        return self.pausing

    def idle_power(self, client: int) -> float:
        return 0.01 * (1 + client)


@dataclass(frozen=True)
class Listed:
    """Available in the listed intervals, given in seconds; ``None`` as an end is forever."""

    intervals: tuple[tuple[float, float | None], ...]

    def interval(self, at: int) -> Interval:
        """Return the first interval that ends after ``at``."""
        for start, end in self.intervals:
            found = Interval(round(start * SECOND), FOREVER if end is None else round(end * SECOND))
            if found.end > at:
                return found
        return NEVER_AGAIN


@dataclass(frozen=True)
class Scripted(Channel):
    """Devices of which everything is written down.

    Args:
        seconds: download, training and upload of each client
        intervals: when each client is available, in seconds; empty means always
        pausing: whether clients that leave go on when they are back
        lost: clients whose uploads are lost
    """

    seconds: tuple[tuple[float, float, float], ...]
    intervals: tuple[tuple[tuple[float, float | None], ...], ...] = ()
    pausing: bool = False
    lost: tuple[int, ...] = ()

    def receive(self, nbytes: int, clock: Clock, key: Key) -> Cost:
        return Cost(self.seconds[clock.client][0], 1.0)

    def work(self, flops: Flops, clock: Clock, key: Key) -> Cost:
        return Cost(self.seconds[clock.client][1], 10.0)

    def send(self, nbytes: int, clock: Clock, key: Key) -> Receipt:
        return Receipt(clock.client not in self.lost, self.seconds[clock.client][2], 100.0)

    def availability(self, client: int) -> Availability:
        return Listed(self.intervals[client]) if self.intervals else ALWAYS

    def pauses(self, client: int) -> bool:
        return self.pausing

    def idle_power(self, client: int) -> float:
        return 0.5
