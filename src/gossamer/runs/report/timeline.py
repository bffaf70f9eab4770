"""What a run with a schedule did in virtual time: tasks by outcome, staleness, idle slots and work in vain.

A task of a client is its download, training and upload. A record of such a run has the virtual ``time`` of its end, and
the ``tasks`` that ended in its round as columns of equal length; times of tasks are nanoseconds from the start of the
run. Records of other runs have neither, and the figures of such a run are none.
"""

import statistics
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from gossamer.core.availability import SECOND
from gossamer.runs.records import Record
from gossamer.runs.report.text import BLANK, joules, number, percent, seconds

Summary = Mapping[str, Any]
FOLDED = "folded"
OUTCOMES = (FOLDED, "cancelled", "left", "lost", "stale", "failed")
"""How a task ends, in the order of tables: its update is aggregated, or it was in vain."""

COMPARED = ("virtual time", "staleness", "idle", "in vain")
"""The columns of ``compare``."""


class Task(NamedTuple):
    """A task of a client; times are nanoseconds.

    Args:
        round: the round in which it ended
        client: the client
        version: the round, from 0, whose model it started from
        start: when its download began
        received: when its download ended; none if it ended before
        computed: when its training ended; none if it ended before
        end: when it ended
        outcome: one of ``OUTCOMES``
        joules: the energy that it took
        exchange: the exchange of the round; methods with several have tasks of each
    """

    round: int
    client: int
    version: int
    start: int
    received: int | None
    computed: int | None
    end: int
    outcome: str
    joules: float
    exchange: int = 0

    @property
    def staleness(self) -> int:
        """The number of aggregations between its start and its own."""
        return self.round - 1 - self.version


def tasks_of(metrics: Sequence[Record]) -> Iterator[Task]:
    """Yield the tasks of all rounds, in the order of records."""
    for record in metrics:
        columns = record.get("tasks", {})
        rows = zip(*(columns[name] for name in Task._fields[1:] if name in columns), strict=True) if columns else ()
        yield from (Task(record["round"], *row) for row in rows)


def virtual_time(metrics: Sequence[Record]) -> float | None:
    """Return the virtual seconds of a run so far; none without a schedule."""
    return next((float(record["time"]) for record in reversed(metrics) if "time" in record), None)


def task_counts(record: Record) -> dict[str, int]:
    """Return the number of tasks by outcome that ended in a round; nothing without a schedule.

    >>> task_counts({"tasks": {"outcome": ["folded", "lost", "folded"]}})["folded"]
    2
    """
    if "tasks" not in record:
        return {}
    found = Counter(record["tasks"]["outcome"])
    return {outcome: found[outcome] for outcome in (*OUTCOMES, *(found.keys() - set(OUTCOMES)))}


def summary_of(about: Mapping[str, Any], metrics: Sequence[Record]) -> dict[str, Any]:
    """Return the entries of a summary on the schedule of a run; they are none without one."""
    time, tasks = virtual_time(metrics), list(tasks_of(metrics))
    busy = sum(task.end - task.start for task in tasks) / SECOND
    slots, total = about.get("slots"), Counter[str]()
    for record in metrics:
        total.update(task_counts(record))
    stale = [task.staleness for task in tasks if task.outcome == FOLDED]
    folded, staleness = Counter(stale), None
    if stale:
        middle, last = {"mean": statistics.fmean(stale), "median": float(statistics.median(stale))}, max(stale)
        staleness = {**middle, "max": last, "histogram": [folded[value] for value in range(last + 1)]}
    return {
        "schedule": about["options"].get("schedule"),
        "time": time,
        "tasks": dict(total) if time is not None else None,
        "staleness": staleness,
        # The share of the slots' time in which no task that has ended was under way.
        "idle_share": max(0.0, 1 - busy / (slots * time)) if slots and time else None,
        "spent_in_vain": _in_vain(metrics, busy) if time is not None else None,
    }


def _in_vain(metrics: Sequence[Record], busy: float) -> dict[str, float]:
    """Return the joules and seconds of tasks that were not aggregated, and their shares of all."""
    found = [record["spent_in_vain"] for record in metrics if "spent_in_vain" in record]
    spent = {name: float(sum(each[name] for each in found)) for name in ("joules", "seconds")}
    everything = {"joules": sum(record["joules"] for record in metrics), "seconds": busy}
    shares = {f"{name}_share": spent[name] / total if total else 0.0 for name, total in everything.items()}
    return spent | shares


def rows(summary: Summary) -> list[tuple[str, str]]:
    """Return the lines of ``show`` on the schedule; nothing without one."""
    time, tasks, schedule = summary["time"], summary["tasks"], summary["schedule"]
    named = [("schedule", schedule)] if schedule else []
    if time is None:
        return named
    clock = "time" if summary["executor"] == "flower" else "virtual time"
    found = [
        *named,
        (clock, f"{seconds(time)}, {seconds(time / max(1, summary['rounds']))} per round"),
        ("tasks", ", ".join(f"{n:,} {outcome}" for outcome, n in tasks.items() if n) or "none has ended"),
    ]
    if stale := summary["staleness"]:
        most = f"largest {stale['max']:,} (rounds, of aggregated updates)"
        found.append(("staleness", f"mean {number(stale['mean'])}, median {number(stale['median'])}, {most}"))
    if summary["idle_share"] is not None:
        found.append(("idle", f"{percent(summary['idle_share'])} of the time of training slots"))
    spent = summary["spent_in_vain"]
    energy = f", {joules(spent['joules'])} ({percent(spent['joules_share'])})" if summary["joules"] else ""
    wasted = f"{seconds(spent['seconds'])} of devices ({percent(spent['seconds_share'])}){energy}"
    return [*found, ("spent in vain", wasted)]


def compared(summary: Summary) -> tuple[str, ...]:
    """Return the cells of a run in the columns of ``COMPARED``; in vain is the share of the seconds of devices.

    A run without a schedule has the time that its channel counts, if it does.
    """
    if summary["time"] is None:
        return (seconds(summary["delay"]) if summary["delay"] else BLANK, *[BLANK] * (len(COMPARED) - 1))
    stale = summary["staleness"]
    return (
        seconds(summary["time"]),
        number(stale["mean"] if stale else None),
        percent(summary["idle_share"]),
        percent(summary["spent_in_vain"]["seconds_share"]),
    )


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
    ends = _exchange_ends(tasks, rounds) if rounds else {}
    found = []
    for third, name in enumerate(NAMES):
        clients = set(order[len(order) * third // 3 : len(order) * (third + 1) // 3])
        mine = [task for task in tasks if task.client in clients]
        if not mine:
            continue
        folded = [task for task in mine if task.outcome == FOLDED]
        stale = statistics.fmean(task.staleness for task in folded) if folded else None
        total = dict.fromkeys(USES, 0)
        for task in mine:
            if task.outcome == FOLDED and task.received is not None and task.computed is not None:
                total["download"] += task.received - task.start
                total["computing"] += task.computed - task.received
                total["upload"] += task.end - task.computed
            else:
                total["in vain"] += task.end - task.start
            total["waiting"] += max(0, ends.get((task.round, task.exchange), 0) - task.end)
        seconds = {use: time / SECOND for use, time in total.items()}
        median, joules = statistics.median(spent[client] for client in clients), sum(task.joules for task in mine)
        found.append(Third(name, len(clients), median, len(mine), len(folded), stale, float(joules), seconds))
    return found


def _exchange_ends(tasks: Sequence[Task], rounds: Mapping[int, int]) -> Ends:
    """Return when each exchange of a round ended: the last one with the round, others with their last task."""
    ends: dict[tuple[int, int], int] = {}
    last: dict[int, int] = {}
    for task in tasks:
        at = (task.round, task.exchange)
        ends[at] = max(task.end, ends.get(at, 0))
        last[task.round] = max(task.exchange, last.get(task.round, 0))
    return ends | {(number, exchange): rounds[number] for number, exchange in last.items()}
