"""Who holds what, as SVG text: clients from left to right, classes upwards, the clients' sizes as bars above.

Beyond two hundred clients, neighbours share a column, which then shows their mean.
"""

import numpy as np
import numpy.typing as npt

from gossamer.runs.report.svg import picture, text, ticks
from gossamer.tasks.data.partition import Split
from gossamer.tasks.data.samples import Data

WIDTH = 1120
LEFT, RIGHT = 40, 8
BARS, GAP = 64, 10
COLUMNS = 200
SHADES = 10

Floats = npt.NDArray[np.float64]


def holdings(split: Split, data: Data | None) -> str:
    """The picture of a split; without the data, only how much each client holds."""
    counts = split.sizes()[:, None]
    if data is not None and data.classes > 1:
        counts = split.counts(data.train.labels, data.classes)
    shown, each = _columns(counts.astype(np.float64))
    side, bottom = (WIDTH - LEFT - RIGHT) / len(shown), float(BARS)
    drawn = _bars(shown.sum(axis=1), side)
    if shown.shape[1] > 1:
        high = float(np.clip(260 / shown.shape[1], 2, 24))
        bottom = BARS + GAP + high * shown.shape[1]
        drawn += _cells(shown, side, high, bottom) + _classes(shown.shape[1], high, bottom)
    drawn += _clients(len(shown), each, side, bottom)
    return picture(WIDTH, bottom + 40, "samples by client and class", drawn)


def _columns(counts: Floats) -> tuple[Floats, int]:
    """What is drawn, and how many clients share a column."""
    each = -(-len(counts) // COLUMNS)
    first = np.arange(0, len(counts), each)
    members = np.diff(np.append(first, len(counts)))
    return np.add.reduceat(counts, first, axis=0) / members[:, None], each


def _bars(sizes: Floats, side: float) -> str:
    top = max(float(sizes.max()), 1.0)
    high = (BARS - 12) * sizes / top
    bars = "".join(
        f"M{LEFT + (i + 0.1) * side:.1f} {BARS}v{-h:.1f}h{0.8 * side:.1f}v{h:.1f}z" for i, h in enumerate(high)
    )
    scale = text(LEFT - 6, 16, f"{top:.0f}", "end") + text(LEFT - 6, BARS, "0", "end")
    return f'<path class="bar" d="{bars}"/>{scale}'


def _cells(counts: Floats, side: float, high: float, bottom: float) -> str:
    """One path for each shade: a class that a client does not hold stays blank, however little the others hold."""
    shades = np.ceil(SHADES * counts / max(float(counts.max()), 1.0)).astype(int)
    inner = f"h{side * 0.96:.2f}v{high * 0.96:.2f}h{-side * 0.96:.2f}z"
    drawn = ""
    for shade in range(SHADES + 1):
        places = zip(*np.nonzero(shades == shade), strict=True)
        path = "".join(f"M{LEFT + column * side:.1f} {bottom - (row + 1) * high:.1f}{inner}" for column, row in places)
        style = f'class="cell" fill-opacity="{0.1 + 0.9 * shade / SHADES:.2f}"' if shade else 'class="blank"'
        drawn += f'<path {style} d="{path}"/>' if path else ""
    return drawn


def _classes(classes: int, high: float, bottom: float) -> str:
    rows = [int(tick) for tick in ticks(0, classes, 10) if tick < classes and tick.is_integer()]
    return "".join(text(LEFT - 6, bottom - (row + 0.5) * high + 4, str(row), "end") for row in rows)


def _clients(columns: int, each: int, side: float, bottom: float) -> str:
    marks = [int(tick) for tick in ticks(0, columns, 20) if tick < columns and tick.is_integer()]
    drawn = "".join(text(LEFT + (mark + 0.5) * side, bottom + 16, str(mark * each), "middle") for mark in marks)
    name = "client" if each == 1 else f"client (a column is the mean of {each})"
    return drawn + text((LEFT + WIDTH - RIGHT) / 2, bottom + 34, name, "middle")
