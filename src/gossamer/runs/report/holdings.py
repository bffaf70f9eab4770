"""The partition as a figure: samples of each client by class, and the number of samples as bars above.

With more than ``COLUMNS`` clients, neighbours share a column, which shows their mean.
"""

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from gossamer.runs.report import plots
from gossamer.tasks.data.splits import strata

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from gossamer.tasks.data.partition import Split
    from gossamer.tasks.data.samples import Data

WIDTH = 11.2
LEFT, RIGHT, BOTTOM = 0.5, 0.1, 0.45
BARS, GAP = 0.7, 0.1
COLUMNS = 200
SHAPES = 2000
"""Up to this many cells are shapes; beyond it, they are a bitmap."""

TITLE = "samples by client and class"

Floats = npt.NDArray[np.float64]


def holdings(split: "Split", data: "Data | None") -> str:
    """Return the partition as inline SVG; without the data, only the number of samples of each client."""
    return plots.inline(figure(split, data), TITLE)


def figure(split: "Split", data: "Data | None") -> "Figure":
    """Return the partition as a matplotlib figure: bars, and below them a heat map of classes."""
    counts = split.sizes()[:, None]
    if data is not None and data.classes != 1:
        groups = strata(data)
        counts = split.counts(groups.train, groups.number)
    shown, each = _columns(counts.astype(np.float64))
    classes = shown.shape[1] if shown.shape[1] > 1 else 0
    rows = classes * float(np.clip(2.6 / max(classes, 1), 0.02, 0.24))
    high = BOTTOM + rows + GAP * bool(classes) + BARS + 0.1
    wide = (WIDTH - LEFT - RIGHT) / WIDTH
    with plots.style():
        from matplotlib.figure import Figure
        from matplotlib.ticker import MaxNLocator

        drawn = Figure(figsize=(WIDTH, high))
        bars = drawn.add_axes((LEFT / WIDTH, 1 - (BARS + 0.1) / high, wide, BARS / high))
        bars.bar(np.arange(len(shown)), shown.sum(axis=1), width=0.8, color=plots.COLOURS[0], gid="bars")
        bars.set(xlim=(-0.5, len(shown) - 0.5), ylim=(0, max(float(shown.sum(axis=1).max()), 1.0)))
        bars.yaxis.set_major_locator(MaxNLocator(2, integer=True))
        bars.xaxis.set_major_locator(MaxNLocator(20, integer=True))
        bars.tick_params("x", labelbottom=not classes)
        plots.plain(bars)
        last = bars
        if classes:
            last = drawn.add_axes((LEFT / WIDTH, BOTTOM / high, wide, rows / high), sharex=bars)
            cells = np.ma.masked_equal(shown.T, 0)
            edges = (np.arange(len(shown) + 1) - 0.5, np.arange(classes + 1) - 0.5)
            last.pcolormesh(*edges, cells, cmap=plots.shades(), vmin=0, gid="cells", rasterized=cells.size > SHAPES)
            last.yaxis.set_major_locator(MaxNLocator(10, integer=True))
            plots.plain(last)
        last.xaxis.set_major_formatter(lambda column, _: f"{column * each:.0f}")
        last.set_xlabel("client" if each == 1 else f"client (one column is the mean of {each})")
    return drawn


def _columns(counts: Floats) -> tuple[Floats, int]:
    """Return the counts of each column, and the number of clients per column."""
    each = -(-len(counts) // COLUMNS)
    first = np.arange(0, len(counts), each)
    members = np.diff(np.append(first, len(counts)))
    return np.add.reduceat(counts, first, axis=0) / members[:, None], each
