"""Numbers and tables as plain text, for terminals and files.

Tables are laid out by rich. Without rich, which is an extra, a plain formatter gives the same lines.
"""

import io
import math
import re
import shutil
import sys
import textwrap
from collections.abc import Iterator, Sequence
from itertools import pairwise

BLANK = "–"
NARROWEST = 24
"""The smallest width of a last column, however narrow the terminal is."""
PIPED = 160
"""The width of tables that do not go to a terminal."""

RANGES = 6
"""The default for the largest number of ranges to write."""


def size(count: float) -> str:
    """Format a number of bytes: three digits and a unit, powers of ten.

    >>> size(0), size(1530), size(44_178_200)
    ('0 B', '1.53 kB', '44.2 MB')
    """
    return f"{count:.0f} B" if abs(count) < 1000 else f"{_scaled(count)}B"


def amount(count: float) -> str:
    """Format a large number: ``8.45 G``.

    >>> amount(8_447_152_000), amount(12)
    ('8.45 G', '12 ')
    """
    return f"{count:.0f} " if abs(count) < 1000 else _scaled(count)


def joules(energy: float) -> str:
    """Format an energy: four digits, or three and a unit if there are many.

    >>> joules(0.5), joules(12_140)
    ('0.5 J', '12.1 kJ')
    """
    return f"{number(energy)} J" if abs(energy) < 1000 else f"{_scaled(energy)}J"


def _scaled(count: float) -> str:
    units = "kMGTPE"
    power = min(max(0, int(math.log10(abs(count) / 0.9995)) // 3 - 1), len(units) - 1)
    return f"{count / 1000 ** (power + 1):#.3g}".rstrip(".") + f" {units[power]}"


def percent(share: float | None) -> str:
    """Format a fraction as a percentage with two decimals."""
    return BLANK if share is None else f"{100 * share:.2f} %"


def number(value: float | None) -> str:
    """Format a number with four digits."""
    return BLANK if value is None else f"{value:.4g}"


def duration(seconds: float) -> str:
    """Format a duration.

    >>> duration(4.04), duration(75), duration(7300)
    ('4.0 s', '1:15', '2:01:40')
    """
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def time_unit(longest: float) -> tuple[str, float]:
    """Return the unit of an axis of times, and its seconds: hours from two of them on, else minutes, else seconds.

    >>> time_unit(7300), time_unit(600), time_unit(90)
    (('h', 3600.0), ('min', 60.0), ('s', 1.0))
    """
    return next(((name, unit) for name, unit in (("h", 3600.0), ("min", 60.0)) if longest >= 2 * unit), ("s", 1.0))


def seconds(time: float) -> str:
    """Format seconds with four digits, or as minutes and hours if there are many.

    >>> seconds(0.04996), seconds(7300)
    ('0.04996 s', '2:01:40')
    """
    return f"{number(time)} s" if time < 59.95 else duration(time)


def count(number: int, thing: str) -> str:
    """Format a number with a noun.

    >>> count(1, "round"), count(20, "round")
    ('1 round', '20 rounds')
    """
    return f"{number:,} {thing}{'' if number == 1 else 's'}"


def ranges(numbers: Sequence[int], most: int = RANGES) -> str:
    """Format ascending numbers, neighbours as a range, at most ``most`` ranges.

    >>> ranges([0, 1, 2, 5, 8, 9])
    '0-2, 5, 8-9'
    """
    first = [numbers[0], *(b for a, b in pairwise(numbers) if b != a + 1)]
    last = [*(a for a, b in pairwise(numbers) if b != a + 1), numbers[-1]]
    written = [f"{a}-{b}" if a < b else f"{a}" for a, b in zip(first, last, strict=True)][:most]
    rest = sum(number > last[len(written) - 1] for number in numbers)
    return ", ".join(written) + (f" and {rest:,} more" if rest else "")


def screen() -> int:
    """Return the width for output: that of the terminal, or ``PIPED`` for files and other programs."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else PIPED


def table(head: Sequence[str], rows: Sequence[Sequence[str]], width: int | None = None) -> str:
    """Return columns under a head; numbers are aligned to the right.

    Args:
        head: the titles of the columns
        rows: the cells
        width: the width to fit; only the last column is wrapped. By default that of ``screen``
    """
    right = [bool(rows) and all(_numeric(row[i]) for row in rows) for i in range(len(head))]
    widths = _widths([head, *rows], width)
    return _laid_out([head, ["─" * wide for wide in widths], *rows], widths, right)


def pairs(rows: Sequence[tuple[str, str]], width: int | None = None) -> str:
    """Return names and values, one pair per line; values are wrapped to ``width``, by default that of ``screen``."""
    return _laid_out(rows, _widths(rows, width), [False, False])


def _numeric(text: str) -> bool:
    return text == BLANK or re.fullmatch(r"-?\d[\d.,:e+-]*[%x]?", text.split(" ")[0]) is not None


def _widths(rows: Sequence[Sequence[str]], width: int | None) -> list[int]:
    *others, last = (max(len(row[i]) for row in rows) for i in range(len(rows[0])))
    room = (width or screen()) - sum(others) - 2 * len(others)
    return [*others, max(1, min(last, max(room, NARROWEST)))]


def _laid_out(rows: Sequence[Sequence[str]], widths: Sequence[int], right: Sequence[bool]) -> str:
    try:
        return "\n".join(_rich(rows, widths, right))
    except ImportError:  # rich is an extra
        return "\n".join(_plain(rows, widths, right))


def _rich(rows: Sequence[Sequence[str]], widths: Sequence[int], right: Sequence[bool]) -> Iterator[str]:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    grid = Table.grid(padding=(0, 2, 0, 0))
    for wide, numeric in zip(widths, right, strict=True):
        grid.add_column(width=wide, justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        grid.add_row(*map(Text, row))  # not markup: cells may hold brackets
    drawn = io.StringIO()
    Console(file=drawn, width=sum(widths) + 2 * len(widths), color_system=None, legacy_windows=False).print(grid)
    return (line.rstrip() for line in drawn.getvalue().splitlines())


def _plain(rows: Sequence[Sequence[str]], widths: Sequence[int], right: Sequence[bool]) -> Iterator[str]:
    for *cells, text in rows:
        first, *more = textwrap.wrap(text, widths[-1]) or [""]
        for line in ([*cells, first], *([*[""] * len(cells), piece] for piece in more)):
            padded = (c.rjust(w) if r else c.ljust(w) for c, w, r in zip(line, widths, right, strict=True))
            yield "  ".join(padded).rstrip()
