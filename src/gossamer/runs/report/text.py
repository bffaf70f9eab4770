"""Numbers and tables as plain text, for terminals and files alike."""

import math
import re
import shutil
import sys
import textwrap
from collections.abc import Sequence
from itertools import pairwise

BLANK = "–"
NARROWEST = 24
"""A last column is never made narrower than this, however small the terminal."""

RANGES = 6
"""So many ranges of numbers are written at most, unless told otherwise."""


def size(count: float) -> str:
    """Bytes for people: three figures and a unit, powers of ten.

    >>> size(0), size(1530), size(44_178_200)
    ('0 B', '1.53 kB', '44.2 MB')
    """
    return f"{count:.0f} B" if abs(count) < 1000 else f"{_scaled(count)}B"


def amount(count: float) -> str:
    """A large number for people: ``8.45 G``.

    >>> amount(8_447_152_000), amount(12)
    ('8.45 G', '12 ')
    """
    return f"{count:.0f} " if abs(count) < 1000 else _scaled(count)


def _scaled(count: float) -> str:
    units = "kMGTPE"
    power = min(max(0, int(math.log10(abs(count) / 0.9995)) // 3 - 1), len(units) - 1)
    return f"{count / 1000 ** (power + 1):#.3g}".rstrip(".") + f" {units[power]}"


def percent(share: float | None) -> str:
    """A share as a percentage with two decimals."""
    return BLANK if share is None else f"{100 * share:.2f} %"


def number(value: float | None) -> str:
    """A number with four figures."""
    return BLANK if value is None else f"{value:.4g}"


def duration(seconds: float) -> str:
    """Seconds for people.

    >>> duration(4.04), duration(75), duration(7300)
    ('4.0 s', '1:15', '2:01:40')
    """
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def seconds(time: float) -> str:
    """Seconds with four figures, or minutes and hours where there are many.

    >>> seconds(0.04996), seconds(7300)
    ('0.04996 s', '2:01:40')
    """
    return f"{number(time)} s" if time < 59.95 else duration(time)


def count(number: int, thing: str) -> str:
    """So many of a thing.

    >>> count(1, "round"), count(20, "round")
    ('1 round', '20 rounds')
    """
    return f"{number:,} {thing}{'' if number == 1 else 's'}"


def ranges(numbers: Sequence[int], most: int = RANGES) -> str:
    """Ascending numbers, neighbours as a range; of many ranges the first.

    >>> ranges([0, 1, 2, 5, 8, 9])
    '0-2, 5, 8-9'
    """
    first = [numbers[0], *(b for a, b in pairwise(numbers) if b != a + 1)]
    last = [*(a for a, b in pairwise(numbers) if b != a + 1), numbers[-1]]
    written = [f"{a}-{b}" if a < b else f"{a}" for a, b in zip(first, last, strict=True)][:most]
    rest = sum(number > last[len(written) - 1] for number in numbers)
    return ", ".join(written) + (f" and {rest:,} more" if rest else "")


def screen() -> int | None:
    """How wide to write: the terminal's width, or ``None`` where the output goes to a file or to another program."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def table(head: Sequence[str], rows: Sequence[Sequence[str]], width: int | None = None) -> str:
    """Columns under a head; what looks like a number stands to the right. The last column is broken to ``width``."""
    *others, last = (max(len(row[i]) for row in (head, *rows)) for i in range(len(head)))
    last = _fitting(last, sum(others) + 2 * len(others), width)
    widths = [*others, last]
    right = [bool(rows) and all(_numeric(row[i]) for row in rows) for i in range(len(head))]
    lines = [head, ["─" * column for column in widths]]
    for *cells, text in rows:
        first, *more = textwrap.wrap(text, last) or [""]
        lines += [[*cells, first], *([*[""] * len(others), piece] for piece in more)]
    return "\n".join(_line(line, widths, right) for line in lines)


def _line(cells: Sequence[str], widths: Sequence[int], right: Sequence[bool]) -> str:
    padded = (c.rjust(w) if r else c.ljust(w) for c, w, r in zip(cells, widths, right, strict=True))
    return "  ".join(padded).rstrip()


def _fitting(wanted: int, before: int, width: int | None) -> int:
    return max(wanted, 1) if width is None else max(min(wanted, max(width - before, NARROWEST)), 1)


def _numeric(text: str) -> bool:
    return text == BLANK or re.fullmatch(r"-?\d[\d.,:e+-]*[%x]?", text.split(" ")[0]) is not None


def pairs(rows: Sequence[tuple[str, str]], width: int | None = None) -> str:
    """Names and values, one pair a line; values are broken to ``width``."""
    name = max(len(name) for name, _ in rows)
    text = _fitting(max(len(text) for _, text in rows), name + 2, width)
    lines = []
    for label, value in rows:
        first, *more = textwrap.wrap(value, text) or [""]
        lines += [f"{label.ljust(name)}  {first}".rstrip(), *(" " * (name + 2) + piece for piece in more)]
    return "\n".join(lines)
