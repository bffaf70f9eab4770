"""Bar charts for a page: a histogram, bars that are stacked over time, and shares of groups."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from gossamer.runs.report import html, plots

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Stacks = Mapping[str, Sequence[float]]
"""The heights of bars by name; bars of the same place are stacked in this order."""


def columns(title: str, across: str, edges: Sequence[float], stacks: Stacks, colours: Sequence[int] = ()) -> str:
    """Return bars between edges as an HTML ``<figure>``.

    Args:
        title: the caption, and the accessible name of the drawing
        across: the label of the x axis
        edges: the edges of the bars, one more than there are bars
        stacks: the heights
        colours: the colour of each stack; by default the first ones
    """
    used = list(colours) or list(range(len(stacks)))
    tips = {
        f"stack-{number}": [f"{name}: {height:.4g} at {edges[place]:.4g}" if height else "" for place, height in each]
        for number, (name, each) in enumerate((name, list(enumerate(heights))) for name, heights in stacks.items())
    }
    drawing = plots.inline(column_figure(across, edges, stacks, used), title, tips)
    return html.figure(title, drawing, keys=list(stacks), colours=used)


def column_figure(across: str, edges: Sequence[float], stacks: Stacks, colours: Sequence[int]) -> "Figure":
    """Return stacked bars between edges as a matplotlib figure."""
    with plots.style():
        from matplotlib.collections import PolyCollection
        from matplotlib.figure import Figure
        from matplotlib.ticker import MaxNLocator

        figure = Figure(figsize=(4.2, 2.5))
        axes = figure.add_axes((0.12, 0.2, 0.85, 0.76))
        below = [0.0] * (len(edges) - 1)
        gap = 0.08 * (edges[1] - edges[0])
        for number, heights in enumerate(stacks.values()):
            boxes = [
                _box(edges[place] + gap, edges[place + 1] - gap, below[place], below[place] + height)
                for place, height in enumerate(heights)
            ]
            axes.add_collection(PolyCollection(boxes, facecolors=plots.COLOURS[colours[number]], gid=f"stack-{number}"))
            below = [low + height for low, height in zip(below, heights, strict=True)]
        axes.set(xlim=(edges[0], edges[-1]), ylim=(0, (max(below) or 1) * 1.05), xlabel=across)
        axes.xaxis.set_major_locator(MaxNLocator(6))
        axes.yaxis.set_major_locator(MaxNLocator(5))
        axes.grid(axis="y", color=plots.GRID)
        plots.plain(axes)
    return figure


def shares(title: str, groups: Sequence[str], stacks: Stacks, colours: Sequence[int], notes: Sequence[str]) -> str:
    """Return one horizontal bar per group, of shares that add up to 1, as an HTML ``<figure>``."""
    tips = {
        f"stack-{number}": [f"{group}, {name}: {100 * share:.1f} %" for group, share in zip(groups, each, strict=True)]
        for number, (name, each) in enumerate(stacks.items())
    }
    drawing = plots.inline(share_figure(groups, stacks, colours), title, tips)
    return html.figure(title, drawing, keys=list(stacks), colours=colours, notes=notes)


def share_figure(groups: Sequence[str], stacks: Stacks, colours: Sequence[int]) -> "Figure":
    """Return horizontal stacked bars as a matplotlib figure, the first group at the top."""
    with plots.style():
        from matplotlib.collections import PolyCollection
        from matplotlib.figure import Figure

        figure = Figure(figsize=(4.2, 1.9))
        axes = figure.add_axes((0.25, 0.26, 0.72, 0.7))
        before = [0.0] * len(groups)
        for number, each in enumerate(stacks.values()):
            after = [low + 100 * share for low, share in zip(before, each, strict=True)]
            spans = zip(before, after, strict=True)
            boxes = [_box(*span, row - 0.32, row + 0.32) for row, span in enumerate(spans)]
            axes.add_collection(PolyCollection(boxes, facecolors=plots.COLOURS[colours[number]], gid=f"stack-{number}"))
            before = after
        axes.set(xlim=(0, 100), ylim=(len(groups) - 0.5, -0.5), xlabel="share of the time (%)")
        axes.set_yticks(range(len(groups)), groups)
        plots.plain(axes)
    return figure


def _box(left: float, right: float, bottom: float, top: float) -> list[tuple[float, float]]:
    return [(left, bottom), (right, bottom), (right, top), (left, top)]
