"""The section of the page on a run with a schedule: who trained when, staleness, speeds, outcomes and targets.

The timeline has one row per client and one bar per task, in the colours of its phases and of its outcome. Of many
clients, some are shown, evenly spaced by speed. Of many tasks, those of the run's start and end are shown.
"""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from gossamer.core.availability import SECOND
from gossamer.runs.records import Record
from gossamer.runs.report import plots
from gossamer.runs.report.plots import columns, shares
from gossamer.runs.report.scores import Score, primary
from gossamer.runs.report.targets import Reached, Target, to_target
from gossamer.runs.report.text import count, joules, number, percent, seconds, size, time_unit
from gossamer.runs.report.timeline import FOLDED, OUTCOMES, USES, Task, task_seconds, tasks_of, thirds

if TYPE_CHECKING:
    from matplotlib.figure import Figure


GANTT_TITLE = "Who trained when"
ROWS = 40
"""The largest number of clients."""

SHOWN = 500
"""The largest number of tasks that are drawn."""

LINES = 80
"""The largest number of aggregations that are drawn as lines, in one window."""

PHASES = {"download": 2, "computing": 0, "upload": 5}
"""The colour of each phase."""

MARKS = {"cancelled": 4, "left": 3, "lost": 1, "stale": 7, "failed": 6}
"""The colour of each outcome but the aggregation."""

WIDTH, LEFT, RIGHT, BOTTOM, TOP, GAP, ROW = 11.2, 0.75, 0.2, 0.5, 0.1, 0.35, 0.17
BINS = 30
"""The largest number of bars of a chart."""

FEWEST = 5
"""The smallest number of bars of a histogram."""

LEVELS = (0.5, 0.6, 0.7, 0.75, 0.8, 0.85, 0.9, 0.925, 0.95, 0.97, 0.98, 0.99)
"""Values of a metric in percent that the page lists if the run has reached them."""

LISTED = 5
"""The largest number of such values: the highest."""

COLOURS = {FOLDED: 0, **MARKS}
USE_COLOURS = (*(PHASES[use] for use in USES[:3]), 1, 7)


def section(about: Mapping[str, Any], metrics: Sequence[Record], targets: Sequence[Target]) -> str:
    """Return the section as HTML; empty if no task has ended and there are no targets."""
    tasks = list(tasks_of(metrics))
    reached = [to_target(target, about, metrics) for target in (*targets, *(levels(about, metrics) if tasks else ()))]
    if not tasks:
        alone = {"timeline": "", "charts": (), "groups": (), "targets": _targets(reached)}
        return plots.render("virtual_time.html", **alone) if targets else ""
    ends = {record["round"]: round(record["time"] * SECOND) for record in metrics if "time" in record}
    refills = bool(about.get("refills"))
    groups = thirds(tasks, {} if refills else ends)
    stacks = {use: [group.shares[use] for group in groups] for use in USES}
    waited = "A free slot was filled at once, so nobody waited." if refills else "Waiting is for the end of the round."
    note = f"Thirds of the clients by their median task. {waited}"
    drawn = [
        shares("Busy and idle by speed of clients", [group.name for group in groups], stacks, USE_COLOURS, [note]),
        staleness(tasks),
        outcomes(tasks, max(ends.values())),
    ]
    return plots.render(
        "virtual_time.html",
        timeline=gantt(tasks, list(ends.values())),
        charts=[chart for chart in drawn if chart],
        groups=[
            (
                group.name,
                f"{group.clients:,}",
                seconds(group.median),
                f"{group.tasks:,}",
                percent(group.folded / group.tasks),
                number(group.staleness),
                joules(group.joules),
            )
            for group in groups
        ],
        targets=_targets(reached),
    )


def levels(about: Mapping[str, Any], metrics: Sequence[Record]) -> list[Target]:
    """Return round values of the primary metric that the run has reached, if it is one in percent."""
    score: Score = primary(about)
    best = score.best(metrics)
    if best is None or score.format != "percent" or score.better != "higher":
        return []
    return [Target(score.name, "=", level) for level in LEVELS if level <= best[score.name]][-LISTED:]


def _targets(reached: Sequence[Reached]) -> list[tuple[str, ...]]:
    """Return the cells of the table of targets, each target once."""
    unique = {each.target: each for each in reached}
    return [
        (each.target, "not reached", "", "", "", "")
        if each.round is None
        else (
            each.target,
            f"{each.round:,}",
            "" if each.time is None else seconds(each.time),
            joules(each.joules or 0.0),
            size(each.bytes_up or 0),
            size(each.bytes_down or 0),
        )
        for each in unique.values()
    ]


def staleness(tasks: Sequence[Task]) -> str:
    """Return the histogram of the staleness of aggregated updates."""
    found = [task.staleness for task in tasks if task.outcome == FOLDED]
    if not found:
        return ""
    wide = -(-(max(found) + 1) // BINS)
    heights = [0] * max(FEWEST, max(found) // wide + 1)
    for value in found:
        heights[value // wide] += 1
    edges = [wide * place - 0.5 for place in range(len(heights) + 1)]
    each = f" ({wide} per bar)" if wide > 1 else ""
    return columns("Staleness of aggregated updates", f"rounds{each}", edges, {count(len(found), "update"): heights})


def outcomes(tasks: Sequence[Task], end: int) -> str:
    """Return the number of tasks that ended by virtual time, stacked by outcome."""
    unit, scale = time_unit(end / SECOND)
    bins = min(BINS, max(4, len(tasks) // 5))
    edges = [end / SECOND / scale * place / bins for place in range(bins + 1)]
    stacks: dict[str, list[float]] = {outcome: [0] * bins for outcome in OUTCOMES}
    for task in tasks:
        place = bisect_right(edges, task.end / SECOND / scale) - 1
        stacks[task.outcome][min(place, bins - 1)] += 1
    seen = {outcome: heights for outcome, heights in stacks.items() if any(heights)}
    colours = [COLOURS[outcome] for outcome in seen]
    return columns("Tasks that ended, by outcome", f"virtual time ({unit})", edges, seen, colours)


class Window(NamedTuple):
    """A part of the run.

    Args:
        begin: its first nanosecond
        end: its last nanosecond
        tasks: the tasks in it
    """

    begin: int
    end: int
    tasks: list[Task]


def gantt(tasks: Sequence[Task], rounds: Sequence[int]) -> str:
    """Return the timeline of a run as an HTML ``<figure>``; ``rounds`` are the nanoseconds of aggregations."""
    clients, known = rows_of(tasks)
    shown = windows([task for task in tasks if task.client in set(clients)])
    outcomes = [outcome for outcome in MARKS if any(task.outcome == outcome for each in shown for task in each.tasks)]
    keys = {**PHASES, **{outcome: MARKS[outcome] for outcome in outcomes}}
    tips = {
        f"{kind}-{number}": [_tip(task) for task in window.tasks if _drawn(task, kind)]
        for number, window in enumerate(shown)
        for kind in keys
    }
    drawing = plots.inline(gantt_figure(clients, shown, rounds), GANTT_TITLE, tips)
    notes = ["The fastest client is at the top, by its median task."]
    if known > len(clients):
        notes.append(f"{len(clients)} of {count(known, 'client')} are shown, evenly spaced by speed.")
    if len(shown) > 1:
        notes.append(f"Only the first and the last {seconds((shown[0].end - shown[0].begin) / SECOND)} are shown.")
    notes.append("Grey lines are aggregations.")
    if outcomes:
        notes.append("A strip below a bar is a task that was in vain, in the colour of its outcome.")
    return plots.framed(GANTT_TITLE, drawing, keys=list(keys), colours=list(keys.values()), notes=[" ".join(notes)])


def rows_of(tasks: Sequence[Task]) -> tuple[list[int], int]:
    """Return the clients to show, the fastest first, and the number of clients that had a task."""
    spent = task_seconds(tasks)
    order = sorted(spent, key=lambda client: (spent[client], client))
    if len(order) <= ROWS:
        return order, len(order)
    return [order[place * (len(order) - 1) // (ROWS - 1)] for place in range(ROWS)], len(order)


def windows(tasks: Sequence[Task]) -> list[Window]:
    """Return the whole run if it has few tasks, else equally long windows at its start and its end."""
    end = max(task.end for task in tasks)
    if len(tasks) <= SHOWN:
        return [Window(0, end, list(tasks))]
    half = SHOWN // 2
    first = sorted(task.start for task in tasks)[half]
    last = end - sorted((task.end for task in tasks), reverse=True)[half]
    length = min(first, last)
    ends = ((0, length), (end - length, end))
    return [Window(*each, [task for task in tasks if task.start < each[1] and task.end > each[0]]) for each in ends]


def gantt_figure(clients: Sequence[int], shown: Sequence[Window], rounds: Sequence[int]) -> "Figure":
    """Return the timeline as a matplotlib figure, one panel per window."""
    high = TOP + BOTTOM + ROW * max(4, len(clients))
    wide = (WIDTH - LEFT - RIGHT - GAP * (len(shown) - 1)) / len(shown)
    with plots.style():
        from matplotlib.collections import PolyCollection
        from matplotlib.figure import Figure

        drawn = Figure(figsize=(WIDTH, high))
        for number, window in enumerate(shown):
            left = LEFT + number * (wide + GAP)
            axes = drawn.add_axes((left / WIDTH, BOTTOM / high, wide / WIDTH, 1 - (BOTTOM + TOP) / high))
            unit, scale = time_unit((window.end - window.begin) / SECOND)
            at = {client: row for row, client in enumerate(clients)}
            folded = [time / SECOND / scale for time in rounds if window.begin <= time <= window.end]
            if len(folded) <= LINES:
                axes.vlines(folded, -0.5, len(clients) - 0.5, plots.GRID, linewidth=0.8, zorder=0)
            for kind, colour in (PHASES | MARKS).items():
                boxes = []
                for task in (task for task in window.tasks if _drawn(task, kind)):
                    ends = (min(max(time, window.begin), window.end) for time in _span(task, kind))
                    left, right = (time / (SECOND * scale) for time in ends)
                    row = at[task.client]  # phases are above, outcomes a strip below
                    top, bottom = (row - 0.36, row + 0.16) if kind in PHASES else (row + 0.2, row + 0.4)
                    boxes.append([(left, top), (right, top), (right, bottom), (left, bottom)])
                axes.add_collection(PolyCollection(boxes, facecolors=plots.COLOURS[colour], gid=f"{kind}-{number}"))
            axes.set(xlim=(window.begin / SECOND / scale, window.end / SECOND / scale), ylim=(len(clients) - 0.5, -0.5))
            axes.set_yticks(range(len(clients)), [str(client) for client in clients] if not number else [])
            axes.set_xlabel(f"virtual time ({unit})")
            axes.set_ylabel("client" if not number else "")
            plots.plain(axes)
    return drawn


def _drawn(task: Task, kind: str) -> bool:
    """Return whether a task has the phase or the outcome."""
    return task.outcome == kind if kind in MARKS else _span(task, kind)[0] < _span(task, kind)[1]


def _span(task: Task, kind: str) -> tuple[int, int]:
    """Return begin and end of a phase, or of the whole task for an outcome; a phase that never began is empty."""
    received = task.end if task.received is None else task.received
    computed = task.end if task.computed is None else task.computed
    phases = {"download": (task.start, received), "computing": (received, computed), "upload": (computed, task.end)}
    return phases.get(kind, (task.start, task.end))


def _tip(task: Task) -> str:
    begun = f"client {task.client}, from the model of round {task.version}, {seconds((task.end - task.start) / SECOND)}"
    ended = f"aggregated in round {task.round}" if task.outcome == FOLDED else f"{task.outcome} in round {task.round}"
    return f"{begun}: {ended}"
