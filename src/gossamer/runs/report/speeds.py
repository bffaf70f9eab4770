"""Clients by speed: thirds by their median task, and what the slots of each third were used for."""

import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from gossamer.core.availability import SECOND
from gossamer.runs.report.timeline import FOLDED, Task

CUT = ("cancelled", "left", "failed")
"""Outcomes of tasks that ended early, whose length is not that of a task."""

USES = ("download", "computing", "upload", "in vain", "waiting")
"""What the time of a slot is used for: phases of aggregated tasks, other tasks, waiting for the end of the round."""

Ends = Mapping[tuple[int, int], int]
"""The nanosecond at which an exchange of a round ended; empty if clients do not wait for it."""

NAMES = ("fastest third", "middle third", "slowest third")


class Third(NamedTuple):
    """Clients of similar speed.

    Args:
        name: which third
        clients: the number of clients
        median: the median over clients of the seconds of a task
        tasks: the number of tasks
        folded: the number of aggregated tasks
        staleness: the mean staleness of aggregated tasks; none without any
        joules: the energy of all tasks
        seconds: the seconds of slots by use
    """

    name: str
    clients: int
    median: float
    tasks: int
    folded: int
    staleness: float | None
    joules: float
    seconds: Mapping[str, float]

    @property
    def shares(self) -> dict[str, float]:
        """The share of each use in the time of slots."""
        total = sum(self.seconds.values())
        return {use: spent / total if total else 0.0 for use, spent in self.seconds.items()}


def task_seconds(tasks: Sequence[Task]) -> dict[int, float]:
    """Return the median seconds of a task of each client; tasks that ended early count if it has no others."""
    whole: dict[int, list[int]] = defaultdict(list)
    cut: dict[int, list[int]] = defaultdict(list)
    for task in tasks:
        (cut if task.outcome in CUT else whole)[task.client].append(task.end - task.start)
    return {client: statistics.median(lengths) / SECOND for client, lengths in (cut | whole).items()}


def thirds(tasks: Sequence[Task], rounds: Mapping[int, int]) -> list[Third]:
    """Return the clients in three groups by speed, fewer if there are not three.

    ``rounds`` are the ends of rounds in nanoseconds, which clients wait for; empty if they do not.
    """
    spent = task_seconds(tasks)
    order = sorted(spent, key=lambda client: (spent[client], client))
    cuts = [len(order) * third // 3 for third in range(4)]
    ends = _exchange_ends(tasks, rounds) if rounds else {}
    of = {client: third for third in range(3) for client in order[cuts[third] : cuts[third + 1]]}
    groups: list[list[Task]] = [[], [], []]
    for task in tasks:
        groups[of[task.client]].append(task)
    return [
        _third(name, [spent[client] for client in order[cuts[third] : cuts[third + 1]]], groups[third], ends)
        for third, name in enumerate(NAMES)
        if groups[third]
    ]


def _third(name: str, lengths: list[float], tasks: Sequence[Task], ends: Ends) -> Third:
    folded = [task for task in tasks if task.outcome == FOLDED]
    stale = statistics.fmean(task.staleness for task in folded) if folded else None
    joules = float(sum(task.joules for task in tasks))
    seconds = _uses(tasks, ends)
    return Third(name, len(lengths), statistics.median(lengths), len(tasks), len(folded), stale, joules, seconds)


def _exchange_ends(tasks: Sequence[Task], rounds: Mapping[int, int]) -> Ends:
    """Return when each exchange of a round ended: the last one with the round, others with their last task."""
    ends: dict[tuple[int, int], int] = {}
    last: dict[int, int] = {}
    for task in tasks:
        at = (task.round, task.exchange)
        ends[at] = max(task.end, ends.get(at, 0))
        last[task.round] = max(task.exchange, last.get(task.round, 0))
    return ends | {(number, exchange): rounds[number] for number, exchange in last.items()}


def _uses(tasks: Sequence[Task], ends: Ends) -> dict[str, float]:
    total = dict.fromkeys(USES, 0)
    for task in tasks:
        if task.outcome == FOLDED and task.received is not None and task.computed is not None:
            total["download"] += task.received - task.start
            total["computing"] += task.computed - task.received
            total["upload"] += task.end - task.computed
        else:
            total["in vain"] += task.end - task.start
        total["waiting"] += max(0, ends.get((task.round, task.exchange), 0) - task.end)
    return {use: spent / SECOND for use, spent in total.items()}
