"""On and off times of a two-state Markov process in continuous time.

Both are exponentially distributed. A client is available at the start of a run with probability on / (on + off), and
the remaining time of the first state is exponentially distributed too, so the process is stationary.
"""

import math
from array import array
from bisect import bisect_right
from dataclasses import dataclass

from gossamer.core.availability import FOREVER, NEVER_AGAIN, Availability, Interval
from gossamer.core.random import Key
from gossamer.fleet.availability.base import AvailabilityModel, Numbers
from gossamer.fleet.units import Duration


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
        while not self._ends or self._ends[-1] <= at:
            self._add()
        place = bisect_right(self._ends, at)
        return Interval(self._starts[place], self._ends[place])

    def _add(self) -> None:
        on, off = self._means
        end = min(self._next + self._drawn(on), FOREVER)
        self._starts.append(self._next)
        self._ends.append(end)
        self._next = min(end + self._drawn(off), FOREVER)

    def _drawn(self, mean: int) -> int:
        """Draw an exponential time of whole nanoseconds, at least one."""
        return max(1, round(-math.log1p(-self._number()) * mean))

    def _number(self) -> float:
        self._used += 1
        return self._numbers[self._used - 1]
