"""When clients are available: always, Markov on and off times, day and night, and traces.

A model describes a device type, as ``availability`` in a fleet file: ``markov:on=10min,off=30min``. Its ``of_client``
returns the intervals of one client of a run. They follow from the run's key and the client's number.

Markov on and off times are exponentially distributed. A client is available at the start of a run with probability
on / (on + off), and the remaining time of the first state is exponentially distributed too: the process is stationary.

Days begin at midnight in a client's time zone, and a run starts at midnight UTC. A client in the zone UTC+2 is two
hours ahead: its 22:00 is 20:00 UTC.

A trace is a file with the times at which clients are available, in seconds from the start of the run:

    client,start,end
    0,0,3600
    0,7200,9000
    1,1800,5400

JSON lines have the same names. The lines of a client may stand anywhere in the file, and its times must not overlap. A
column ``repeat`` has the seconds after which the client's times repeat; without one, a client does not come back after
its last line.
"""

import math
from abc import ABC, abstractmethod
from array import array
from bisect import bisect_right
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Literal, NamedTuple

import torch

from gossamer.core.availability import ALWAYS, FOREVER, NEVER_AGAIN, Availability, Interval
from gossamer.core.errors import require, wrong
from gossamer.core.fields import CheckedFields
from gossamer.core.files import digest_of
from gossamer.core.random import Key, fold, uniform
from gossamer.core.specs import fields_of, parse, texts, written
from gossamer.fleet.tables import content, misplaced, moment, rows
from gossamer.fleet.units import DAY, HOUR, Duration, TimeOfDay, Zones

__all__ = ["MODELS", "AlwaysAvailable", "AvailabilityModel", "AvailabilityTrace", "Daily", "Markov", "read_model"]


class AvailabilityModel(CheckedFields, ABC):
    """When the clients with a device are available."""

    @abstractmethod
    def of_client(self, client: int, key: Key) -> Availability:
        """Return the availability of a client. ``key`` is the client's own."""

    @abstractmethod
    def to_text(self) -> str:
        """Return the model as a fleet file has it."""


BLOCK = 32


class Numbers:
    """The uniform numbers of a key, in [0, 1). A block of them is kept, because drawing single ones is slow.

    Args:
        key: the key
    """

    def __init__(self, key: Key) -> None:
        self._key, self._block, self._kept = key, -1, [0.0]

    def __getitem__(self, index: int) -> float:
        block, place = divmod(index, BLOCK)
        if block != self._block:
            drawn = uniform(self._key, BLOCK, dtype=torch.float64, start=block * BLOCK)
            self._block, self._kept = block, drawn.tolist()
        return self._kept[place]


@dataclass(frozen=True)
class AlwaysAvailable(AvailabilityModel):
    """Clients that are always available."""

    def of_client(self, client: int, key: Key) -> Availability:
        """Return an interval without an end."""
        return ALWAYS

    def to_text(self) -> str:
        """Return ``always``."""
        return "always"


@dataclass(frozen=True)
class Markov(AvailabilityModel):
    """Clients that come and go at random.

    Args:
        on: mean time that a client is available
        off: mean time that it is away
    """

    on: Duration
    off: Duration

    def of_client(self, client: int, key: Key) -> Availability:
        """Return the intervals of a client."""
        return MarkovIntervals(self, key)

    def to_text(self) -> str:
        """Return the model as a fleet file has it."""
        return f"markov:on={self.on},off={self.off}"


class MarkovIntervals:
    """The intervals of one client, drawn one after the other and kept.

    Args:
        model: the mean times
        key: the client's key
    """

    def __init__(self, model: Markov, key: Key) -> None:
        self._means = (model.on.nanoseconds, model.off.nanoseconds)
        self._numbers, self._used = Numbers(key), 0
        self._starts, self._ends = array("q"), array("q")
        on, off = self._means
        self._next = 0 if self._number() * (on + off) < on else self._drawn(off)

    def interval(self, at: int) -> Interval:
        """Return the first interval that ends after ``at``."""
        if at >= FOREVER:
            return NEVER_AGAIN
        on, off = self._means
        while not self._ends or self._ends[-1] <= at:
            end = min(self._next + self._drawn(on), FOREVER)
            self._starts.append(self._next)
            self._ends.append(end)
            self._next = min(end + self._drawn(off), FOREVER)
        place = bisect_right(self._ends, at)
        return Interval(self._starts[place], self._ends[place])

    def _drawn(self, mean: int) -> int:
        """Draw an exponential time of whole nanoseconds, at least one."""
        return max(1, round(-math.log1p(-self._number()) * mean))

    def _number(self) -> float:
        self._used += 1
        return self._numbers[self._used - 1]


NAMES = {"from": "start", "to": "end", "zone": "zones"}
"""Words of a fleet file for fields."""


@dataclass(frozen=True)
class Daily(AvailabilityModel):
    """Clients that are available at the same hours of every day.

    Args:
        start: local time at which a client comes
        end: local time at which it leaves; on the next day if that is not after the start
        zones: time zones; each client has one of them, drawn evenly
        jitter: each start and end is earlier or later by at most this time, drawn evenly; none for the exact times
    """

    start: TimeOfDay
    end: TimeOfDay
    zones: Zones = Zones()
    jitter: Duration | None = None

    spec_usage = "daily:from=TIME,to=TIME[,zones=0,jitter=none]"

    def __post_init__(self) -> None:
        shortest = min(self.length, DAY - self.length)
        require(
            (shortest > 0, wrong(self, "end", "must differ from the start: write always, or other times")),
            (
                self.jitter is None or not shortest or 2 * self.jitter.nanoseconds < shortest,
                wrong(self, "jitter", "must be less than half of the time that a client is available, and away"),
            ),
        )

    @classmethod
    def of_spec(cls, rest: str) -> "Daily":
        """Read the text after ``daily:``. ``from`` and ``to`` are the start and the end, ``zone`` is one zone."""
        spelled = (written(NAMES.get(name, name), value) for name, value in texts(rest, cls))
        return cls(**fields_of(",".join(spelled), "daily", cls))

    def to_text(self) -> str:
        """Return the model as a fleet file has it."""
        jitter = f",jitter={self.jitter}" if self.jitter else ""
        return f"daily:from={self.start},to={self.end},zones={self.zones.to_text()}{jitter}"

    @property
    def length(self) -> int:
        """Nanoseconds from the start to the end."""
        return (self.end.nanoseconds - self.start.nanoseconds) % DAY

    def of_client(self, client: int, key: Key) -> Availability:
        """Return the intervals of a client, in a time zone that is drawn."""
        hours = self.zones.hours
        zone = hours[math.floor(Numbers(fold(key, "zone"))[0] * len(hours))] if len(hours) > 1 else hours[0]
        return DailyIntervals(self, round(zone * HOUR), key)


class DailyIntervals:
    """The intervals of one client.

    Args:
        model: the hours
        zone: nanoseconds ahead of UTC
        key: the client's key
    """

    def __init__(self, model: Daily, zone: int, key: Key) -> None:
        self._first, self._length = model.start.nanoseconds - zone, model.length
        self._jitter = model.jitter.nanoseconds if model.jitter else 0
        self._numbers = Numbers(fold(key, "jitter"))
        self._left, self._kept = 0, Interval(0, 0)  # the last answer, and the end of the interval before it

    def interval(self, at: int) -> Interval:
        """Return the first interval that ends after ``at``."""
        if self._left <= at < self._kept.end:
            return self._kept
        if at >= FOREVER:
            return NEVER_AGAIN
        day = (at - self._first) // DAY - 1  # jitter moves an end by less than half a day
        left = at
        while (found := self._of_day(day)).end <= at:
            left, day = found.end, day + 1
        self._left, self._kept = left, found
        return found

    def _of_day(self, day: int) -> Interval:
        """Return the interval that starts on a local day; the first one of a run is number -2 at the least."""
        start = self._first + day * DAY + self._moved(2 * day)
        end = self._first + day * DAY + self._length + self._moved(2 * day + 1)
        return Interval(max(start, 0), min(max(end, 0), FOREVER))

    def _moved(self, number: int) -> int:
        if not self._jitter:
            return 0
        return round((2 * self._numbers[number + 2 * 3] - 1) * self._jitter)


COLUMNS = ("client", "start", "end", "repeat")


class Sessions(NamedTuple):
    """The times of one client in a trace, in nanoseconds. They are disjoint and increase.

    Args:
        starts: where intervals begin
        ends: where they end; the last one may reach into the next period
        period: after which they repeat; 0 if they do not
    """

    starts: "array[int]"
    ends: "array[int]"
    period: int = 0

    def interval(self, at: int) -> Interval:
        """Return the first interval that ends after ``at``."""
        if at >= FOREVER:
            return NEVER_AGAIN
        shift = at // self.period * self.period if self.period else 0
        if self.period and self.ends[-1] - self.period > at - shift:
            shift, place = shift - self.period, len(self.ends) - 1
        else:
            place = bisect_right(self.ends, at - shift)
        if place == len(self.ends):
            if not self.period:
                return NEVER_AGAIN
            shift, place = shift + self.period, 0
        return Interval(max(self.starts[place] + shift, 0), min(self.ends[place] + shift, FOREVER))


NEVER = Sessions(array("q"), array("q"))


@dataclass(frozen=True)
class TraceFile:
    """The content of an availability trace.

    Args:
        source: the path of the file
        digest: a digest of its content
        clients: the times of each client, by its name in the file
    """

    source: str = field(compare=False, repr=False)
    digest: str
    clients: dict[str, Availability] = field(compare=False, repr=False)

    @classmethod
    def of_text(cls, text: str) -> "TraceFile":
        """Read a file."""
        return _parsed(str(Path(text).resolve()), content(text))

    def to_text(self) -> str:
        """Return the path."""
        return self.source


@dataclass(frozen=True)
class AvailabilityTrace(AvailabilityModel):
    """Clients that are available at the times of a file.

    Args:
        file: the file
        clients: with ``turn``, the clients of the file are dealt to those of the run in turn, in numerical order if all
            are whole numbers, else in the order of the file; with ``number``, a client of the run has the times of its
            own number, from 0, and is never available without any
    """

    file: TraceFile
    clients: Literal["turn", "number"] = "turn"

    def __post_init__(self) -> None:
        require((self.clients in ("turn", "number"), wrong(self, "clients", "must be turn or number")))

    def of_client(self, client: int, key: Key) -> Availability:
        """Return the times of a client."""
        if self.clients == "number":
            return self.file.clients.get(str(client), NEVER)
        names = _order(self.file)
        return self.file.clients[names[client % len(names)]]

    def to_text(self) -> str:
        """Return the model as a fleet file has it, with the full path of its file."""
        return self.written(self.file.source)

    def written(self, path: str) -> str:
        """Return the model as a fleet file has it, with another path of its file."""
        return f"trace:{written('file', path)}{'' if self.clients == 'turn' else ',clients=number'}"


@lru_cache(maxsize=16)
def _order(file: TraceFile) -> tuple[str, ...]:
    names = tuple(file.clients)
    return tuple(sorted(names, key=int)) if all(name.isdecimal() for name in names) else names


@lru_cache(maxsize=16)
def _parsed(path: str, data: bytes) -> TraceFile:
    """Return the trace of a file. Cached, because several device types may name the same file."""
    found: dict[str, list[tuple[int, int, int]]] = {}
    periods: dict[str, int] = {}
    for row in rows(path, data, COLUMNS):
        value, first, last, repeat = row.values
        if isinstance(value, bool) or not isinstance(value, str | int):
            raise misplaced(path, row.line, f"client must be a name or a number, got {value!r}")
        name, start, end = str(value), moment(path, row, "start", 1), moment(path, row, "end", 2)
        period = moment(path, row, "repeat", 3) if repeat is not None else 0
        if end <= start:
            raise misplaced(path, row.line, f"end must be after start, got {first} to {last}")
        if repeat is not None and end > period:
            raise misplaced(path, row.line, f"end must not be after repeat, got {last} and {repeat}")
        if periods.setdefault(name, period) != period:
            raise misplaced(path, row.line, f"client {name} has two values of repeat: give each line the same")
        found.setdefault(name, []).append((start, end, row.line))
    require((len(found) > 0, f"{path} has no lines: write lines such as 0,0,3600 (client, start, end)"))
    clients = {name: _sessions(path, name, times, periods[name]) for name, times in found.items()}
    return TraceFile(path, digest_of(data)[:16], clients)


def _sessions(path: str, name: str, times: list[tuple[int, int, int]], period: int) -> Availability:
    starts, ends = array("q"), array("q")
    for start, end, line in sorted(times):
        if ends and start < ends[-1]:
            raise misplaced(path, line, f"client {name} is available already: its times must not overlap")
        if ends and start == ends[-1]:
            ends[-1] = end
        else:
            starts.append(start)
            ends.append(end)
    if period and starts[0] == 0 and ends[-1] == period:
        if len(starts) == 1:
            return ALWAYS
        ends[-1] += ends.pop(0)  # one interval over the end of the period
        starts.pop(0)
    return Sessions(starts, ends, period)


MODELS: dict[str, type[AvailabilityModel]] = {
    "always": AlwaysAvailable,
    "markov": Markov,
    "daily": Daily,
    "trace": AvailabilityTrace,
}
"""Models by the name that fleet files use."""


def read_model(text: str) -> AvailabilityModel:
    """Return the model of a text such as ``markov:on=10min,off=30min``."""
    return parse(text, MODELS, "availability")
