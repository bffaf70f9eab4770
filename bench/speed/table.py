"""Results of a race as a table: seconds, and ratios to the plain loop with its best number of threads."""

from collections.abc import Sequence
from typing import NamedTuple

from race import ENOUGH, Outcome

PLAIN = "plain"
MB = 1e6


class Row(NamedTuple):
    """A system, with its speed and memory relative to the plain loop."""

    outcome: Outcome
    speed: float
    memory: float


HEADER = (
    "system",
    "s per round",
    "speed",
    "peak MB",
    "memory",
    "first round s",
    "preparation s",
    "accuracy",
    "clean",
)


def baseline(outcomes: Sequence[Outcome]) -> Outcome:
    """Return the plain loop with its best number of threads."""
    return min((o for o in outcomes if o.family == PLAIN and not o.skipped), key=lambda o: o.median)


def rows(outcomes: Sequence[Outcome]) -> list[Row]:
    """Return a row for every system that took part."""
    best = baseline(outcomes)
    return [Row(o, best.median / o.median, o.peak / best.peak) for o in outcomes if not o.skipped]


def cells(row: Row) -> tuple[str, ...]:
    """Return the texts of a row."""
    found = row.outcome
    digits = 3 if found.median < 10 else 1
    disturbed = "" if len(found.clean) >= ENOUGH else " ~"
    return (
        f"{found.name}: {found.note}" if "auto" in found.name else found.name,
        f"{found.median:.{digits}f}{disturbed}",
        f"{row.speed:.2f}x",
        f"{found.peak / MB:,.0f}",
        f"{row.memory:.2f}x",
        f"{found.first_seconds:.1f}",
        f"{found.prepare_seconds:.1f}" if found.prepare_seconds >= 0.1 else "",
        f"{100 * found.accuracy:.1f} %",
        f"{len(found.clean)} of {len(found.seconds)}",
    )


def text(outcomes: Sequence[Outcome]) -> str:
    """Return a table for a terminal."""
    lines = [HEADER, *map(cells, rows(outcomes))]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    shown = [f"{line[0]:{widths[0]}}  {_right(line[1:], widths[1:])}" for line in lines]
    return "\n".join([*shown, *_absent(outcomes)])


def _right(words: Sequence[str], widths: Sequence[int]) -> str:
    return "  ".join(f"{word:>{width}}" for word, width in zip(words, widths, strict=True))


def _absent(outcomes: Sequence[Outcome]) -> list[str]:
    return [f"{o.name}: not measured: {o.skipped}" for o in outcomes if o.skipped]


def markdown(outcomes: Sequence[Outcome]) -> str:
    """Return a table for a page."""
    lines = [HEADER, ("---",) + ("---:",) * (len(HEADER) - 1), *map(cells, rows(outcomes))]
    table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    absent = "\n".join(f"- {line}" for line in _absent(outcomes))
    return f"{table}\n\n{absent}".strip()
