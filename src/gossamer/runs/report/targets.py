"""Targets of metrics, such as ``accuracy=0.9``: as they are typed, and when a record reaches one.

``--until`` ends a run with a target, and ``--target`` shows what was spent until a target was reached.
"""

import operator
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gossamer.core.errors import ConfigError, Mistake, Setting, gather
from gossamer.core.specs import unknown
from gossamer.runs.records import Record
from gossamer.runs.report.scores import VALIDATION, VALIDATION_LOSS, Score

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

COSTS = ("flops", "useful_flops", "joules", "airtime", "delay", "memory_bytes", "time")
"""Other numbers of records; a target for one of them needs a sign. Only runs with a schedule have ``time``."""

FIGURES = "figures."
"""The prefix of numbers that parts measure: ``figures.masks.density``."""


def directions(scores: Iterable[Score]) -> dict[str, str]:
    """Return whether higher or lower is better for each metric of a run, and for its losses."""
    named = {name: score.better for score in scores for name in score.entries}
    losses = (*LOSSES, *([VALIDATION_LOSS] if any(name.startswith(VALIDATION) for name in named) else ()))
    return named | dict.fromkeys(losses, "lower")


def number(record: Mapping[str, Any], name: str) -> float | None:
    """Return a number of a record, by its name or by the path to it; none if there is none.

    >>> number({"loss": 0.5, "figures": {"masks": {"density": 0.1}}}, "figures.masks.density")
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
        known = (*better, *COSTS)
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
        value = number(record, self.metric)
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
