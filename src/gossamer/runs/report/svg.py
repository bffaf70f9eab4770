"""Charts as SVG text. Colours are left to the page's style, so that a chart suits light and dark alike."""

import math
from collections.abc import Sequence
from html import escape
from typing import NamedTuple

WIDTH, HEIGHT = 420, 250
LEFT, RIGHT, TOP, BOTTOM = 40, 12, 10, 38
MARKED = 60
"""Lines of so few points get a dot for each, with its numbers."""


class Series(NamedTuple):
    """A line: its name, and its points in order."""

    name: str
    points: list[tuple[float, float]]


class ChartAxis(NamedTuple):
    """From numbers to places along one side of a chart."""

    low: float
    high: float
    begin: float
    end: float

    def at(self, value: float) -> float:
        """Where a number lies."""
        return self.begin + (value - self.low) / (self.high - self.low) * (self.end - self.begin)


def ticks(low: float, high: float, about: int = 5) -> list[float]:
    """Round numbers, evenly spaced, that hold ``low`` and ``high`` between them.

    >>> ticks(0, 12), ticks(0.31, 0.52)
    ([0.0, 5.0, 10.0, 15.0], [0.3, 0.35, 0.4, 0.45, 0.5, 0.55])
    """
    rough = (high - low or abs(high) or 1) / about
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(step for step in (power, 2 * power, 5 * power, 10 * power) if step >= rough * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [float(f"{number * step:.10g}") for number in range(first, max(last, first + 1) + 1)]


def chart(title: str, across: str, series: Sequence[Series]) -> str:
    """Lines over a common axis; empty when no line has a point."""
    points = [point for line in series for point in line.points]
    if not points:
        return ""
    xs, ys = [x for x, _ in points], [y for _, y in points]
    rows, far = ticks(min(ys), max(ys)), max(xs) or 1
    x, y = ChartAxis(0, far, LEFT, WIDTH - RIGHT), ChartAxis(rows[0], rows[-1], HEIGHT - BOTTOM, TOP)
    whole = all(float(place).is_integer() for place in xs)  # rounds: there is none between two of them
    columns = [tick for tick in ticks(0, far, 6) if tick <= far and (tick.is_integer() or not whole)]
    drawn = [_rows(y, rows), _columns(x, columns, across)]
    drawn += [_line(number, line, x, y) for number, line in enumerate(series) if line.points]
    names = "".join(f'<span class="key k{n}">{escape(line.name)}</span>' for n, line in enumerate(series))
    said = f"<figcaption>{escape(title)}<div>{names}</div></figcaption>"
    return f"<figure>{said}{picture(WIDTH, HEIGHT, title, ''.join(drawn))}</figure>"


def picture(width: float, height: float, title: str, content: str) -> str:
    """A drawing as wide as there is room."""
    box = f'viewBox="0 0 {width:g} {height:g}" role="img" aria-label="{escape(title)}"'
    return f"<svg {box}>{content}</svg>"


def _rows(y: ChartAxis, at: Sequence[float]) -> str:
    lines = "".join(f'<path class="grid" d="M{LEFT} {y.at(tick):.1f}H{WIDTH - RIGHT}"/>' for tick in at)
    return lines + "".join(text(LEFT - 6, y.at(tick) + 4, f"{tick:g}", "end") for tick in at)


def _columns(x: ChartAxis, at: Sequence[float], name: str) -> str:
    numbers = "".join(text(x.at(tick), HEIGHT - BOTTOM + 16, f"{tick:g}", "middle") for tick in at)
    return numbers + text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 5, name, "middle")


def text(x: float, y: float, said: str, anchor: str) -> str:
    """Words in a drawing."""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(said)}</text>'


def _line(number: int, line: Series, x: ChartAxis, y: ChartAxis) -> str:
    places = [f"{x.at(a):.1f} {y.at(b):.1f}" for a, b in line.points]
    drawn = f'<path class="line k{number}" d="M{"L".join(places)}"/>'
    if len(places) <= MARKED:
        for (a, b), place in zip(line.points, places, strict=True):
            cx, cy = place.split()
            said = escape(f"{line.name}: {b:.4g} at {a:.4g}")
            drawn += f'<circle class="dot k{number}" cx="{cx}" cy="{cy}" r="3"><title>{said}</title></circle>'
    return drawn
