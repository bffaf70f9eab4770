"""Curves of several runs: a metric by rounds, by uploaded bytes, and by joules and virtual time where they are counted.

Rounds of a schedule add up to its virtual time. Without a schedule, they add up to what the channel counts."""

from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from gossamer.core import files
from gossamer.core.extras import need
from gossamer.runs.records import Record
from gossamer.runs.report.plots import COLOURS, GRID, INK, STYLES, saved
from gossamer.runs.report.scores import ACCURACY, VALIDATION, Score
from gossamer.runs.report.text import time_unit

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


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
