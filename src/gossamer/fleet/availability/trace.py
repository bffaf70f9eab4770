"""Availability traces: a file with the times at which clients are available.

    client,start,end
    0,0,3600
    0,7200,9000
    1,1800,5400

Times are seconds from the start of the run. JSON lines have the same names. The lines of a client may stand anywhere in
the file, and its times must not overlap. A column ``repeat`` has the seconds after which the client's times repeat;
without one, a client does not come back after its last line.
"""

from array import array
from bisect import bisect_right
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Literal, NamedTuple

from gossamer.core.availability import ALWAYS, FOREVER, NEVER_AGAIN, Availability, Interval
from gossamer.core.errors import require, wrong
from gossamer.core.files import digest_of
from gossamer.core.random import Key
from gossamer.core.specs import written
from gossamer.fleet.availability.base import AvailabilityModel
from gossamer.fleet.tables import Row, content, misplaced, moment, rows

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
        name, start, end, period = _values(path, row)
        if periods.setdefault(name, period) != period:
            raise misplaced(path, row.line, f"client {name} has two values of repeat: give each line the same")
        found.setdefault(name, []).append((start, end, row.line))
    require((len(found) > 0, f"{path} has no lines: write lines such as 0,0,3600 (client, start, end)"))
    clients = {name: _sessions(path, name, times, periods[name]) for name, times in found.items()}
    return TraceFile(path, digest_of(data)[:16], clients)


def _values(path: str, row: Row) -> tuple[str, int, int, int]:
    name = row.values[0]
    if isinstance(name, bool) or not isinstance(name, str | int):
        raise misplaced(path, row.line, f"client must be a name or a number, got {name!r}")
    start, end = (moment(path, row, column, place) for place, column in ((1, "start"), (2, "end")))
    period = moment(path, row, "repeat", 3) if row.values[3] is not None else 0
    if end <= start:
        raise misplaced(path, row.line, f"end must be after start, got {row.values[1]} to {row.values[2]}")
    if row.values[3] is not None and end > period:
        raise misplaced(path, row.line, f"end must not be after repeat, got {row.values[2]} and {row.values[3]}")
    return str(name), start, end, period


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
