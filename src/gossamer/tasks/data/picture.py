"""A split as a figure and as a table: the number of samples by client and class.

The x axis shows clients, the y axis classes; darker cells have more samples. The bars above show the numbers of samples
per client. With more than two hundred clients, each column shows the mean of several.
"""

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from gossamer.core.extras import need
from gossamer.tasks.data.partition import Split
from gossamer.tasks.data.samples import Data
from gossamer.tasks.data.strata import Strata, strata

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLUMNS = 200
WRITTEN = 20
INK = "#1f3b5c"
PAPER = "#eef1f5"

Floats = npt.NDArray[np.float64]


def table(split: Split, data: Data) -> dict[str, float]:
    """Return summary numbers of a split: clients, samples, sizes, labels per client, test samples per client.

    If targets are numbers, quantiles of the target take the place of labels.
    """
    sizes, groups = split.sizes(), strata(data)
    cells = np.sort(split.owners() * groups.number + groups.train[split.train_index])
    held = "labels_per_client" if data.classes else "quantiles_per_client"
    return {
        "clients": split.clients,
        "samples": len(split.train_index),
        "unused": split.unused(len(data.train)),
        "smallest": int(sizes.min()),
        "median": float(np.median(sizes)),
        "largest": int(sizes.max()),
        held: int(np.count_nonzero(np.diff(cells, prepend=-1))) / split.clients,
        "tests_per_client": len(split.test_index) / split.clients,
    }


def draw(split: Split, data: Data, path: str | Path, *, spec: str = "") -> Path:
    """Draw clients by classes to ``path``, in the format of its suffix; ``spec`` is part of the title."""
    need("matplotlib")
    from matplotlib.figure import Figure  # it has no global state, unlike pyplot

    groups = strata(data)
    counts, sizes, each = _columns(split, groups)
    width = float(np.clip(3.2 + 0.16 * len(counts), 6.4, 15.0))
    figure = Figure(figsize=(width, float(np.clip(2.4 + 0.28 * groups.number, 3.6, 9.0))), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=[1, 3.2])
    _draw_sizes(above, sizes)
    _draw_cells(figure, below, counts, groups.name)
    below.set_xlabel("client" if each == 1 else f"client (each column is the mean of {each})")
    _label_clients(below, len(counts), each)
    names = [data.name, spec, f"{split.clients:,} client{'s' if split.clients > 1 else ''}"]
    above.set_title("  ·  ".join(name for name in names if name), loc="left", color=INK, fontsize=11)
    figure.savefig(path, dpi=150)
    return Path(path)


def _columns(split: Split, groups: Strata) -> tuple[Floats, Floats, int]:
    """Return counts [columns, classes] and sizes as drawn, and the number of clients per column."""
    counts = split.counts(groups.train, groups.number).astype(np.float64)
    each = -(-split.clients // COLUMNS)
    first = np.arange(0, split.clients, each)
    members = np.diff(np.append(first, split.clients))
    counts = np.add.reduceat(counts, first, axis=0) / members[:, None]
    return counts, counts.sum(axis=1), each


def _draw_sizes(axes: "Axes", sizes: Floats) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.bar(np.arange(len(sizes)), sizes, width=0.8 if len(sizes) <= 60 else 1.0, color=INK)
    axes.set_ylabel("samples")
    axes.yaxis.set_major_locator(MaxNLocator(nbins=3, integer=True))
    axes.spines[["top", "right", "bottom"]].set_visible(False)
    axes.tick_params(bottom=False, labelbottom=False)


def _draw_cells(figure: "Figure", axes: "Axes", counts: Floats, name: str) -> None:
    from matplotlib.colors import LinearSegmentedColormap
    from matplotlib.ticker import MaxNLocator

    # Empty cells are blank, not merely pale.
    colours = LinearSegmentedColormap.from_list("counts", ["#cfe0f1", "#4f8fc4", INK]).with_extremes(bad=PAPER)
    shown = np.ma.masked_less_equal(counts.T, 0)
    top = max(float(counts.max()), 1.0)
    image = axes.imshow(shown, origin="lower", aspect="auto", interpolation="nearest", cmap=colours, vmin=0, vmax=top)
    bar = figure.colorbar(image, ax=axes, label=f"samples of a {name}", pad=0.015, fraction=0.05)
    bar.outline.set_visible(False)
    axes.set_ylabel(name)
    axes.yaxis.set_major_locator(MaxNLocator(nbins=12, integer=True, steps=[1, 2, 5, 10]))
    axes.set_ylim(-0.5, counts.shape[1] - 0.5)
    axes.spines[:].set_visible(False)
    if len(counts) <= WRITTEN >= counts.shape[1]:
        _write_counts(axes, counts, top)


def _write_counts(axes: "Axes", counts: Floats, top: float) -> None:
    for client, label in zip(*np.nonzero(counts), strict=True):
        count = counts[client, label]
        colour = "white" if count > 0.45 * top else INK
        axes.text(client, label, f"{count:.0f}", ha="center", va="center", fontsize=7, color=colour)


def _label_clients(axes: "Axes", columns: int, each: int) -> None:
    step = next(step for step in (1, 2, 5, 10, 20, 50) if columns / step <= 25)
    ticks = np.arange(0, columns, step)
    axes.set_xticks(ticks, [f"{tick * each:,}" for tick in ticks])
    axes.set_xlim(-0.5, columns - 0.5)
