"""Heat maps of masks by tensor and round: how dense they are, and how far they move."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from gossamer.runs.report import html, plots
from gossamer.runs.report.text import percent

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Floats = npt.NDArray[np.float64]
Rounds = Sequence[tuple[int, dict[str, Any]]]
"""Rounds and their figures."""

SHOWN = 120
"""The largest number of rounds in a heat map; of more, evenly spaced ones are shown."""
MARKED = 1600
"""Up to this many cells, each is a shape with a tooltip; beyond it, the map is a bitmap."""
WIDTH, ROW, LEFT, RIGHT, BELOW = 11.2, 0.2, 2.6, 1.0, 0.5

MAPS = {
    "tensor_density": "Density of the masks by tensor and round: held entries as a fraction of all entries",
    "tensor_distance": "Distance of masks by tensor and round: entries that changed, as a fraction of all entries",
}
"""The entries of a record that are drawn, and their titles."""
NOTE = "Means over the clients of the round. Tensors that all clients hold whole are left out."


def figure(found: Rounds) -> str:
    """Return the heat maps as HTML; empty if no round has figures by tensor."""
    known = [(at, figures) for at, figures in found if figures.get("tensors")]
    if not known:
        return ""
    chosen = [known[number * len(known) // min(len(known), SHOWN)] for number in range(min(len(known), SHOWN))]
    return "".join(_map(chosen, entry, title) for entry, title in MAPS.items())


def _map(found: Rounds, entry: str, title: str) -> str:
    names, rounds = list(dict.fromkeys(n for _, each in found for n in each["tensors"])), [at for at, _ in found]
    values = np.full((len(names), len(rounds)), np.nan)
    for column, (_, each) in enumerate(found):
        for name, value in zip(each["tensors"], each[entry], strict=True):
            values[names.index(name), column] = value
    tips = [
        "" if np.isnan(values[y, x]) else f"{name}, round {at}: {percent(float(values[y, x]))}"
        for y, name in enumerate(names)
        for x, at in enumerate(rounds)
    ]
    drawn = plots.inline(drawing(names, rounds, values), title, {"cells": tips} if values.size <= MARKED else {})
    return html.figure(title, drawn, notes=[NOTE])


def drawing(names: Sequence[str], rounds: Sequence[int], values: Floats) -> "Figure":
    """Return the heat map as a matplotlib figure: a row per tensor, a column per round."""
    high, shown = ROW * len(names) + BELOW + 0.1, np.ma.masked_invalid(values)
    low, top = float(shown.min()), float(shown.max())
    with plots.style():
        from matplotlib.colors import Normalize
        from matplotlib.figure import Figure

        drawn = Figure(figsize=(WIDTH, high))
        wide, tall = (WIDTH - LEFT - RIGHT) / WIDTH, ROW * len(names) / high
        axes = drawn.add_axes((LEFT / WIDTH, BELOW / high, wide, tall))
        scale = Normalize(low, top) if low < top else Normalize(0.0, top or 1.0)  # equal values are darkest
        mesh = axes.pcolormesh(shown, cmap=plots.shades(), norm=scale, gid="cells", rasterized=values.size > MARKED)
        axes.invert_yaxis()
        axes.set_yticks([row + 0.5 for row in range(len(names))], names)
        every = -(-len(rounds) // 20)
        axes.set_xticks([column + 0.5 for column in range(0, len(rounds), every)], map(str, rounds[::every]))
        axes.set_xlabel("round")
        plots.plain(axes)
        bar = drawn.add_axes(((WIDTH - RIGHT + 0.15) / WIDTH, BELOW / high, 0.16 / WIDTH, tall))
        key = drawn.colorbar(mesh, cax=bar, ticks=sorted({low, top}))
        key.ax.set_yticklabels([percent(end) for end in sorted({low, top})])
        key.outline.set_visible(False)
        plots.plain(bar)
    return drawn
