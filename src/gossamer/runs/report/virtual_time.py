"""The section of the page on a run with a schedule: who trained when, staleness, speeds, outcomes and targets."""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from typing import Any

from gossamer.core.availability import SECOND
from gossamer.runs.records import Record
from gossamer.runs.report import html
from gossamer.runs.report.bars import columns, shares
from gossamer.runs.report.gantt import MARKS, PHASES, gantt
from gossamer.runs.report.scores import Score, primary
from gossamer.runs.report.speeds import USES, Third, thirds
from gossamer.runs.report.targets import Target
from gossamer.runs.report.text import count, joules, number, percent, seconds, size, time_unit
from gossamer.runs.report.timeline import FOLDED, OUTCOMES, Task, tasks_of
from gossamer.runs.report.to_target import Reached, to_target

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
        return _rendered(targets=_targets(reached)) if targets else ""
    ends = {record["round"]: round(record["time"] * SECOND) for record in metrics if "time" in record}
    refills = bool(about.get("refills"))
    groups = thirds(tasks, {} if refills else ends)
    drawn = [speed_chart(groups, refills), staleness(tasks), outcomes(tasks, max(ends.values()))]
    return _rendered(
        timeline=gantt(tasks, list(ends.values())),
        charts=[chart for chart in drawn if chart],
        groups=[_group(group) for group in groups],
        targets=_targets(reached),
    )


def _rendered(**parts: Any) -> str:
    return html.render("virtual_time.html", **{"timeline": "", "charts": (), "groups": (), "targets": ()} | parts)


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


def _group(group: Third) -> tuple[str, ...]:
    return (
        group.name,
        f"{group.clients:,}",
        seconds(group.median),
        f"{group.tasks:,}",
        percent(group.folded / group.tasks),
        number(group.staleness),
        joules(group.joules),
    )


def speed_chart(groups: Sequence[Third], refilled: bool) -> str:
    """Return what the slots of each third of the clients were used for."""
    stacks = {use: [group.shares[use] for group in groups] for use in USES}
    waited = "A free slot was filled at once, so nobody waited." if refilled else "Waiting is for the end of the round."
    note = f"Thirds of the clients by their median task. {waited}"
    return shares("Busy and idle by speed of clients", [group.name for group in groups], stacks, USE_COLOURS, [note])


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
