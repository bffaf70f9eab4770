"""Metrics as reports show them: by name, direction and format, as ``run.json`` records them.

This module needs no torch. A run folder without metrics is one that measured accuracy alone.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from gossamer.runs.report.text import BLANK, number, percent

VALIDATION = "validation_"
"""The start of the name of a metric on held-out training samples."""

VALIDATION_LOSS = f"{VALIDATION}loss"

ACRONYMS = ("auroc", "f1", "mae", "mse", "r2", "rmse")


class Score(NamedTuple):
    """A metric of a run.

    Args:
        name: its name, the entry of records
        better: whether higher or lower values are better
        format: number or percent
    """

    name: str
    better: str = "higher"
    format: str = "percent"

    def write(self, value: float | None) -> str:
        """Format a value: ``93.05 %`` or ``1.28``."""
        return percent(value) if self.format == "percent" else number(value)

    def gap(self, train: float, test: float) -> float:
        """Return by how much the test value is worse than the training value."""
        return train - test if self.better == "higher" else test - train

    @property
    def over_clients(self) -> str:
        """The entry of the mean over clients."""
        return f"personal_{self.name}"

    @property
    def worst_tenth(self) -> str:
        """The entry of the mean over the worst tenth of the clients."""
        return f"worst_tenth_{self.name}"

    @property
    def entries(self) -> tuple[str, str, str]:
        """The entries of a record: on the test set, the mean over clients, and the worst tenth of the clients."""
        return self.name, self.over_clients, self.worst_tenth

    @property
    def words(self) -> str:
        """The name as words: ``token accuracy``."""
        return self.name.replace("_", " ")

    @property
    def title(self) -> str:
        """The name at the start of a caption, without its unit."""
        return self.name.upper() if self.name in ACRONYMS else self.words[:1].upper() + self.words[1:]

    @property
    def unit(self) -> str:
        """The unit after a name, on an axis: `` (%)`` or nothing."""
        return " (%)" if self.format == "percent" else ""

    @property
    def scale(self) -> float:
        """The factor from a recorded value to a value on an axis."""
        return 100 if self.format == "percent" else 1

    def best(self, metrics: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
        """Return the record with the best value, the first among equals; none if no record has one."""
        known = [record for record in metrics if record.get(self.name) is not None]
        choose = max if self.better == "higher" else min
        return choose(known, key=lambda record: record[self.name], default=None)

    def reaches(self, value: float, target: float) -> bool:
        """Return whether a value is as good as a target, or better."""
        return value >= target if self.better == "higher" else value <= target


ACCURACY = Score("accuracy")


def scores_of(task: Mapping[str, Any]) -> tuple[Score, ...]:
    """Return the metrics of a run, the primary one first, from the task in ``run.json``."""
    return tuple(Score(**each) for each in task.get("metrics", ())) or (ACCURACY,)


def primary(about: Mapping[str, Any]) -> Score:
    """Return the primary metric of a run, from ``run.json``."""
    return scores_of(about["task"])[0]


def held_out(about: Mapping[str, Any]) -> tuple[Score, ...]:
    """Return the metrics on held-out training samples, the primary one first; nothing if no sample is held out."""
    if not about["options"].get("validate"):
        return ()
    return tuple(score._replace(name=f"{VALIDATION}{score.name}") for score in scores_of(about["task"]))


def deciding(about: Mapping[str, Any]) -> Score:
    """Return the metric by which decisions are made: on held-out samples if there are any, else on the test set."""
    return (*held_out(about), primary(about))[0]


def common(scores: Iterable[Score]) -> Score | None:
    """Return the metric that all runs share; none if they differ."""
    first, *others = dict.fromkeys(scores)
    return None if others else first


def column(scores: Sequence[Score], values: Sequence[float | None]) -> tuple[str, list[str]]:
    """Return the head and the cells of a column of scores; runs with different metrics name theirs in the cell."""
    shared = common(scores) if scores else ACCURACY
    cells = [score.write(value) for score, value in zip(scores, values, strict=True)]
    if shared:
        return shared.words, cells
    named = [BLANK if cell == BLANK else f"{score.words} {cell}" for score, cell in zip(scores, cells, strict=True)]
    return "score", named
