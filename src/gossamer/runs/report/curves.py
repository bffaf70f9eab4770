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
    costs = (record[name] for record in metrics)
    totals = list(accumulate(sum(cost.values()) if isinstance(cost, Mapping) else cost for cost in costs))
    if by in ("time", "joules") and not (totals and totals[-1]):
        raise ConfigError(f"the run counts no {by}: neither a schedule nor its channel does")
    unit, scale = time_unit(totals[-1]) if by == "time" else ("", 1.0)
    if by == "bytes":
        unit, scale = next(((u, s) for u, s in UNITS.items() if totals and totals[-1] >= s), ("B", 1.0))
    return AXES[by].format(unit), [total / scale for total in totals]


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

    def total(self, metrics: Sequence[Record]) -> float:
        """Return the cost of all rounds."""
        return sum(map(self.spent, metrics))


SENT = Panel(lambda record: sum(record["bytes_up"].values()) / 1e6, "uploaded bytes (MB)", "nothing is uploaded")
ENERGY = Panel(lambda record: record["joules"], "energy spent by clients so far (J)", "not counted")
DELAY = Panel(lambda record: record["delay"], "time for computing and sending so far (s)", "not counted")
"""Costs that only some channels count."""


def draw(names: Sequence[str], runs: Sequence[Sequence[Record]], path: Path, score: Score = ACCURACY) -> None:
    """Draw runs to a file; its suffix is the format."""
    files.write(path, saved(figure(names, runs, score), path.suffix[1:].lower(), dpi=150))


def figure(names: Sequence[str], runs: Sequence[Sequence[Record]], score: Score = ACCURACY) -> "Figure":
    """Return panels that share the axis of the metric, two in a row, with the names of the runs below."""
    need("matplotlib")
    from matplotlib.figure import Figure

    waiting = DELAY
    if any("time" in record for metrics in runs for record in metrics):
        unit, scale = time_unit(max(map(DELAY.total, runs)))  # a unit that suits the longest run
        waiting = Panel(lambda record: record["delay"] / scale, f"virtual time so far ({unit})", "not counted")
    panels = [SENT, *(panel for panel in (ENERGY, waiting) if any(map(panel.total, runs)))]
    columns, rows = min(len(names), 3 if max(map(len, names)) < LONG else 2), len(panels) // 2 + 1
    picture = Figure(figsize=(10, 0.4 + 3.6 * rows + 0.23 * -(-len(names) // columns)), layout="constrained")
    first: Any = picture.add_subplot(rows, 2, 1)
    lines = []
    for number, metrics in enumerate(runs):
        lines.append(_curve(first, number, [record["round"] for record in metrics], metrics, score))
    first.set(xlabel="round", xlim=(0, None))
    first.xaxis.get_major_locator().set_params(integer=True)
    for place, panel in enumerate(panels, start=2):
        _draw(picture.add_subplot(rows, 2, place, sharey=first), panel, runs, score)
    where = "" if score.name.startswith(VALIDATION) else " on the test set"
    for number, axes in enumerate(picture.axes):
        left = number % 2 == 0
        axes.set_ylabel(f"{score.words}{where}{score.unit}" if left else "")
        axes.grid(color=GRID, linewidth=0.8)
        axes.tick_params(color=INK, labelcolor=INK)
        axes.tick_params("y", labelleft=left)
        axes.xaxis.label.set_color(INK)
        axes.yaxis.label.set_color(INK)
        axes.spines[["top", "right"]].set_visible(False)
        axes.spines[["left", "bottom"]].set_color("#9aa5b1")
    # A dollar would start a formula.
    labels = [name.replace("$", r"\$") for name in names]
    picture.legend(lines, labels, loc="outside lower center", ncols=columns, frameon=False, labelcolor=INK)
    return picture


def _draw(axes: "Axes", panel: Panel, runs: Sequence[Sequence[Record]], score: Score) -> None:
    """Draw all runs by cost; a run without this cost is a dotted level."""
    for number, metrics in enumerate(runs):
        spent = list(accumulate(map(panel.spent, metrics)))
        measured = [record[score.name] for record in metrics if record.get(score.name) is not None]
        if spent and spent[-1]:
            _curve(axes, number, spent, metrics, score)
        elif measured:
            level, colour = score.scale * measured[-1], COLOURS[number % len(COLOURS)]
            axes.axhline(level, color=colour, linewidth=1.2, linestyle=(0, (1, 3)))
    silent = any(metrics and not panel.total(metrics) for metrics in runs)
    axes.set(xlabel=panel.name + (f"; dotted: {panel.none}" if silent else ""))
    totals = [total for total in map(panel.total, runs) if total]
    if totals and max(totals) > FAR_APART * min(totals):
        axes.set_xscale("log")
    else:
        axes.set_xlim(0, None)


def _curve(axes: "Axes", number: int, x: Sequence[float], metrics: Sequence[Record], score: Score) -> Any:
    """Draw the evaluated records of a run at their places ``x``, and return the line.

    Records that are means over seeds have a band of one standard deviation.
    """
    known = [(at, record) for at, record in zip(x, metrics, strict=True) if record.get(score.name) is not None]
    at, values = [at for at, _ in known], [score.scale * record[score.name] for _, record in known]
    style = STYLES[number // len(COLOURS) % len(STYLES)]
    marker, colour = "o" if len(known) <= MARKED else "", COLOURS[number % len(COLOURS)]
    (line,) = axes.plot(at, values, color=colour, linestyle=style, marker=marker, markersize=4, linewidth=1.8)
    if any(record.get(DEVIATION) for _, record in known):
        spread = [(record[score.name], record.get(DEVIATION, 0.0)) for _, record in known]
        low, high = ([score.scale * (mean + sign * d) for mean, d in spread] for sign in (-1, 1))
        axes.fill_between(at, low, high, color=colour, alpha=0.15, linewidth=0)
    return line
