"""Curves of a metric: of one run, and of several by rounds, uploaded bytes, joules and virtual time.

Rounds of a schedule add up to its virtual time. Without a schedule, they add up to what the channel counts. The
numbers of a run by round are also those of its data frame.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from gossamer.core import files
from gossamer.core.errors import ConfigError
from gossamer.core.extras import need
from gossamer.core.specs import unknown
from gossamer.runs.records import COUNTS, SUMS, Record
from gossamer.runs.report.plots import COLOURS, GRID, INK, STYLES, Series, line_figure, saved
from gossamer.runs.report.scores import ACCURACY, VALIDATION, Score
from gossamer.runs.report.text import time_unit
from gossamer.runs.report.timeline import task_counts

if TYPE_CHECKING:
    from matplotlib.axes import Axes
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


def metric_figure(metrics: Sequence[Record], names: Sequence[str], by: str) -> "Figure":
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


MARKED = 12
"""The largest number of evaluated rounds that are marked one by one."""

LONG = 28
"""Names of at least this length are set two in a row."""

DEVIATION = "deviation"
"""The entry of records that are means over seeds: the standard deviation of the metric."""

FAR_APART = 5
"""The ratio of costs from which the axis is logarithmic."""


class Panel(NamedTuple):
    """A panel of a metric by cost.

    Args:
        spent: returns the cost of a round
        name: the label of the axis
        none: the note on runs without this cost
    """

    spent: Callable[[Record], float]
    name: str
    none: str

    def so_far(self, metrics: Sequence[Record]) -> list[float]:
        """Return the cost after each round."""
        return list(accumulate(map(self.spent, metrics)))

    def total(self, metrics: Sequence[Record]) -> float:
        """Return the cost of all rounds."""
        return sum(map(self.spent, metrics))


SENT = Panel(lambda record: sum(record["bytes_up"].values()) / 1e6, "uploaded bytes (MB)", "nothing is uploaded")
ENERGY = Panel(lambda record: record["joules"], "energy spent by clients so far (J)", "not counted")
DELAY = Panel(lambda record: record["delay"], "time for computing and sending so far (s)", "not counted")
"""Costs that only some channels count."""


def _time(runs: Sequence[Sequence[Record]]) -> Panel:
    """Return the panel of virtual time, in a unit that suits the longest run; that of the delay without a schedule."""
    if not any("time" in record for metrics in runs for record in metrics):
        return DELAY
    unit, scale = time_unit(max(map(DELAY.total, runs)))
    return Panel(lambda record: record["delay"] / scale, f"virtual time so far ({unit})", "not counted")


def draw(names: Sequence[str], runs: Sequence[Sequence[Record]], path: Path, score: Score = ACCURACY) -> None:
    """Draw runs to a file; its suffix is the format."""
    files.write(path, saved(figure(names, runs, score), path.suffix[1:].lower(), dpi=150))


def figure(names: Sequence[str], runs: Sequence[Sequence[Record]], score: Score = ACCURACY) -> "Figure":
    """Return panels that share the axis of the metric, two in a row, with the names of the runs below."""
    need("matplotlib")
    from matplotlib.figure import Figure

    panels = [SENT, *(panel for panel in (ENERGY, _time(runs)) if any(map(panel.total, runs)))]
    columns, rows = min(len(names), 3 if max(map(len, names)) < LONG else 2), len(panels) // 2 + 1
    picture = Figure(figsize=(10, 0.4 + 3.6 * rows + 0.23 * -(-len(names) // columns)), layout="constrained")
    first: Any = picture.add_subplot(rows, 2, 1)
    lines = [_line(first, number, metrics, score) for number, metrics in enumerate(runs)]
    first.set(xlabel="round", xlim=(0, None))
    first.xaxis.get_major_locator().set_params(integer=True)
    for number, panel in enumerate(panels, start=2):
        _draw(picture.add_subplot(rows, 2, number, sharey=first), panel, runs, score)
    for number, axes in enumerate(picture.axes):
        _dress(axes, score, left=number % 2 == 0)
    # A dollar would start a formula.
    labels = [name.replace("$", r"\$") for name in names]
    picture.legend(lines, labels, loc="outside lower center", ncols=columns, frameon=False, labelcolor=INK)
    return picture


def _draw(axes: "Axes", panel: Panel, runs: Sequence[Sequence[Record]], score: Score) -> None:
    """Draw all runs by cost; a run without this cost is a dotted level."""
    for number, metrics in enumerate(runs):
        at, values = _values(metrics, score)
        style, spent = _style(number, len(at)), panel.so_far(metrics)
        if spent and spent[-1]:
            axes.plot([spent[i] for i in at], values, **style)
            _band(axes, [spent[i] for i in at], at, metrics, score, style)
        elif values:
            axes.axhline(values[-1], color=style["color"], linewidth=1.2, linestyle=(0, (1, 3)))
    silent = any(metrics and not panel.total(metrics) for metrics in runs)
    axes.set(xlabel=panel.name + (f"; dotted: {panel.none}" if silent else ""))
    totals = [total for total in map(panel.total, runs) if total]
    if totals and max(totals) > FAR_APART * min(totals):
        axes.set_xscale("log")
    else:
        axes.set_xlim(0, None)


def _line(axes: "Axes", number: int, metrics: Sequence[Record], score: Score) -> Any:
    """Draw the line of a run by rounds."""
    at, values = _values(metrics, score)
    style, rounds = _style(number, len(at)), [metrics[i]["round"] for i in at]
    (line,) = axes.plot(rounds, values, **style)
    _band(axes, rounds, at, metrics, score, style)
    return line


def _band(
    axes: "Axes",
    x: Sequence[float],
    at: Sequence[int],
    metrics: Sequence[Record],
    score: Score,
    style: Mapping[str, Any],
) -> None:
    """Draw one standard deviation around a curve whose records are means over seeds."""
    spread = [(metrics[i][score.name], metrics[i].get(DEVIATION, 0.0)) for i in at]
    if any(deviation for _, deviation in spread):
        low, high = ([score.scale * (mean + sign * d) for mean, d in spread] for sign in (-1, 1))
        axes.fill_between(x, low, high, color=style["color"], alpha=0.15, linewidth=0)


def _values(metrics: Sequence[Record], score: Score) -> tuple[list[int], list[float]]:
    """Return the indices of evaluated records, and their values of a metric as an axis shows them."""
    at = [i for i, record in enumerate(metrics) if record.get(score.name) is not None]
    return at, [score.scale * metrics[i][score.name] for i in at]


def _style(number: int, points: int) -> dict[str, Any]:
    return {
        "color": COLOURS[number % len(COLOURS)],
        "linestyle": STYLES[number // len(COLOURS) % len(STYLES)],
        "marker": "o" if points <= MARKED else "",
        "markersize": 4,
        "linewidth": 1.8,
    }


def _dress(axes: "Axes", score: Score, left: bool) -> None:
    where = "" if score.name.startswith(VALIDATION) else " on the test set"
    axes.set_ylabel(f"{score.words}{where}{score.unit}" if left else "")
    axes.grid(color=GRID, linewidth=0.8)
    axes.tick_params(color=INK, labelcolor=INK)
    axes.tick_params("y", labelleft=left)
    axes.xaxis.label.set_color(INK)
    axes.yaxis.label.set_color(INK)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color("#9aa5b1")
