"""The order in which the tasks of a round are dealt to actors.

The longest tasks go first, so that no actor starts a long one when the others are done. Updates are folded in client
order, and an update that is early waits in memory. So tasks are sorted within blocks of the next few, not within the
whole round.

A call of an actor takes about two milliseconds, so that short tasks are dealt in groups. The groups of the last block
are small enough that all actors have work until the end.
"""

import math
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from itertools import accumulate, islice

from gossamer.engines.client import ClientTask

GRAIN = 0.1
"""Seconds that a group of short tasks takes, at most."""

AHEAD = 16
"""Number of tasks per actor in a block."""


class Dealer:
    """Cuts tasks into groups by the measured seconds of each client."""

    def __init__(self) -> None:
        self._known: dict[int, float] = {}  # seconds of each client's last task
        self._seconds = self._samples = self._tasks = 0.0

    def measured(self, client_task: ClientTask, seconds: float) -> None:
        """Note how long a task took."""
        self._known[client_task.clock.client] = seconds
        self._seconds += seconds
        self._samples += len(client_task.samples)
        self._tasks += 1

    @property
    def depth(self) -> int:
        """Number of groups that an actor has at a time; with short tasks one waits while another is trained."""
        return 2 if self._tasks and self._seconds / self._tasks < GRAIN / 4 else 1

    def cost(self, client_task: ClientTask) -> float:
        """Return the expected seconds of a task: those of the client's last one, or by its number of samples.

        Before the first measurement, tasks are so long that each is a group.
        """
        if client_task.clock.client in self._known:
            return self._known[client_task.clock.client]
        rate = self._seconds / self._samples if self._samples else GRAIN
        return rate * max(1, len(client_task.samples))

    def groups(self, client_tasks: Iterable[ClientTask], actors: int, size: int) -> Iterator[list[ClientTask]]:
        """Yield groups of tasks for a number of actors whose inner executors train ``size`` clients together."""
        waiting = iter(client_tasks)
        block = list(islice(waiting, AHEAD * actors))
        while block:
            following = list(islice(waiting, AHEAD * actors))
            rest = sorted(block, key=self.cost, reverse=True)
            while rest:
                fair = math.ceil(len(rest) / (actors if size > 1 else 2 * actors))
                most = min(size, fair) if size > 1 else len(rest) if following else fair
                if size == 1:  # as many as together take about as long as a group should, but at least one
                    most = max(1, bisect_right([*accumulate(map(self.cost, rest[:most]))], GRAIN))
                yield rest[:most]
                rest = rest[most:]
            block = following
