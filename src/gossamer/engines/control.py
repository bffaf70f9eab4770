"""When a run ends before its last round: a reached target, no improvement, or a callback that asks for it.

Targets and patience are pure functions of the records, so that a resumed run stops where an uninterrupted one does.
The reason is written with the record of the last round, as ``stopped``. A record and its reason are saved together.
"""

import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from gossamer.core.errors import ConfigError, RunError, gather
from gossamer.core.specs import unknown
from gossamer.runs.records import Record

SIGNS: dict[str, Callable[[float, float], bool]] = {
    "<=": operator.le,
    ">=": operator.ge,
    "<": operator.lt,
    ">": operator.gt,
}
"""The signs of a target, besides ``=``."""

LOWER = ("loss", "error", "rmse", "mse", "mae", "perplexity")
HIGHER = ("accuracy", "auc", "f1", "precision", "recall", "r2", "score")
"""Endings of the names of metrics, by their direction: smaller or larger is better."""

PRIMARY = "accuracy"
"""The metric by which ``patience`` judges."""

RECORDED = ("accuracy", "loss", "personal_accuracy", "worst_tenth_accuracy", "train_loss", "flops", "joules", "delay")
"""Numbers that every record has, or every record of an evaluated round."""

FIGURES = "figures."
"""The prefix of numbers that parts measure: ``figures.masks.density``."""


def higher_is_better(name: str) -> bool | None:
    """Return the direction of a metric by the ending of its name; none if it has no known one.

    >>> higher_is_better("personal_accuracy"), higher_is_better("val_loss"), higher_is_better("joules")
    (True, False, None)
    """
    ending = name.rpartition(".")[2].rpartition("_")[2]
    return True if ending in HIGHER else False if ending in LOWER else None


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
    """A value that a metric is to reach.

    Args:
        metric: name of a number in the records
        sign: ``<``, ``<=``, ``>`` or ``>=``
        value: the value
        text: the target as it was written
    """

    metric: str
    sign: str
    value: float
    text: str

    @classmethod
    def of_text(cls, text: str) -> "Target":
        """Read ``accuracy=0.9`` or ``loss<0.3``; an equals sign means at least, or at most, by the metric's name."""
        found = re.fullmatch(r"\s*([\w.]+)\s*(<=|>=|<|>|=)\s*(\S+)\s*", text)
        if found is None:
            raise ValueError("a metric and a value, such as accuracy=0.9 or loss<0.3")
        name, sign, written = found.groups()
        try:
            value = float(written)
        except ValueError:
            raise ValueError(f"a metric and a number, such as {name}=0.9") from None
        if sign == "=":
            higher = higher_is_better(name)
            if higher is None:
                raise ValueError(f"{name}<{written} or {name}>{written}: whether less is better is not known")
            sign = ">=" if higher else "<="
        return cls(name, sign, value, "".join(found.groups()))

    def reached(self, record: Record) -> bool:
        """Return whether a record reaches the target."""
        value = number(record, self.metric)
        return value is not None and SIGNS[self.sign](value, self.value)


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
        try:
            return cls.of_text(given if isinstance(given, str) else ",".join(f"{n}={v!r}" for n, v in given.items()))
        except (ValueError, AttributeError) as error:
            raise ConfigError(f"until must be {error}, got {given!r}") from None

    @classmethod
    def of_text(cls, text: str) -> "Until":
        """Read targets that are separated by commas."""
        return cls(tuple(map(Target.of_text, text.split(","))))

    def to_text(self) -> str:
        """Return the text that ``of_text`` reads."""
        return ",".join(target.text for target in self.targets)

    def check(self, known: Iterable[str]) -> None:
        """Refuse metrics that no record will have."""
        names = list(known)
        strange = [t.metric for t in self.targets if t.metric not in names and not t.metric.startswith(FIGURES)]
        gather([f"until: {unknown('metric', name, names)}" for name in strange])

    def reason(self, record: Record) -> str | None:
        """Return which target a record reaches, if any."""
        hit = next((target for target in self.targets if target.reached(record)), None)
        return f"{hit.metric} is {number(record, hit.metric):.4g}: {hit.text} is reached" if hit else None


def out_of_patience(records: Sequence[Record], patience: int, metric: str = PRIMARY) -> str | None:
    """Return the reason to stop after ``patience`` evaluations without improvement, or none.

    An evaluation without a finite value is no improvement.
    """
    evaluated = [(record["round"], record[metric]) for record in records if metric in record]
    if not evaluated or metric not in records[-1]:
        return None
    sign = -1 if higher_is_better(metric) is False else 1
    finite = [(sign * value, -at, index) for index, (at, value) in enumerate(evaluated) if value is not None]
    best = max(finite, default=(None, 0, -1))
    if len(evaluated) - 1 - best[2] < patience:
        return None
    since = f"since round {-best[1]}" if finite else "at all"
    return f"{metric} has not improved {since}: patience is {patience}"


Callback = Callable[[Record, Any], str | None]
"""Called after each round with its record and the run; a text that it returns ends the run with that reason."""


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
