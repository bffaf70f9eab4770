"""Bar charts for a page: a histogram, bars that are stacked over time, and shares of groups."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from gossamer.runs.report import html, plots

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Stacks = Mapping[str, Sequence[float]]
"""The sizes of bars by name; bars of the same place are stacked in this order."""

Box = list[tuple[float, float]]
"""The corners of a bar."""


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
    centres = [(left + right) / 2 for left, right in pairwise(edges)]
    tips = {
        f"stack-{number}": [f"{name}: {each:.4g} at {x:.4g}" for x, each in zip(centres, heights, strict=True)]
        for number, (name, heights) in enumerate(stacks.items())
    }
    drawing = plots.inline(column_figure(across, edges, stacks, used), title, tips)
    return html.figure(title, drawing, keys=list(stacks), colours=used)


def column_figure(across: str, edges: Sequence[float], stacks: Stacks, colours: Sequence[int]) -> "Figure":
    """Return stacked bars between edges as a matplotlib figure."""
    with plots.style():
        from matplotlib.figure import Figure
        from matplotlib.ticker import MaxNLocator

        figure = Figure(figsize=(4.2, 2.5))
        axes = figure.add_axes((0.12, 0.2, 0.85, 0.76))
        gap = 0.08 * (edges[1] - edges[0])
        spans = [(left + gap, right - gap) for left, right in pairwise(edges)]
        boxes = [[_box(*each, *span) for each, span in zip(spans, level, strict=True)] for level in _levels(stacks)]
        _add(axes, boxes, colours)
        highest = max(map(sum, zip(*stacks.values(), strict=True)))
        whole = all((edge + 0.5).is_integer() for edge in edges)  # bars of whole numbers
        axes.set(xlim=(edges[0], edges[-1]), ylim=(0, (highest or 1) * 1.05), xlabel=across)
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=whole))
        axes.yaxis.set_major_locator(MaxNLocator(5, integer=True))
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
        from matplotlib.figure import Figure

        figure = Figure(figsize=(4.2, 1.9))
        axes = figure.add_axes((0.25, 0.26, 0.72, 0.7))
        boxes = [
            [_box(100 * left, 100 * right, row - 0.32, row + 0.32) for row, (left, right) in enumerate(level)]
            for level in _levels(stacks)
        ]
        _add(axes, boxes, colours)
        axes.set(xlim=(0, 100), ylim=(len(groups) - 0.5, -0.5), xlabel="share of the time (%)")
        axes.set_yticks(range(len(groups)), groups)
        plots.plain(axes)
    return figure


def _levels(stacks: Stacks) -> Iterator[list[tuple[float, float]]]:
    """Yield begin and end of each bar, stack by stack."""
    before: list[float] = [0.0] * len(next(iter(stacks.values())))
    for heights in stacks.values():
        after = [low + height for low, height in zip(before, heights, strict=True)]
        yield list(zip(before, after, strict=True))
        before = after


def _add(axes: "Axes", stacks: Sequence[Sequence[Box]], colours: Sequence[int]) -> None:
    """Draw the boxes of each stack in its colour."""
    from matplotlib.collections import PolyCollection

    for number, (boxes, colour) in enumerate(zip(stacks, colours, strict=True)):
        axes.add_collection(PolyCollection(boxes, facecolors=plots.COLOURS[colour], gid=f"stack-{number}"))


def _box(left: float, right: float, bottom: float, top: float) -> Box:
    return [(left, bottom), (right, bottom), (right, top), (left, top)]
