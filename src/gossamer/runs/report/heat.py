"""A square heat map of pairs of clients: darker cells are larger fractions.

By default, shades span the smallest to the largest value, so that small differences are visible. A client and itself
stay blank. The colour bar next to the square names both ends.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from gossamer.runs.report import plots
from gossamer.runs.report.text import percent

if TYPE_CHECKING:
    from matplotlib.figure import Figure


WIDTH, SIDE = 11.2, 6.0
LEFT, BOTTOM, TOP = 0.6, 0.5, 0.1
NAMED = 20
"""The largest number of clients named along each side."""

MARKED = 40
"""Up to this many clients, each cell is a shape with a tooltip; beyond it, the square is a bitmap."""

Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]


def heat(
    title: str,
    clients: Sequence[int],
    shares: Floats,
    *,
    blank: Flags | None = None,
    lowest: float | None = None,
    tip: str = "clients {} and {}",
    below: str = "client",
) -> str:
    """Return the heat map as inline SVG.

    Args:
        title: the accessible name of the drawing
        clients: the client of each row and column
        shares: fractions between 0 and 1, [clients, clients]
        blank: cells to leave blank; by default the diagonal. At least one cell must remain
        lowest: the value of the lightest shade; by default the smallest value
        tip: the tooltip of a cell, with the client of its row and the client of its column
        below: the label below the square
    """
    hidden = _hidden(clients, blank)
    tips = [
        "" if hidden[y, x] else f"{tip.format(one, other)}: {percent(float(shares[y, x]))}"
        for y, one in enumerate(clients)
        for x, other in enumerate(clients)
    ]
    drawn = heat_figure(clients, shares, blank=blank, lowest=lowest, below=below)
    return plots.inline(drawn, title, {"cells": tips} if len(clients) <= MARKED else {})


def heat_figure(
    clients: Sequence[int],
    shares: Floats,
    *,
    blank: Flags | None = None,
    lowest: float | None = None,
    below: str = "client",
) -> "Figure":
    """Return the heat map as a matplotlib figure; the arguments are those of ``heat``."""
    shown = np.ma.masked_array(shares, _hidden(clients, blank))
    high = float(shown.max())
    low = float(shown.min()) if lowest is None else lowest
    with plots.style():
        from matplotlib.colors import Normalize
        from matplotlib.figure import Figure

        high_side = TOP + SIDE + BOTTOM
        drawn = Figure(figsize=(WIDTH, high_side))
        axes = drawn.add_axes((LEFT / WIDTH, BOTTOM / high_side, SIDE / WIDTH, SIDE / high_side))
        scale = Normalize(low, high) if low < high else Normalize(0.0, high or 1.0)  # equal values are darkest
        mesh = axes.pcolormesh(shown, cmap=plots.shades(), norm=scale, gid="cells", rasterized=len(clients) > MARKED)
        axes.invert_yaxis()
        at = range(0, len(clients), -(-len(clients) // NAMED))
        names = [str(clients[index]) for index in at]
        axes.set_xticks([index + 0.5 for index in at], names)
        axes.set_yticks([index + 0.5 for index in at], names)
        axes.set_xlabel(below)
        plots.plain(axes)
        bar = drawn.add_axes(((LEFT + SIDE + 0.5) / WIDTH, 1 - (TOP + 0.2) / high_side, 2.4 / WIDTH, 0.16 / high_side))
        key = drawn.colorbar(mesh, cax=bar, orientation="horizontal", ticks=sorted({low, high}))
        key.ax.set_xticklabels([percent(end) for end in sorted({low, high})])
        key.outline.set_visible(False)
        plots.plain(bar)
    return drawn


def _hidden(clients: Sequence[int], blank: Flags | None) -> Flags:
    return np.eye(len(clients), dtype=bool) if blank is None else blank


def chain(rows: Floats) -> list[int]:
    """Return an order of rows in which neighbours are similar.

    It starts at the row farthest from the mean. Each row is followed by the nearest of the remaining ones. The distance
    is the sum of absolute differences.

    >>> chain(np.array([[1.0, 0.0], [0.0, 1.0], [0.9, 0.1], [0.2, 0.8]]))
    [1, 3, 2, 0]
    """
    apart = np.abs(rows[:, None] - rows).sum(axis=2)
    order = [int(np.abs(rows - rows.mean(axis=0)).sum(axis=1).argmax())] if len(rows) else []
    left = set(range(len(rows))) - set(order)
    while left:
        order.append(min(sorted(left), key=lambda index: float(apart[order[-1], index])))
        left.remove(order[-1])
    return order
