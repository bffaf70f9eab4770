"""Curves: accuracy against rounds, against bytes sent, and against joules and seconds where a channel counts them."""

import io
from collections.abc import Callable, Sequence
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from gossamer.core import files

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Record = dict[str, Any]

COLOURS = ("#1f3b5c", "#d1603d", "#3a8c6e", "#8c6bb1", "#c9a227", "#4f8fc4", "#a23b72", "#6b6b6b")
STYLES = ("-", "--", ":", "-.")
INK = "#1f3b5c"
MARKED = 12
"""A run with so few evaluated rounds gets a dot for each."""
LONG = 28
"""Names of so many letters are set two in a row."""

FAR_APART = 5
"""Where one run spends so many times as much as another, that is drawn on a logarithmic scale."""


class Panel(NamedTuple):
    """Accuracy against something that is spent: what a round takes of it, its name, and what is said if it is none."""

    spent: Callable[[Record], float]
    name: str
    none: str

    def so_far(self, metrics: Sequence[Record]) -> list[float]:
        """What was spent after each round."""
        return list(accumulate(map(self.spent, metrics)))

    def total(self, metrics: Sequence[Record]) -> float:
        """What was spent in all."""
        return sum(map(self.spent, metrics))


SENT = Panel(lambda record: sum(record["bytes_up"].values()) / 1e6, "sent by clients so far (MB)", "nothing is sent")
COUNTED = (
    Panel(lambda record: record["joules"], "energy spent by clients so far (J)", "not counted"),
    Panel(lambda record: record["delay"], "time on devices and on the air so far (s)", "not counted"),
)
"""What only some channels count."""


def draw(names: Sequence[str], runs: Sequence[Sequence[Record]], path: Path) -> None:
    """Draw runs to a picture file, in the format of its ending."""
    drawn = io.BytesIO()
    figure(names, runs).savefig(drawn, dpi=150, format=path.suffix[1:].lower())
    files.write(path, drawn.getvalue())


def figure(names: Sequence[str], runs: Sequence[Sequence[Record]]) -> "Figure":
    """Panels that share their accuracy axis, two in a row, and the runs' names below."""
    from matplotlib.figure import Figure

    panels = [SENT, *(panel for panel in COUNTED if any(map(panel.total, runs)))]
    columns, rows = min(len(names), 3 if max(map(len, names)) < LONG else 2), len(panels) // 2 + 1
    picture = Figure(figsize=(10, 0.4 + 3.6 * rows + 0.23 * -(-len(names) // columns)), layout="constrained")
    first: Any = picture.add_subplot(rows, 2, 1)
    lines = [_line(first, number, metrics) for number, metrics in enumerate(runs)]
    first.set(xlabel="round", xlim=(0, None))
    first.xaxis.get_major_locator().set_params(integer=True)
    for place, panel in enumerate(panels, start=2):
        _draw(picture.add_subplot(rows, 2, place, sharey=first), panel, runs)
    for place, axes in enumerate(picture.axes):
        _dress(axes, left=place % 2 == 0)
    # A dollar begins a formula otherwise.
    labels = [name.replace("$", r"\$") for name in names]
    picture.legend(lines, labels, loc="outside lower center", ncols=columns, frameon=False, labelcolor=INK)
    return picture


def _draw(axes: "Axes", panel: Panel, runs: Sequence[Sequence[Record]]) -> None:
    """All runs against what they spent; one that spends nothing is a level."""
    for number, metrics in enumerate(runs):
        at, accuracy = _accuracies(metrics)
        style, spent = _style(number, len(at)), panel.so_far(metrics)
        if spent and spent[-1]:
            axes.plot([spent[i] for i in at], accuracy, **style)
        elif accuracy:
            axes.axhline(accuracy[-1], color=style["color"], linewidth=1.2, linestyle=(0, (1, 3)))
    silent = any(metrics and not panel.total(metrics) for metrics in runs)
    axes.set(xlabel=panel.name + (f"; dotted: {panel.none}" if silent else ""))
    totals = [total for total in map(panel.total, runs) if total]
    if totals and max(totals) > FAR_APART * min(totals):
        axes.set_xscale("log")
    else:
        axes.set_xlim(0, None)


def _line(axes: "Axes", number: int, metrics: Sequence[Record]) -> Any:
    """A run's line against rounds."""
    at, accuracy = _accuracies(metrics)
    (line,) = axes.plot([metrics[i]["round"] for i in at], accuracy, **_style(number, len(at)))
    return line


def _accuracies(metrics: Sequence[Record]) -> tuple[list[int], list[float]]:
    """The places of records that have an accuracy, and these in percent."""
    at = [i for i, record in enumerate(metrics) if record.get("accuracy") is not None]
    return at, [100 * metrics[i]["accuracy"] for i in at]


def _style(number: int, points: int) -> dict[str, Any]:
    return {
        "color": COLOURS[number % len(COLOURS)],
        "linestyle": STYLES[number // len(COLOURS) % len(STYLES)],
        "marker": "o" if points <= MARKED else "",
        "markersize": 4,
        "linewidth": 1.8,
    }


def _dress(axes: "Axes", left: bool) -> None:
    axes.set_ylabel("accuracy on the test set (%)" if left else "")
    axes.grid(color="#e3e6ea", linewidth=0.8)
    axes.tick_params(color=INK, labelcolor=INK)
    axes.tick_params("y", labelleft=left)
    axes.xaxis.label.set_color(INK)
    axes.yaxis.label.set_color(INK)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color("#9aa5b1")
