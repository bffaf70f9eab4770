"""The event queue of virtual time.

Events are ordered by time, then by kind, by client, and by the order in which they were added. So the order does not
depend on how clients are trained.
"""

import heapq
from enum import IntEnum
from typing import NamedTuple


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
