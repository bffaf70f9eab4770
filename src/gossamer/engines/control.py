"""When a run ends before its last round: a reached target, no improvement, or a callback that asks for it.

Targets and patience are pure functions of the records, so that a resumed run stops where an uninterrupted one does.
The reason is written with the record of the last round, as ``stopped``. A record and its reason are saved together.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from gossamer.core.errors import RunError
from gossamer.runs.records import Record
from gossamer.runs.report.scores import Score
from gossamer.runs.report.targets import Target, Targets, check_targets, directions, number_in, read_targets


@dataclass(frozen=True)
class Until:
    """Targets of a run: the first that is reached ends it."""

    targets: tuple[Target, ...]
    takes: ClassVar[str] = "METRIC=X"

    @classmethod
    def of(cls, given: "Targets | Until") -> "Until":
        """Return targets from text, or from a mapping of metrics to values."""
        return given if isinstance(given, Until) else cls(read_targets(given, "until"))

    @classmethod
    def of_text(cls, text: str) -> "Until":
        """Read targets that are separated by commas."""
        return cls(tuple(map(Target.of_text, text.split(","))))

    def to_text(self) -> str:
        """Return the text that ``of_text`` reads."""
        return ",".join(map(str, self.targets))

    def check(self, scores: Iterable[Score]) -> None:
        """Refuse metrics that no record will have, and targets without a direction."""
        check_targets(self.targets, list(scores), "until")

    def reason(self, record: Record, scores: Iterable[Score]) -> str | None:
        """Return which target a record reaches, if any."""
        better = directions(scores)
        hit = next((target for target in self.targets if target.reached(record, better)), None)
        return f"{hit} is reached: {hit.metric} is {number_in(record, hit.metric):.4g}" if hit else None


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
