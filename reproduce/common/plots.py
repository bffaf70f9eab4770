"""Plots as SVG files by matplotlib. The same values give the same file: no date, fixed identifiers, text as text."""

import io
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from reproduce.common import store

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = ("#1f3b5c", "#d1603d", "#3a8c6e", "#8c6bb1", "#c9a227", "#4f8fc4", "#a23b72", "#6b6b6b")
GRID = "#e3e6ea"


class Curve(NamedTuple):
    """A line of a plot: its name, and its points."""

    name: str
    points: list[tuple[float, float]]


def draw(file: str, size: tuple[float, float], fill: Callable[["Figure"], None]) -> None:
    """Draw a figure into a file in the folder of the pages."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": file, "font.size": 9}):
        figure = Figure(figsize=size, layout="constrained")
        fill(figure)
        drawn = io.StringIO()
        figure.savefig(drawn, format="svg", metadata={"Date": None})
    lines = (line.rstrip() for line in drawn.getvalue().splitlines())
    (store.PAGES / file).write_text("\n".join(lines) + "\n")


def dress(axes: "Axes") -> None:
    """Give axes a light grid, and no frame at the top and the right."""
    axes.grid(color=GRID, linewidth=0.8)
    axes.spines[["top", "right"]].set_visible(False)


def style(number: int) -> dict[str, Any]:
    """Return colour and line style of a curve: dashed after the last colour."""
    return {"color": COLOURS[number % len(COLOURS)], "linestyle": "-" if number < len(COLOURS) else "--"}


def curves(file: str, title: str, across: str, lines: Sequence[Curve]) -> None:
    """Draw curves over a common axis, with their names at the right."""

    def fill(figure: "Figure") -> None:
        axes = figure.subplots()
        for number, line in enumerate(lines):
            xs, ys = zip(*line.points, strict=True)
            axes.plot(xs, ys, label=line.name, linewidth=1.3, **style(number))
        axes.set(title=title, xlabel=across)
        dress(axes)
        figure.legend(loc="outside right upper", frameon=False)

    draw(file, (6.4, 3.4), fill)


def matrix(
    file: str, title: str, labels: tuple[str, str], values: npt.NDArray[np.float64], order: Sequence[int]
) -> None:
    """Draw a square matrix of shares between clients, rows and columns in the given order. Zero stays blank."""
    shown = values[np.ix_(order, order)]

    def fill(figure: "Figure") -> None:
        axes = figure.subplots()
        image = axes.imshow(np.where(shown > 0, shown, np.nan), cmap="Blues", vmin=0, interpolation="none")
        every = max(1, -(-len(order) // 20))
        ticks = range(0, len(order), every)
        names = [str(order[at]) for at in ticks]
        axes.set_xticks(ticks, names, fontsize=7)
        axes.set_yticks(ticks, names, fontsize=7)
        axes.set(title=title, ylabel=labels[0], xlabel=labels[1])
        figure.colorbar(image, ax=axes, shrink=0.8)

    draw(file, (5.6, 5.0), fill)
