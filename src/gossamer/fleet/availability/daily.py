"""Day and night by time zone: a client is available at the same hours of every day.

A run starts at midnight UTC. A client in the zone UTC+2 is two hours ahead: its 22:00 is 20:00 UTC.
"""

import math
import re
from dataclasses import dataclass

from gossamer.core.availability import FOREVER, NEVER_AGAIN, SECOND, Availability, Interval
from gossamer.core.errors import require, wrong
from gossamer.core.fields import CheckedFields
from gossamer.core.random import Key, fold
from gossamer.core.specs import fields_of, pieces, texts, written
from gossamer.fleet.availability.base import AvailabilityModel, Numbers
from gossamer.fleet.units import Duration, read_seconds

HOUR, DAY = 3600 * SECOND, 86400 * SECOND

NAMES = {"from": "start", "to": "end", "zone": "zones"}
"""Words of a fleet file for fields."""


@dataclass(frozen=True)
class TimeOfDay(CheckedFields):
    """A time of the day.

    Args:
        nanoseconds: nanoseconds after midnight
    """

    nanoseconds: int

    def __post_init__(self) -> None:
        require((0 <= self.nanoseconds < DAY, wrong(self, "nanoseconds", "must be at least 0 and below one day")))

    @classmethod
    def of_text(cls, text: str) -> "TimeOfDay":
        """Parse a time of the day.

        >>> TimeOfDay.of_text("22h") == TimeOfDay.of_text("22:00"), TimeOfDay.of_text("6:30").to_text()
        (True, '390min')
        """
        clock = re.fullmatch(r"(\d{1,2}):(\d{2})", text)
        try:
            seconds = 3600 * int(clock[1]) + 60 * int(clock[2]) if clock else read_seconds(text, zero=True)
            return cls(round(seconds * SECOND))
        except ValueError:
            raise ValueError("a time of the day such as 22h or 6:30") from None

    def to_text(self) -> str:
        """Return text that ``of_text`` reads."""
        return str(Duration(self.nanoseconds)) if self.nanoseconds else "0h"

    def __str__(self) -> str:
        return self.to_text()

    def __repr__(self) -> str:
        return f"TimeOfDay({self.to_text()!r})"


@dataclass(frozen=True)
class Zones(CheckedFields):
    """Time zones.

    Args:
        hours: hours ahead of UTC; negative ones are behind
    """

    hours: tuple[float, ...] = (0.0,)

    def __post_init__(self) -> None:
        fine = len(self.hours) > 0 and all(-14 <= hour <= 14 for hour in self.hours)
        require((fine, wrong(self, "hours", "must be from -14 to 14, at least one")))

    @classmethod
    def of_text(cls, text: str) -> "Zones":
        """Parse hours ahead of UTC, joined by ``+``.

        >>> Zones.of_text("UTC+2").hours, Zones.of_text("-5+0+1+5.5").hours
        ((2.0,), (-5.0, 0.0, 1.0, 5.5))
        """
        try:
            hours = tuple(map(float, pieces(text.removeprefix("UTC") or "0")))
        except ValueError:
            raise ValueError("a time zone such as UTC+2, or hours ahead of UTC such as -5+0+1+8") from None
        return cls(hours)

    def to_text(self) -> str:
        """Return text that ``of_text`` reads."""
        return "+".join(f"{hour:g}" for hour in self.hours)


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
