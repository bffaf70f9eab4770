"""When a run ends before its last round: a reached target, no improvement, or a callback that asks for it.

Targets and patience are pure functions of the records, so that a resumed run stops where an uninterrupted one does.
The reason is written with the record of the last round, as ``stopped``. A record and its reason are saved together.
"""

import operator
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from gossamer.core.errors import ConfigError, Mistake, RunError, Setting, gather
from gossamer.core.specs import unknown
from gossamer.runs.records import Record
from gossamer.runs.report.scores import VALIDATION, VALIDATION_LOSS, Score

SIGNS: dict[str, Callable[[float, float], bool]] = {
    "<=": operator.le,
    ">=": operator.ge,
    "<": operator.lt,
    ">": operator.gt,
}
"""The signs of a target, besides ``=``."""

LOSSES = ("loss", "train_loss")
"""Numbers of a record that are better when they are lower, besides the metrics of the task."""

ABOUT = Setting("", "until")
"""What mistakes in a target are about."""

COSTS = ("flops", "useful_flops", "joules", "airtime", "delay", "memory_bytes")
"""Other numbers of every record; a target for one of them needs a sign."""

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

    def mistake(self, better: Mapping[str, str], shares: Collection[str] = ()) -> str | None:
        """Return what is wrong with the target in a run with these directions of metrics, if anything.

        ``shares`` are the metrics that are at most 1.
        """
        known = (*better, *COSTS)
        if self.metric not in known and not self.metric.startswith(FIGURES):
            return Mistake(f": {unknown('metric', self.metric, known)}", ABOUT)
        if self.sign == "=" and self.metric not in better:
            return Mistake(f": {self}: write {self.metric}<{self.shown} or {self.metric}>{self.shown}", ABOUT)
        if self.metric in shares and self.value > 1:
            meant = f": write {replace(self, value=self.value / 100)}" if self.value <= 100 else ""
            return Mistake(f": {self}: {self.metric} is at most 1{meant}", ABOUT)
        return None

    def reached(self, record: Record, better: Mapping[str, str]) -> bool:
        """Return whether a record reaches the target."""
        value = number(record, self.metric)
        sign = {"higher": ">=", "lower": "<="}[better[self.metric]] if self.sign == "=" else self.sign
        return value is not None and SIGNS[sign](value, self.value)


@dataclass(frozen=True)
class Until:
    """Targets of a run: the first that is reached ends it."""

    targets: tuple[Target, ...]
    takes: ClassVar[str] = "METRIC=X"

    @classmethod
    def of(cls, given: "str | Mapping[str, float] | Until") -> "Until":
        """Return targets from text, or from a mapping of metrics to values."""
        if isinstance(given, Until):
            return given
        text = ",".join(f"{name}={value}" for name, value in given.items()) if isinstance(given, Mapping) else given
        try:
            return cls.of_text(str(text))
        except ValueError as error:
            raise ConfigError(f"until must be {error}, got {given!r}") from None

    @classmethod
    def of_text(cls, text: str) -> "Until":
        """Read targets that are separated by commas."""
        return cls(tuple(map(Target.of_text, text.split(","))))

    def to_text(self) -> str:
        """Return the text that ``of_text`` reads."""
        return ",".join(map(str, self.targets))

    def check(self, scores: Iterable[Score]) -> None:
        """Refuse metrics that no record will have, and targets without a direction."""
        scores = list(scores)
        better = directions(scores)
        shares = {name for score in scores if score.format == "percent" for name in score.entries}
        gather([mistake for target in self.targets if (mistake := target.mistake(better, shares))])

    def reason(self, record: Record, scores: Iterable[Score]) -> str | None:
        """Return which target a record reaches, if any."""
        better = directions(scores)
        hit = next((target for target in self.targets if target.reached(record, better)), None)
        return f"{hit} is reached: {hit.metric} is {number(record, hit.metric):.4g}" if hit else None


def out_of_patience(records: Sequence[Record], patience: int, score: Score) -> str | None:
    """Return the reason to stop after ``patience`` evaluations without improvement, or none.

    An evaluation without a finite value is no improvement. Rounds that were not evaluated do not count.
    """
    evaluated = [record for record in records if score.name in record]
    if not evaluated or score.name not in records[-1]:
        return None
    best = score.best(evaluated)
    waited = sum(best is None or record["round"] > best["round"] for record in evaluated)
    if waited < patience:
        return None
    since = f"since round {best['round']} ({score.write(best[score.name])})" if best else "at all"
    return f"no better {score.words} {since}: patience of {patience} is over"


class Paused(Exception):  # noqa: N818 - no error: the run is where it was asked to be
    """A run was interrupted after a round, and its record and checkpoint are saved."""


def pausing(watch: Callable[[Record], None], after: int) -> Callable[[Record], None]:
    """Return a function that watches a run, and interrupts it after a round; resuming the run continues it."""

    def watched(record: Record) -> None:
        watch(record)
        if record["round"] >= after:
            raise Paused

    return watched


Callback = Callable[[Record, Any], str | None]
"""Called after each round with its record and the run; a text that it returns ends the run with that reason."""

Callbacks = Callback | Iterable[Callback]


def callbacks_of(given: Callbacks) -> tuple[Callback, ...]:
    """Return callbacks that are given as a list or as one function."""
    return (given,) if callable(given) else tuple(given)


def ask(callbacks: Iterable[Callback], record: Record, run: Any) -> str | None:
    """Call all callbacks, and return the first reason to stop."""
    reasons = [_answer(callback, record, run) for callback in callbacks]
    return next((reason for reason in reasons if reason is not None), None)


def _answer(callback: Callback, record: Record, run: Any) -> str | None:
    try:
        reason = callback(record, run)
    except Exception as error:
        text = f"{type(error).__name__}: {error}"
        raise RunError(f"the callback {_name(callback)} fails after round {record['round']}: {text}") from error
    if reason is not None and not isinstance(reason, str):
        raise RunError(
            f"the callback {_name(callback)} must return None, or a text: the reason to stop; got {reason!r}"
        )
    return reason


def _name(callback: Callback) -> str:
    return str(getattr(callback, "__name__", type(callback).__name__))
