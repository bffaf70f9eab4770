"""Charts by matplotlib, as inline SVG for a page or as a file, and the HTML around them.

Figures are ``matplotlib.figure.Figure`` objects; pyplot is not used. The same data gives the same bytes: identifiers
are derived from the title, and no date is written. Inline SVG refers to the colours of the page by CSS variables, so
that a chart suits light and dark pages. matplotlib is imported when a figure is made. HTML comes from the templates of
this package, by Jinja2 with escaping of every value.
"""

import io
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from xml.etree import ElementTree

from gossamer.core.extras import need

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


COLOURS = ("#1f3b5c", "#d1603d", "#3a8c6e", "#8c6bb1", "#c9a227", "#4f8fc4", "#a23b72", "#6b6b6b")
STYLES = ("-", "--", ":", "-.")
INK, SOFT, GRID, BLANK = COLOURS[0], "#5d6b7a", "#e1e6ec", "#eef1f5"

VARIABLES = {
    **{colour: f"var(--k{number})" for number, colour in enumerate(COLOURS)},
    SOFT: "var(--soft)",
    GRID: "var(--line)",
    BLANK: "var(--blank)",
}
"""The CSS variable of the page for each colour of a figure."""

MARKED = 60
"""The largest number of points that are marked one by one, each with its values as a tooltip."""

SHADES = 10
"""The number of shades of a heat map."""

Tips = Mapping[str, Sequence[str]]
"""Tooltips by the group identifier of an artist, one per mark; an empty text is no tooltip."""


class Series(NamedTuple):
    """One line of a chart.

    Args:
        name: the label of the line
        points: pairs of x and y, in order
    """

    name: str
    points: list[tuple[float, float]]


def chart(title: str, across: str, series: Sequence[Series]) -> str:
    """Return a line chart as an HTML ``<figure>``; empty if no series has a point.

    Args:
        title: the caption, and the accessible name of the drawing
        across: the label of the x axis
        series: the lines
    """
    if not any(line.points for line in series):
        return ""
    tips = {
        f"series-{number}": [f"{line.name}: {y:.4g} at {x:.4g}" for x, y in line.points]
        for number, line in enumerate(series)
        if len(line.points) <= MARKED
    }
    return framed(title, inline(line_figure(across, series), title, tips), keys=[line.name for line in series])


def line_figure(across: str, series: Sequence[Series], alone: bool = False) -> "Figure":
    """Return a figure with one line per series.

    A figure that is shown ``alone``, without a page, makes room for its labels, and names several lines at the right.
    """
    legend = alone and len(series) > 1
    with style():
        from matplotlib.figure import Figure
        from matplotlib.ticker import MaxNLocator

        figure = Figure(figsize=(5.6 if legend else 4.2, 2.5), layout="constrained" if alone else None)
        axes = figure.add_subplot() if alone else figure.add_axes((0.12, 0.2, 0.85, 0.76))
        for number, line in enumerate(series):
            xs, ys = [x for x, _ in line.points], [y for _, y in line.points]
            marker = "o" if len(line.points) <= MARKED else ""
            (drawn,) = axes.plot(
                xs, ys, color=COLOURS[number % len(COLOURS)], marker=marker, markersize=3.5, linewidth=1.5
            )
            drawn.set(linestyle=STYLES[number // len(COLOURS) % len(STYLES)], gid=f"series-{number}")
        everywhere = [x for line in series for x, _ in line.points]
        axes.set_xlim(0, (max(everywhere) or 1) * 1.01)
        whole = all(float(x).is_integer() for x in everywhere)  # rounds: there is no tick between two of them
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=whole))
        axes.yaxis.set_major_locator(MaxNLocator(5))
        axes.set_xlabel(across)
        axes.grid(axis="y", color=GRID)
        plain(axes)
        if legend:
            # A leading underscore would hide a label, so labels are passed by hand.
            names = [line.name.replace("$", r"\$") for line in series]
            figure.legend(axes.lines, names, loc="outside right upper", frameon=False, labelcolor=SOFT)
    return figure


def plain(axes: "Axes") -> None:
    """Remove frame and tick marks, and set the colour of labels."""
    axes.tick_params(length=0, labelcolor=SOFT)
    axes.xaxis.label.set_color(SOFT)
    axes.yaxis.label.set_color(SOFT)
    axes.set_axisbelow(True)
    axes.spines[:].set_visible(False)


def shades() -> Any:
    """Return the colour map of heat maps: one colour of ten opacities, and ``BLANK`` for masked cells."""
    from matplotlib.colors import ListedColormap, to_rgba

    opacities = [0.1 + 0.9 * (shade + 1) / SHADES for shade in range(SHADES)]
    return ListedColormap([to_rgba(COLOURS[0], opacity) for opacity in opacities]).with_extremes(bad=BLANK)


@contextmanager
def style() -> Iterator[None]:
    """Settings under which figures of a page are made."""
    with need("matplotlib").rc_context({"font.size": 8.5, "font.family": "sans-serif", "axes.unicode_minus": False}):
        yield


def saved(figure: "Figure", kind: str, salt: str = "gossamer", **how: Any) -> bytes:
    """Return a figure as a file: ``kind`` is ``svg``, ``png`` or ``pdf``."""
    drawn = io.BytesIO()
    metadata = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(kind)
    usual = {"svg.fonttype": "none", "svg.hashsalt": salt, "font.sans-serif": ["DejaVu Sans"]}
    with need("matplotlib").rc_context(usual):
        figure.savefig(drawn, format=kind, metadata=metadata, **how)
    return drawn.getvalue()


def inline(figure: "Figure", title: str, tips: Tips | None = None) -> str:
    """Return a figure as an SVG element for a page, with an accessible name and tooltips."""
    root = ElementTree.fromstring(saved(figure, "svg", title, transparent=True, dpi=150))
    for element in root.iter():  # names without their namespaces
        element.tag = element.tag.rpartition("}")[2]
        element.attrib = {name.rpartition("}")[2]: value for name, value in element.items()}
    for group in list(root.iter("g")):
        marks = list(group.iter("use")) or group.findall("path")  # single points, or cells
        for mark, tip in zip(marks, (tips or {}).get(group.get("id", ""), ()), strict=False):
            if tip:
                ElementTree.SubElement(mark, "title").text = tip
    # A page does not need metadata, global styles, clipping, and identifiers that nothing refers to.
    for parent in list(root.iter()):
        for child in list(parent):
            if child.tag in ("metadata", "style", "clipPath"):
                parent.remove(child)
        parent.attrib.pop("clip-path", None)
        if parent.tag == "g":
            parent.attrib.pop("id", None)
        for colour, variable in VARIABLES.items():
            if colour in (look := parent.get("style", "")):
                parent.set("style", look.replace(colour, variable))
    root.attrib = {"viewBox": root.get("viewBox", ""), "role": "img", "aria-label": title}
    return ElementTree.tostring(root, encoding="unicode")


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
    drawing = inline(column_figure(across, edges, stacks, used), title, tips)
    return framed(title, drawing, keys=list(stacks), colours=used)


def column_figure(across: str, edges: Sequence[float], stacks: Stacks, colours: Sequence[int]) -> "Figure":
    """Return stacked bars between edges as a matplotlib figure."""
    with style():
        from matplotlib.figure import Figure
        from matplotlib.ticker import MaxNLocator

        figure = Figure(figsize=(4.2, 2.5))
        axes = figure.add_axes((0.12, 0.2, 0.85, 0.76))
        gap = 0.08 * (edges[1] - edges[0])
        spans = [(left + gap, right - gap) for left, right in pairwise(edges)]
        boxes = [[_corners(*each, *span) for each, span in zip(spans, level, strict=True)] for level in _levels(stacks)]
        _add_boxes(axes, boxes, colours)
        highest = max(map(sum, zip(*stacks.values(), strict=True)))
        whole = all((edge + 0.5).is_integer() for edge in edges)  # bars of whole numbers
        axes.set(xlim=(edges[0], edges[-1]), ylim=(0, (highest or 1) * 1.05), xlabel=across)
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=whole))
        axes.yaxis.set_major_locator(MaxNLocator(5, integer=True))
        axes.grid(axis="y", color=GRID)
        plain(axes)
    return figure


def shares(title: str, groups: Sequence[str], stacks: Stacks, colours: Sequence[int], notes: Sequence[str]) -> str:
    """Return one horizontal bar per group, of shares that add up to 1, as an HTML ``<figure>``."""
    tips = {
        f"stack-{number}": [f"{group}, {name}: {100 * share:.1f} %" for group, share in zip(groups, each, strict=True)]
        for number, (name, each) in enumerate(stacks.items())
    }
    with style():
        from matplotlib.figure import Figure

        figure = Figure(figsize=(4.2, 1.9))
        axes = figure.add_axes((0.25, 0.26, 0.72, 0.7))
        boxes = [
            [_corners(100 * left, 100 * right, row - 0.32, row + 0.32) for row, (left, right) in enumerate(level)]
            for level in _levels(stacks)
        ]
        _add_boxes(axes, boxes, colours)
        axes.set(xlim=(0, 100), ylim=(len(groups) - 0.5, -0.5), xlabel="share of the time (%)")
        axes.set_yticks(range(len(groups)), groups)
        plain(axes)
    return framed(title, inline(figure, title, tips), keys=list(stacks), colours=colours, notes=notes)


def _levels(stacks: Stacks) -> Iterator[list[tuple[float, float]]]:
    """Yield begin and end of each bar, stack by stack."""
    before: list[float] = [0.0] * len(next(iter(stacks.values())))
    for heights in stacks.values():
        after = [low + height for low, height in zip(before, heights, strict=True)]
        yield list(zip(before, after, strict=True))
        before = after


def _add_boxes(axes: "Axes", stacks: Sequence[Sequence[Box]], colours: Sequence[int]) -> None:
    """Draw the boxes of each stack in its colour."""
    from matplotlib.collections import PolyCollection

    for number, (boxes, colour) in enumerate(zip(stacks, colours, strict=True)):
        axes.add_collection(PolyCollection(boxes, facecolors=COLOURS[colour], gid=f"stack-{number}"))


def _corners(left: float, right: float, bottom: float, top: float) -> Box:
    return [(left, bottom), (right, bottom), (right, top), (left, top)]


TEMPLATES = Path(__file__).parent / "templates"


@cache
def _environment() -> Any:
    need("jinja2")
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    how: dict[str, Any] = {"autoescape": True, "undefined": StrictUndefined, "trim_blocks": True, "lstrip_blocks": True}
    return Environment(loader=FileSystemLoader(TEMPLATES), **how)


def render(template: str, **values: Any) -> str:
    """Return a template filled with values; text in them is escaped."""
    return str(_environment().get_template(template).render(values))


def card(text: str) -> str:
    """Return a card with a text."""
    return render("card.html", text=text)


def framed(
    title: str, drawing: str, keys: Sequence[str] = (), notes: Sequence[str] = (), colours: Sequence[int] = ()
) -> str:
    """Return a ``<figure>``.

    Args:
        title: the caption
        drawing: the figure as SVG
        keys: names of lines, in the order of their colours
        notes: lines below the drawing
        colours: the colour of each name; by default in the order of colours
    """
    named = list(zip(keys, colours or range(len(keys)), strict=True))
    return render("figure.html", title=title, drawing=drawing, keys=named, notes=notes)
