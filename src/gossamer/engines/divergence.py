"""Tell a run that diverges from one that learns slowly.

A model can grow without end and stay finite, and the run then looks as if it learned nothing. The rule: the largest
weight is more than 1000 times that of the initial model, at least 1, and the latest evaluation is no better than the
first one, by the primary metric or by the loss. The metric alone does not tell: a first round may be below chance.
"""

import warnings
from collections.abc import Sequence

from gossamer.core.types import Params
from gossamer.core.untrusted import largest
from gossamer.runs.records import DIVERGES, Record
from gossamer.runs.report.scores import Score

GROWN = 1000.0
"""The factor by which the largest weight may grow."""


class DivergenceWarning(UserWarning):
    """The weights of the model grow, and the model learns nothing."""


def warn_of_divergence(records: Sequence[Record], score: Score, models: Sequence[Params]) -> None:
    """Note in the last record that the run diverges, and show a warning, once per run; the arguments as below."""
    if any(DIVERGES in record for record in records):
        return
    text = divergence(records, score, models)
    if text is not None:
        records[-1][DIVERGES] = text
        warnings.warn(text, DivergenceWarning, stacklevel=2)


def divergence(records: Sequence[Record], score: Score, models: Sequence[Params]) -> str | None:
    """Return that a run diverges, and what to do; none if it does not. ``models`` are the initial and later ones."""
    first, *others = models
    known = [record for record in records if score.name in record]
    if len(known) < 2 or _better(known[0], known[-1], score):
        return None
    grown = max(largest(model.values()) for model in others) / max(1.0, largest(first.values()))
    if not grown > GROWN:
        return None
    return (
        f"training diverges: the largest weight is {grown:,.0f} times that of the initial model, and {score.words} "
        "or loss is no better than at first: use a smaller learning rate (--lr, or --global-lr where there is one), or "
        "robust aggregation (--server) if clients are named as anomalies"
    )


def _better(first: Record, last: Record, score: Score) -> bool:
    """Return whether an evaluation is better than the first one, by the metric and by the loss if it has one."""
    before, after = first.get("loss"), last.get("loss")  # none if it is not finite, or nobody has test samples
    lower = before is None or (after is not None and after < before)
    return lower and score.best([first, last]) is last
