"""What clients are to each other, two by two, as SVG text: a square of cells, darker where the share is larger.

Unless told otherwise, shades go from the smallest to the largest figure, so that small differences are seen too, and a
client and itself stay blank. The scale beside the square names both ends.
"""

from collections.abc import Iterator, Sequence
from itertools import groupby

import numpy as np
import numpy.typing as npt

from gossamer.runs.report.svg import picture, text
from gossamer.runs.report.text import percent

WIDTH, SIDE = 1120, 600
LEFT, TOP = 60, 8
LEGEND = LEFT + SIDE + 40
SHADES = 10
NAMED = 20
"""About so many clients are named along each side."""
MARKED = 40
"""Each cell of so few clients tells its figure."""

BLANK = -1

Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]


def heat(
    title: str,
    clients: Sequence[int],
    shares: Floats,
    *,
    blank: Flags | None = None,
    lowest: float | None = None,
    said: str = "clients {} and {}",
    below: str = "client",
) -> str:
    """The picture of shares between 0 and 1, of clients in this order.

    ``blank`` marks the cells that are not shown, a client and itself if it is not given; one must be left. ``lowest``
    is what shades begin with, the smallest share if it is not given. ``said`` is what a cell tells of the client of its
    row and that of its column, ``below`` stands under the square.
    """
    blank = np.eye(len(clients), dtype=bool) if blank is None else blank
    shown = shares[~blank]
    low, high = float(shown.min()) if lowest is None else lowest, float(shown.max())
    cells = _cells(_shades(shares, blank, low, high)) + _told(clients, shares, blank, said)
    drawn = _scaled(len(clients), cells) + _names(clients, below)
    return picture(WIDTH, TOP + SIDE + 40, title, drawn + _legend(low, high))


def _shades(shares: Floats, blank: Flags, low: float, high: float) -> npt.NDArray[np.int64]:
    """From 0 (the lowest) to the darkest; where all are the same, they are as dark as can be."""
    span = high - low
    shades = np.floor(SHADES * (shares - low) / span) if span else np.full(shares.shape, SHADES)
    return np.where(blank, BLANK, np.clip(shades, 0, SHADES - 1)).astype(np.int64)


def _scaled(clients: int, cells: str) -> str:
    """A square that is drawn with cells as units."""
    return f'<g transform="translate({LEFT} {TOP}) scale({SIDE / clients:.6g})">{cells}</g>'


def _cells(shades: npt.NDArray[np.int64]) -> str:
    """One path for each shade; neighbours of a row that have the same are one piece."""
    pieces: dict[int, str] = {}
    for y, line in enumerate(shades.tolist()):
        for x, wide, shade in _runs(line):
            pieces[shade] = pieces.get(shade, "") + f"M{x} {y}h{wide}v1h-{wide}z"
    return "".join(f'<path {_style(shade)} d="{path}"/>' for shade, path in sorted(pieces.items()))


def _runs(line: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """Where each piece of equal shades begins, how many there are, and which."""
    x = 0
    for shade, same in groupby(line):
        wide = len(list(same))
        yield x, wide, shade
        x += wide


def _style(shade: int) -> str:
    return 'class="blank"' if shade == BLANK else f'class="cell" fill-opacity="{0.1 + 0.9 * (shade + 1) / SHADES:.2f}"'


def _told(clients: Sequence[int], shares: Floats, blank: Flags, said: str) -> str:
    """What a reader is told who points at a cell."""
    if len(clients) > MARKED:
        return ""
    return "".join(
        f'<rect x="{x}" y="{y}" width="1" height="1" fill-opacity="0">'
        f"<title>{said.format(one, other)}: {percent(float(shares[y, x]))}</title></rect>"
        for y, one in enumerate(clients)
        for x, other in enumerate(clients)
        if not blank[y, x]
    )


def _names(clients: Sequence[int], below: str) -> str:
    """Clients by number, along both sides."""
    side, bottom, drawn = SIDE / len(clients), TOP + SIDE, ""
    for place in range(0, len(clients), -(-len(clients) // NAMED)):
        middle, name = (place + 0.5) * side, str(clients[place])
        drawn += text(LEFT - 6, TOP + middle + 4, name, "end") + text(LEFT + middle, bottom + 16, name, "middle")
    return drawn + text(LEFT + SIDE / 2, bottom + 34, below, "middle")


def _legend(low: float, high: float) -> str:
    """The shades, and what the lightest and the darkest stand for."""
    shades = [SHADES - 1] if low == high else range(SHADES)
    drawn = "".join(
        f'<rect {_style(shade)} x="{LEGEND + 24 * place}" y="{TOP}" width="24" height="16"/>'
        for place, shade in enumerate(shades)
    )
    ends = [low] if low == high else [low, high]
    for value, x, anchor in zip(ends, (LEGEND, LEGEND + 24 * SHADES), ("start", "end"), strict=False):
        drawn += text(x, TOP + 32, percent(value), anchor)
    return drawn
