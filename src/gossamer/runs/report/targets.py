"""Targets of metrics, such as ``accuracy=0.9``: as they are typed, and what a run spent until it reached one.

``--until`` ends a run with a target, and ``--target`` shows what was spent until a target was reached: rounds, virtual
time, joules and bytes. A target counts as reached in the first record that reaches it. Metrics are in the records of
evaluated rounds alone, so a run that is evaluated every tenth round is known to have reached its target in a tenth
round.
"""

import operator
import re
import statistics
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from gossamer.core.errors import ConfigError, Mistake, Setting, gather
from gossamer.core.specs import unknown
from gossamer.runs.records import Record
from gossamer.runs.report.scores import VALIDATION, VALIDATION_LOSS, Score, held_out, scores_of
from gossamer.runs.report.text import BLANK, joules, number, seconds, size, table
from gossamer.runs.report.timeline import virtual_time

Targets = str | Mapping[str, float]
"""Targets as they are given: text, separated by commas, or a mapping of metrics to values."""

SIGNS: dict[str, Callable[[float, float], bool]] = {
    "<=": operator.le,
    ">=": operator.ge,
    "<": operator.lt,
    ">": operator.gt,
}
"""The signs of a target, besides ``=``."""

LOSSES = ("loss", "train_loss")
"""Numbers of a record that are better when they are lower, besides the metrics of the task."""

UNDIRECTED = ("flops", "useful_flops", "joules", "airtime", "delay", "memory_bytes", "time")
"""Other numbers of records; a target for one of them needs a sign. Only runs with a schedule have ``time``."""

FIGURES = "figures."
"""The prefix of numbers that parts measure: ``figures.masks.density``."""


def directions(scores: Iterable[Score]) -> dict[str, str]:
    """Return whether higher or lower is better for each metric of a run, and for its losses."""
    named = {name: score.better for score in scores for name in score.entries}
    losses = (*LOSSES, *([VALIDATION_LOSS] if any(name.startswith(VALIDATION) for name in named) else ()))
    return named | dict.fromkeys(losses, "lower")


def number_in(record: Mapping[str, Any], name: str) -> float | None:
    """Return a number of a record, by its name or by the path to it; none if there is none.

    >>> number_in({"loss": 0.5, "figures": {"masks": {"density": 0.1}}}, "figures.masks.density")
    0.1
    """
    found: Any = record
    for key in name.split("."):
        found = found.get(key) if isinstance(found, Mapping) else None
    return found if isinstance(found, int | float) and not isinstance(found, bool) else None


@dataclass(frozen=True)
class Target:
    """A value that a metric is to reach: ``accuracy=0.9`` (at least, because higher is better) or ``loss<0.3``.

    Args:
        metric: name of a number in the records
        sign: ``=``, ``<``, ``<=``, ``>`` or ``>=``
        value: the value
    """

    metric: str
    sign: str
    value: float

    @classmethod
    def of_text(cls, text: str) -> "Target":
        """Read a target; raise ``ValueError`` with what was expected."""
        found = re.fullmatch(r"\s*([\w.]+)\s*(<=|>=|<|>|=)\s*(\S+)\s*", text)
        try:
            number, percent, _ = found[3].partition("%")  # type: ignore[index]  # None is a TypeError
            return cls(found[1], found[2], float(number) / (100 if percent else 1))  # type: ignore[index]
        except (TypeError, ValueError):
            raise ValueError("a metric and a number, such as accuracy=0.9 or loss<0.3") from None

    def __str__(self) -> str:
        return f"{self.metric}{self.sign}{self.shown}"

    @property
    def shown(self) -> str:
        """The value as text, without a needless fraction."""
        return str(int(self.value)) if self.value.is_integer() else repr(self.value)

    def mistake(self, better: Mapping[str, str], shares: Collection[str], about: Setting) -> str | None:
        """Return what is wrong with the target in a run with these directions of metrics, if anything.

        ``shares`` are the metrics that are at most 1. ``about`` is the setting that has the target.
        """
        known = (*better, *UNDIRECTED)
        if self.metric not in known and not self.metric.startswith(FIGURES):
            return Mistake(f": {unknown('metric', self.metric, known)}", about)
        if self.sign == "=" and self.metric not in better:
            return Mistake(f": {self}: write {self.metric}<{self.shown} or {self.metric}>{self.shown}", about)
        if self.metric in shares and self.value > 1:
            meant = f": write {replace(self, value=self.value / 100)}" if self.value <= 100 else ""
            return Mistake(f": {self}: {self.metric} is at most 1{meant}", about)
        return None

    def reached(self, record: Record, better: Mapping[str, str]) -> bool:
        """Return whether a record reaches the target."""
        value = number_in(record, self.metric)
        sign = {"higher": ">=", "lower": "<="}[better[self.metric]] if self.sign == "=" else self.sign
        return value is not None and SIGNS[sign](value, self.value)


def read_targets(given: Targets, name: str) -> tuple[Target, ...]:
    """Return targets from text, or from a mapping of metrics to values; ``name`` is the setting that has them."""
    text = ",".join(f"{metric}={value}" for metric, value in given.items()) if isinstance(given, Mapping) else given
    try:
        return tuple(map(Target.of_text, str(text).split(",")))
    except ValueError as error:
        raise ConfigError(f"{name} must be {error}, got {given!r}") from None


def check_targets(targets: Iterable[Target], scores: Sequence[Score], name: str) -> None:
    """Refuse metrics that no record of a run will have, and targets without a direction."""
    better, about = directions(scores), Setting("", name)
    shares = {entry for score in scores if score.format == "percent" for entry in score.entries}
    gather([mistake for target in targets if (mistake := target.mistake(better, shares, about))])


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


COSTS: dict[str, Callable[[float], str]]
COSTS = {"round": number, "time": seconds, "joules": joules, "bytes_up": size, "bytes_down": size}
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
    found = virtual_time(spent)
    return Reached(
        str(target),
        metrics[last]["round"],
        found if found is not None else float(sum(record["delay"] for record in spent)) or None,
        float(sum(record["joules"] for record in spent)),
        *(sum(sum(record[name].values()) for record in spent) for name in ("bytes_up", "bytes_down")),
    )


def _scores(about: Mapping[str, Any]) -> tuple[Any, ...]:
    return (*scores_of(about["task"]), *held_out(about))


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
    shown = table([head[place] for place in kept], [[row[place] for place in kept] for row in rows])
    return f"{NOTE.format(target)}\n{shown}"


def _cells(found: Sequence[Reached]) -> list[str]:
    """Return means of costs, with deviations if there are several; energy that is not counted is left out."""
    cells = []
    for cost, write in COSTS.items():
        known = [value for each in found if (value := getattr(each, cost)) is not None]
        if not known or len(known) < len(found) or (cost == "joules" and not any(known)):
            cells.append(BLANK)
        else:
            spread = f" ± {write(statistics.stdev(known))}" if len(known) > 1 else ""
            cells.append(write(statistics.fmean(known)) + spread)
    return cells
