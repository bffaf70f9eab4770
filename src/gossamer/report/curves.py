"""Curves: accuracy against rounds and against bytes sent, one line a run."""

import io
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gossamer import files

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
"""Where one run sends so many times as much as another, bytes are drawn on a logarithmic scale."""


def draw(names: Sequence[str], runs: Sequence[Sequence[Record]], path: Path) -> None:
    """Draw runs to a picture file, in the format of its ending."""
    drawn = io.BytesIO()
    figure(names, runs).savefig(drawn, dpi=150, format=path.suffix[1:].lower())
    files.write(path, drawn.getvalue())


def figure(names: Sequence[str], runs: Sequence[Sequence[Record]]) -> "Figure":
    """Two panels that share their accuracy axis, and the runs' names below."""
    from matplotlib.figure import Figure

    columns = min(len(names), 3 if max(map(len, names)) < LONG else 2)
    picture = Figure(figsize=(10, 4.0 + 0.23 * -(-len(names) // columns)), layout="constrained")
    left, right = picture.subplots(1, 2, sharey=True)
    lines = [_lines(left, right, number, metrics) for number, metrics in enumerate(runs)]
    left.set(xlabel="round", ylabel="accuracy on the test set (%)", xlim=(0, None))
    left.xaxis.get_major_locator().set_params(integer=True)
    silent = any(metrics and not _sent(metrics)[-1] for metrics in runs)
    right.set(xlabel="sent by clients so far (MB)" + ("; dotted: nothing is sent" if silent else ""))
    _scale(right, runs)
    _dress(left)
    _dress(right)
    # A dollar begins a formula otherwise.
    labels = [name.replace("$", r"\$") for name in names]
    picture.legend(lines, labels, loc="outside lower center", ncols=columns, frameon=False, labelcolor=INK)
    return picture


def _sent(metrics: Sequence[Record]) -> list[float]:
    """Megabytes that the clients had sent after each round."""
    return list(accumulate(sum(record["bytes_up"].values()) / 1e6 for record in metrics))


def _dress(axes: "Axes") -> None:
    axes.grid(color="#e3e6ea", linewidth=0.8)
    axes.tick_params(color=INK, labelcolor=INK)
    axes.xaxis.label.set_color(INK)
    axes.yaxis.label.set_color(INK)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color("#9aa5b1")


def _lines(left: "Axes", right: "Axes", number: int, metrics: Sequence[Record]) -> Any:
    """A run's line in both panels; one that sends nothing is a level in the right one."""
    at = [i for i, record in enumerate(metrics) if record.get("accuracy") is not None]
    accuracy = [100 * metrics[i]["accuracy"] for i in at]
    sent = _sent(metrics)
    style: dict[str, Any] = {
        "color": COLOURS[number % len(COLOURS)],
        "linestyle": STYLES[number // len(COLOURS) % len(STYLES)],
        "marker": "o" if len(at) <= MARKED else "",
        "markersize": 4,
        "linewidth": 1.8,
    }
    (line,) = left.plot([metrics[i]["round"] for i in at], accuracy, **style)
    if sent and sent[-1]:
        right.plot([sent[i] for i in at], accuracy, **style)
    elif accuracy:
        right.axhline(accuracy[-1], color=style["color"], linewidth=1.2, linestyle=(0, (1, 3)))
    return line


def _scale(axes: "Axes", runs: Sequence[Sequence[Record]]) -> None:
    sent = [total for metrics in runs if (total := _sent(metrics)[-1] if metrics else 0)]
    if sent and max(sent) > FAR_APART * min(sent):
        axes.set_xscale("log")
    else:
        axes.set_xlim(0, None)
