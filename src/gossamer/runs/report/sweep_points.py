"""The points of a sweep: mean and standard deviation over seeds, and the best point by held-out samples.

Every value is that of the last evaluated round. The best point is chosen by the primary metric on held-out training
samples (``--validate``), never by the test set.
"""

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from gossamer.core.errors import RunError
from gossamer.runs.records import EXTENDED, Record, check_about, is_busy, read_about, read_metrics
from gossamer.runs.report import curves
from gossamer.runs.report.curves import DEVIATION
from gossamer.runs.report.scores import Score, common, held_out, primary
from gossamer.runs.report.summary import summarise
from gossamer.runs.report.targets import over_seeds, targets_for, to_target
from gossamer.runs.report.text import BLANK, size, table
from gossamer.runs.sweeps import Sweep, SweepRun, label_of, short

UNCHOSEN = (
    "no best point: no samples were held out, and the test set must not choose between points; a sweep with "
    "--validate 10 holds out every tenth training sample of each client"
)


@dataclass(frozen=True)
class Standing:
    """What a run has done so far.

    Args:
        about: the contents of its ``run.json``; empty if it has not started
        metrics: its records
        busy: whether a process works in its folder
    """

    about: dict[str, Any] = field(default_factory=dict)
    metrics: Sequence[Record] = ()
    busy: bool = False

    @classmethod
    def of(cls, path: Path) -> "Standing":
        """Read the folder of a run; a damaged one counts as not started, and running it says what is wrong."""
        try:
            about = read_about(path)
            check_about(path, about)
            return cls(about, read_metrics(path), is_busy(path))
        except RunError:
            return cls()

    def as_asked(self) -> "Standing":
        """Return the standing without rounds that the run was given after the sweep."""
        if not (extended := self.about.get(EXTENDED)):
            return self
        first = extended[0]["options"]
        return replace(self, about={**self.about, "options": first}, metrics=self.metrics[: first["rounds"]])

    @cached_property
    def summary(self) -> dict[str, Any]:
        """The summary of a run that has started."""
        return summarise(self.about, self.metrics)

    def reached(self, rung: int | None) -> bool:
        """Return whether the run has done these rounds; none is all of them. One that was stopped has."""
        if not self.about:
            return False
        wanted = self.about["options"]["rounds"] if rung is None else rung
        return len(self.metrics) >= wanted or bool(self.summary["stopped"])

    @property
    def state(self) -> str:
        """The state: waiting, running, finished or interrupted."""
        if self.busy:
            return "running"
        return "waiting" if not self.about else "finished" if self.reached(None) else "interrupted"

    @property
    def progress(self) -> str:
        """The rounds so far: ``3/20``."""
        return f"{len(self.metrics)}/{self.about['options']['rounds']}" if self.about else ""

    @property
    def scores(self) -> str:
        """The primary metric, on the test set and on held-out samples."""
        if not self.about:
            return ""
        found = self.summary
        shown = (primary(self.about), *held_out(self.about)[:1])
        return ", ".join(f"{score.words} {score.write(found[score.name])}" for score in shown)

    @property
    def line(self) -> str:
        """What the run has done, in one line: ``20/20 rounds, accuracy 93.1 %``."""
        return f"{self.progress} rounds, {self.scores}" if self.about else "not started"


class Spread(NamedTuple):
    """Values over seeds.

    Args:
        mean: the mean; none without values
        deviation: the standard deviation; none for fewer than two values
    """

    mean: float | None = None
    deviation: float | None = None

    @classmethod
    def of(cls, values: Sequence[float | None]) -> "Spread":
        """Return mean and deviation; none if a value is missing."""
        known = [value for value in values if value is not None]
        if not known or len(known) < len(values):
            return cls()
        return cls(statistics.fmean(known), statistics.stdev(known) if len(known) > 1 else None)

    def write(self, score: Score) -> str:
        """Format both: ``93.1 ± 0.4 %``."""
        if self.mean is None:
            return BLANK
        if self.deviation is None:
            return score.write(self.mean)
        value, unit, _ = score.write(self.mean).partition(" %")
        return f"{value} ± {score.write(self.deviation).removesuffix(' %')}{unit}"


class Point(NamedTuple):
    """A point of a sweep.

    Args:
        values: its values of the grid, by name
        runs: its runs, by seed
        standings: what each has done
    """

    values: tuple[tuple[str, str], ...]
    runs: list[SweepRun]
    standings: list[Standing]

    @property
    def label(self) -> str:
        """The point as text."""
        return label_of(self.values)

    @property
    def started(self) -> list[Standing]:
        """The runs that have started."""
        return [standing for standing in self.standings if standing.about]

    @property
    def rounds(self) -> int:
        """The largest number of rounds that a run has done."""
        return max((len(standing.metrics) for standing in self.started), default=0)

    @property
    def whole(self) -> bool:
        """Whether all runs are finished."""
        return all(standing.reached(None) for standing in self.standings)

    def over_seeds(self, entry: str) -> Spread:
        """Return mean and deviation over seeds of an entry of summaries."""
        return Spread.of([standing.summary.get(entry) for standing in self.started])


def points_of(path: Path, sweep: Sweep) -> list[Point]:
    """Return the points of a recorded sweep, in the order of the grid."""
    every = {run.name: Standing.of(path / run.name).as_asked() for run in sweep.runs}
    found = []
    for values in sweep.points:
        runs = [run for run in sweep.runs if run.point == values]
        found.append(Point(values, runs, [every[run.name] for run in runs]))
    return found


def scores_of(points: Sequence[Point]) -> tuple[Score | None, Score | None]:
    """Return the metric of all runs, on the test set and on held-out samples; none if they differ or there is none."""
    abouts = [standing.about for point in points for standing in point.started]
    if not abouts:
        return None, None
    test, held = common(map(primary, abouts)), [held_out(about)[:1] for about in abouts]
    return test, common(score for each in held for score in each) if test and all(held) else None


def best_of(points: Sequence[Point], held: Score) -> Point | None:
    """Return the finished point with the best mean on held-out samples, the first among equals."""
    means = [(point.over_seeds(held.name).mean, point) for point in points if point.whole]
    known = [(mean, point) for mean, point in means if mean is not None]
    choose = max if held.better == "higher" else min
    return choose(known, key=lambda each: each[0])[1] if known else None


def mean_records(point: Point, score: Score) -> list[Record]:
    """Return records with the means over seeds, of the rounds that all started runs have, for curves."""
    records = []
    for seeds in zip(*(standing.metrics for standing in point.started), strict=False):
        found = Spread.of([record.get(score.name) for record in seeds])
        counted: list[str] = [name for name in ("joules", "delay", "time") if all(name in record for record in seeds)]
        costs = {name: statistics.fmean(record[name] for record in seeds) for name in counted}
        sent = statistics.fmean(sum(record["bytes_up"].values()) for record in seeds)
        measured = {} if found.mean is None else {score.name: found.mean, DEVIATION: found.deviation or 0.0}
        records.append({"round": seeds[0]["round"], **measured, **costs, "bytes_up": {"mean": sent}})
    return records


def draw(path: Path, sweep: Sweep, picture: Path) -> bool:
    """Draw one curve per point, the mean over seeds with a band of one deviation; return whether there is anything.

    The metric is that on held-out samples if there are any, because the picture shows what the choice is made by.
    """
    points = [point for point in points_of(path, sweep) if point.started]
    test, held = scores_of(points)
    score = held or test
    if score is None:
        return False
    curves.draw([point.label for point in points], [mean_records(point, score) for point in points], picture, score)
    return True


def compared(path: Path, sweep: Sweep) -> str:
    """Return the table of a sweep, and the best point."""
    points = points_of(path, sweep)
    test, held = scores_of(points)
    shown = [score for score in (held, test) if score is not None]
    heads = (*sweep.grid, "seeds", "rounds", *(score.words for score in shown), "up", "down", "state")
    furthest = max(point.rounds for point in points) if sweep.halving else 0
    rows = []
    for point in points:
        done = [len(standing.metrics) for standing in point.started]
        sums = [point.over_seeds(name).mean for name in ("bytes_up", "bytes_down")]
        if point.whole:
            state = "finished"
        elif len(point.started) == len(point.standings) and point.rounds < furthest:
            state = "stopped"  # halving has left it behind
        else:
            whole = sum(standing.reached(None) for standing in point.standings)
            state = f"{whole} of {len(point.standings)} finished"
        rows.append(
            [
                *(short(value) for _, value in point.values),
                str(len(point.started)),
                "-".join(dict.fromkeys((str(min(done)), str(max(done))))) if done else BLANK,
                *(point.over_seeds(score.name).write(score) for score in shown),
                *(BLANK if total is None else size(total) for total in sums),
                state,
            ]
        )
    return f"{table(heads, rows)}\n\n{_conclusion(points, test, held)}"


def to_targets(path: Path, sweep: Sweep, given: str) -> Iterator[str]:
    """Yield a table for each target: what the runs of each point spent until they reached it, as means over seeds."""
    points = [point for point in points_of(path, sweep) if point.started]
    targets = targets_for(given, [standing.about for point in points for standing in point.started])
    names = [point.label for point in points]
    for target in targets if points else ():
        found = [
            [to_target(target, standing.about, standing.metrics) for standing in point.started] for point in points
        ]
        yield over_seeds(names, found)


def _conclusion(points: Sequence[Point], test: Score | None, held: Score | None) -> str:
    """Return which point is the best, or why none is."""
    if test is None:
        return "no best point: no run has started, or the runs have different metrics"
    if held is None:
        return UNCHOSEN
    if (best := best_of(points, held)) is None:
        return "no best point yet: no point is finished"
    values = ", ".join(f"{score.words} {best.over_seeds(score.name).write(score)}" for score in (held, test))
    return f"best by {held.words}: {best.label} ({values})"
