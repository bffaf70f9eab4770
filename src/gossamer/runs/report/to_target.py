"""What a run spent until it reached a target: rounds, virtual time, joules and bytes.

A target counts as reached in the first record that reaches it. Metrics are in the records of evaluated rounds alone,
so a run that is evaluated every tenth round is known to have reached its target in a tenth round.
"""

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from gossamer.runs.records import Record
from gossamer.runs.report.scores import held_out, scores_of
from gossamer.runs.report.targets import Target, Targets, check_targets, directions, read_targets
from gossamer.runs.report.text import BLANK, joules, number, seconds, size, table
from gossamer.runs.report.timeline import virtual_time

NAME = "target"
"""The name of the flag, for errors."""

NOTE = "costs until {}, in the first evaluated round that reaches it"


class Reached(NamedTuple):
    """What a run spent until it reached a target. Without a round it did not, and costs are none.

    Args:
        target: the target as text
        round: the first round whose record reaches it
        time: virtual seconds; none if neither a schedule nor the channel counts them
        joules: energy of the clients
        bytes_up: bytes sent by clients
        bytes_down: bytes sent to clients
    """

    target: str
    round: int | None = None
    time: float | None = None
    joules: float | None = None
    bytes_up: int | None = None
    bytes_down: int | None = None

    @property
    def words(self) -> str:
        """The costs in one line."""
        if self.round is None:
            return "not reached"
        time = f", virtual time {seconds(self.time)}" if self.time is not None else ""
        energy = f", {joules(self.joules)}" if self.joules else ""
        sent = f"{size(self.bytes_up or 0)} uploaded, {size(self.bytes_down or 0)} downloaded"
        return f"first reached by the evaluation of round {self.round:,}{time}{energy}, {sent}"


COSTS: dict[str, Callable[[float], str]] = {
    "round": number,
    "time": seconds,
    "joules": joules,
    "bytes_up": size,
    "bytes_down": size,
}
"""The costs of tables, and how they are written."""

HEAD = ("round", "virtual time", "energy", "up", "down")


def targets_for(given: Targets, abouts: Sequence[Mapping[str, Any]]) -> tuple[Target, ...]:
    """Return targets that all of these runs can have; raise ``ConfigError`` if one of them cannot."""
    targets = read_targets(given, NAME)
    for about in abouts:
        check_targets(targets, _scores(about), NAME)
    return targets


def to_target(target: Target, about: Mapping[str, Any], metrics: Sequence[Record]) -> Reached:
    """Return what a run spent until it reached a target."""
    better = directions(_scores(about))
    last = next((place for place, record in enumerate(metrics) if target.reached(record, better)), None)
    if last is None:
        return Reached(str(target))
    spent = metrics[: last + 1]
    return Reached(
        str(target),
        metrics[last]["round"],
        _time(spent),
        float(sum(record["joules"] for record in spent)),
        *(sum(sum(record[name].values()) for record in spent) for name in ("bytes_up", "bytes_down")),
    )


def _scores(about: Mapping[str, Any]) -> tuple[Any, ...]:
    return (*scores_of(about["task"]), *held_out(about))


def _time(metrics: Sequence[Record]) -> float | None:
    """Return virtual seconds: of the schedule or, without one, those that the channel counts."""
    found = virtual_time(metrics)
    return found if found is not None else float(sum(record["delay"] for record in metrics)) or None


def compared(names: Sequence[str], found: Sequence[Reached]) -> str:
    """Return a table of runs and what each spent until it reached the same target, below a title."""
    rows = [_cells([each]) if each.round else ["not reached", *[BLANK] * (len(HEAD) - 1)] for each in found]
    return _titled(found[0].target, ("run", *HEAD), [[name, *row] for name, row in zip(names, rows, strict=True)])


def over_seeds(names: Sequence[str], found: Sequence[Sequence[Reached]]) -> str:
    """Return a table of means over the seeds that reached a target, and how many did."""
    rows = []
    for name, seeds in zip(names, found, strict=True):
        hits = [each for each in seeds if each.round is not None]
        rows.append([name, f"{len(hits)} of {len(seeds)}", *_cells(hits)])
    target = next((each.target for seeds in found for each in seeds), "")
    return _titled(f"{target} (means over the seeds that reach it)", ("runs", "reached", *HEAD), rows)


def _titled(target: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table below a title, without columns that have no value."""
    kept = [place for place in range(len(head)) if not place or any(row[place] != BLANK for row in rows)]
    return f"{NOTE.format(target)}\n" + table(
        [head[place] for place in kept], [[row[place] for place in kept] for row in rows]
    )


def _cells(found: Sequence[Reached]) -> list[str]:
    """Return means of costs, with deviations if there are several; energy that is not counted is left out."""
    return [_mean([getattr(each, cost) for each in found], write, cost) for cost, write in COSTS.items()]


def _mean(values: Sequence[float | None], write: Callable[[float], str], cost: str) -> str:
    known = [value for value in values if value is not None]
    if not known or len(known) < len(values) or (cost == "joules" and not any(known)):
        return BLANK
    mean = write(statistics.fmean(known))
    return mean if len(known) == 1 else f"{mean} ± {write(statistics.stdev(known))}"
