"""Numbers of a run by round, for plots and data frames."""

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from gossamer.core.errors import ConfigError
from gossamer.core.extras import need
from gossamer.core.specs import unknown
from gossamer.runs.records import COUNTS, SUMS, Record
from gossamer.runs.report.plots import Series, line_figure, saved
from gossamer.runs.report.text import time_unit
from gossamer.runs.report.timeline import task_counts

if TYPE_CHECKING:
    from matplotlib.figure import Figure

AXES = {
    "round": "round",
    "bytes": "sent by clients so far ({})",
    "seconds": "seconds so far",
    "time": "virtual time so far ({})",
    "joules": "energy spent by clients so far (J)",
}
"""The labels of x axes."""

UNITS = {"GB": 1e9, "MB": 1e6, "kB": 1e3, "B": 1.0}


def numbers(record: Record) -> dict[str, Any]:
    """Return all numbers of a record by name; figures of parts by their path, such as ``figures.masks.density``.

    >>> numbers({"round": 1, "bytes_up": {"codec.values": 3, "header": 1}, "lost": [2], "figures": {"a": {"b": 4}}})
    {'round': 1, 'bytes_up': 4, 'lost': 1, 'figures.a.b': 4}
    """
    found: dict[str, Any] = {}
    for name, value in record.items():
        if name in SUMS and isinstance(value, Mapping):
            found[name] = sum(value.values())
        elif name in COUNTS:
            found[name] = len(value)
        elif name == "tasks":
            found |= {f"tasks.{outcome}": number for outcome, number in task_counts(record).items()}
        elif isinstance(value, Mapping):
            found |= {f"{name}.{inner}": number for inner, number in numbers(dict(value)).items()}
        elif value is None or isinstance(value, int | float | str):
            found[name] = value
    return found


def axis(metrics: Sequence[Record], by: str) -> tuple[str, list[float]]:
    """Return the label of an x axis, and the position of each round on it."""
    if by not in AXES:
        raise ConfigError(unknown("axis", by, AXES))
    if by == "round":
        return AXES[by], [record["round"] for record in metrics]
    name = {"bytes": "bytes_up", "time": "delay"}.get(by, by)
    totals = list(accumulate(_total(record[name]) for record in metrics))
    if by in ("time", "joules") and not (totals and totals[-1]):
        raise ConfigError(f"the run counts no {by}: neither a schedule nor its channel does")
    unit, scale = _unit(by, totals)
    return AXES[by].format(unit), [total / scale for total in totals]


def _total(cost: Any) -> float:
    return sum(cost.values()) if isinstance(cost, Mapping) else cost


def _unit(by: str, totals: Sequence[float]) -> tuple[str, float]:
    """Return the unit of an axis, and its size."""
    if by == "time":
        return time_unit(totals[-1])
    if by != "bytes":
        return "", 1.0
    return next(((unit, scale) for unit, scale in UNITS.items() if totals and totals[-1] >= scale), ("B", 1.0))


def figure(metrics: Sequence[Record], names: Sequence[str], by: str) -> "Figure":
    """Return a figure of metrics by rounds or a cost so far; rounds without a value are left out."""
    need("matplotlib")
    rows, (label, across) = [numbers(record) for record in metrics], axis(metrics, by)
    known = dict.fromkeys(name for row in rows for name, value in row.items() if isinstance(value, int | float))
    if strange := [name for name in names if name not in known]:
        raise ConfigError(*(unknown("metric", name, known) for name in strange))
    lines = [
        Series(name, [(x, row[name]) for x, row in zip(across, rows, strict=True) if row.get(name) is not None])
        for name in names
    ]
    drawn = line_figure(label, lines, alone=True)
    drawn.axes[0].set_ylabel(names[0] if len(names) == 1 else "")
    # Without this, a notebook displays a figure only if pyplot was imported.
    drawn._repr_png_ = partial(saved, drawn, "png", dpi=120, bbox_inches="tight")  # type: ignore[attr-defined]
    return drawn
