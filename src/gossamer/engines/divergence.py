"""Tell a run that diverges from one that learns slowly.

A model can grow without end and stay finite, and the run then looks as if it learned nothing. The rule: the largest
weight is more than 1000 times that of the initial model, at least 1, and the latest evaluation is no better than the
first one.
"""

from collections.abc import Sequence

from gossamer.core.types import Params
from gossamer.core.untrusted import largest
from gossamer.runs.records import Record
from gossamer.runs.report.scores import Score

GROWN = 1000.0
"""The factor by which the largest weight may grow."""

DIVERGES = "diverges"
"""The entry of a record with the warning."""


class DivergenceWarning(UserWarning):
    """The weights of the model grow, and the model learns nothing."""


def divergence(records: Sequence[Record], score: Score, models: Sequence[Params]) -> str | None:
    """Return that a run diverges, and what to do; none if it does not. ``models`` are the initial and later ones."""
    first, *others = models
    known = [record for record in records if score.name in record]
    if len(known) < 2 or score.best([known[0], known[-1]]) not in (known[0], None):
        return None
    grown = max(largest(model.values()) for model in others) / max(1.0, largest(first.values()))
    if not grown > GROWN:
        return None
    return (
        f"training diverges: the largest weight is {grown:,.0f} times that of the initial model, and {score.words} is "
        "no better than at first: use a smaller learning rate (--lr, or --global-lr where there is one), or robust "
        "aggregation (--server) if clients are named as anomalies"
    )
