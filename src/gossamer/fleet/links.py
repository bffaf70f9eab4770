"""Transfers over a link: how long it takes to send bits from a time on.

A rate is constant, or changes over time by a trace. A trace is piecewise constant, and starts again when it ends. Its
file has one line for each change of the rate:

    seconds,bits_per_second
    0,1000000
    10,0
    70,

The first line is at 0 seconds. A last line without a rate is the end of the trace; without such a line, the last rate
holds for as long as the one before it. JSON lines have the same names: ``{"seconds": 0, "bits_per_second": 1000000}``.
A packet-delivery trace of Mahimahi (Netravali et al., 2015) has one whole number of milliseconds per line, and each
line is an opportunity to deliver 1500 bytes: they are spread evenly over the millisecond before it.

Times are whole nanoseconds and rates whole bits per second, so that the time of a transfer is exact.
"""

import math
from bisect import bisect_left, bisect_right
from collections import Counter
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Protocol

from gossamer.core.availability import SECOND, nanoseconds
from gossamer.core.errors import ConfigError, require, wrong
from gossamer.core.files import digest_of
from gossamer.fleet.tables import content, misplaced, moment, number, rows


class Transfer(Protocol):
    """One direction of a link."""

    def sending(self, bits: int, at: float, attempts: int = 1, pause: float = 0.0) -> float:
        """Return the seconds of sending, from ``at`` seconds on, if it takes several attempts with a pause after each.

        The pauses are not part of the result.
        """
        ...

    @property
    def mean(self) -> float:
        """The mean rate in bits per second."""
        ...


@dataclass(frozen=True)
class FixedRate:
    """A constant rate.

    Args:
        rate: bits per second
    """

    rate: float

    def __post_init__(self) -> None:
        require((self.rate > 0, wrong(self, "rate", "must be positive")))

    def sending(self, bits: int, at: float, attempts: int = 1, pause: float = 0.0) -> float:
        """Return bits over rate."""
        return attempts * bits / self.rate

    @property
    def mean(self) -> float:
        """The rate."""
        return self.rate


COLUMNS = ("seconds", "bits_per_second")
MILLISECOND = SECOND // 1000
PACKET = 8 * 1500
"""Bits of a line in a trace of Mahimahi."""


@dataclass(frozen=True)
class RateTrace:
    """A rate that changes over time, and repeats.

    Args:
        times: nanoseconds at which each rate begins; the first is 0
        rates: bits per second
        period: nanoseconds after which the trace starts again
    """

    times: tuple[int, ...]
    rates: tuple[int, ...]
    period: int
    source: str = field(default="", init=False, compare=False)

    def __post_init__(self) -> None:
        ends = (*self.times[1:], self.period)
        require(
            (len(self.times) == len(self.rates) > 0, "RateTrace must have as many times as rates, and at least one"),
            (self.times[:1] == (0,), "RateTrace.times must begin with 0"),
            (all(a < b for a, b in zip(self.times, ends, strict=True)), "RateTrace.times must increase to the period"),
            (all(rate >= 0 for rate in self.rates), "RateTrace.rates must not be negative"),
            (any(self.rates), "RateTrace has only rates of 0, so that no transfer ever ends: give another trace"),
        )

    def __repr__(self) -> str:
        content = digest_of(repr((self.times, self.rates, self.period)).encode())[:16]
        return f"RateTrace({len(self.times)} steps of {self.period / SECOND:g} s, {content})"

    @classmethod
    def read(cls, path: str | Path) -> "RateTrace":
        """Read a trace from a file."""
        return _parsed(str(Path(path).resolve()), content(path))

    def sending(self, bits: int, at: float, attempts: int = 1, pause: float = 0.0) -> float:
        """Return the seconds that a transfer takes from a time on, and further attempts after a pause each."""
        total = 0.0
        for attempt in range(attempts):
            total += self._seconds(bits, nanoseconds(at + total + attempt * pause))
        return total

    def _seconds(self, bits: int, at: int) -> float:
        """Return the time until ``bits`` are sent: where the integral of the rate has grown by them."""
        if bits == 0:
            return 0.0
        phase = at % self.period
        step = bisect_right(self.times, phase) - 1
        before = self._sent[step] + self.rates[step] * (phase - self.times[step])
        cycles, rest = divmod(before + bits * SECOND - 1, self._sent[-1])  # at the end of a period, not in the next
        last = bisect_left(self._sent, rest + 1) - 1
        rate = self.rates[last]
        whole = cycles * self.period + self.times[last] - phase
        return (whole * rate + rest + 1 - self._sent[last]) / (rate * SECOND)

    @cached_property
    def _sent(self) -> tuple[int, ...]:
        """Bits that are sent until each step begins, and in a whole period, times 10^9."""
        lengths = (end - start for start, end in pairwise((*self.times, self.period)))
        return tuple(accumulate((rate * length for rate, length in zip(self.rates, lengths, strict=True)), initial=0))

    @property
    def mean(self) -> float:
        """The mean rate, in bits per second."""
        return self._sent[-1] / self.period


@lru_cache(maxsize=16)
def _parsed(path: str, data: bytes) -> RateTrace:
    """Return the trace of a file. Cached, because several device types may name the same file."""
    try:
        first = next((line for line in data.splitlines() if line.strip()), b"")
        trace = (_of_packets if first.strip().isdigit() else _of_rates)(path, data)
    except ConfigError as error:
        raise ConfigError(*(text.replace("RateTrace", path, 1) for text in error.mistakes)) from error
    object.__setattr__(trace, "source", path)  # the dataclass is frozen, but not in use yet
    return trace


def _of_rates(path: str, data: bytes) -> RateTrace:
    times: list[int] = []
    rates: list[int] = []
    period = 0
    for row in rows(path, data, COLUMNS):
        if period:
            raise misplaced(path, row.line, "follows the end of the trace, which is a line without a rate")
        time = moment(path, row, COLUMNS[0], 0)
        if (times and time <= times[-1]) or (not times and time):
            raise misplaced(path, row.line, "seconds must begin with 0 and increase")
        if row.values[1] is None and times:
            period = time
            continue
        rates.append(round(number(path, row, COLUMNS[1], 1, lambda x: 0 <= x < math.inf, "a rate, at least 0")))
        times.append(time)
    require(
        (len(times) > 0, f"{path} has no rates: write lines such as 0,1000000"),
        (period > 0 or len(times) > 1, f"{path} has one rate and no end: use up = ... for a constant rate"),
    )
    return RateTrace(tuple(times), tuple(rates), period or 2 * times[-1] - times[-2])


def _of_packets(path: str, data: bytes) -> RateTrace:
    packets: Counter[int] = Counter()
    last = 0
    for line, text in enumerate(data.split(b"\n"), start=1):
        if text.strip():
            if not text.strip().isdigit() or int(text) < last:
                raise misplaced(
                    path, line, f"must be whole milliseconds that do not decrease, got {text.decode('latin1')!r}"
                )
            last = int(text)
            packets[max(last, 1)] += 1
    require((last > 0, f"{path} ends at 0 ms: a trace of Mahimahi must have a length"))
    starts, rates = [0], [0]
    for slot, count in packets.items():
        for start, rate in ((slot - 1, count * PACKET * 1000), (slot, 0)):
            if starts[-1] == start:
                starts.pop(), rates.pop()
            if start < last and (not rates or rates[-1] != rate):
                starts.append(start)
                rates.append(rate)
    return RateTrace(tuple(start * MILLISECOND for start in starts), tuple(rates), last * MILLISECOND)
