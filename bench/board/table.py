"""Results of a workload as a table: seconds per round, the time of the whole run, preparation and memory."""

from collections.abc import Sequence

from board.race import Outcome
from board.workloads import Workload

PLAIN = "plain"
MB = 1e6
HEADER = ("system", "s per round", "speed", "preparation s", "whole run", "peak GPU MB", "timed rounds")


def clock(seconds: float) -> str:
    """Return a duration as published ones are written: ``8:22``, ``1:42:01``.

    >>> clock(502), clock(6121), clock(4.4)
    ('8:22', '1:42:01', '0:04')
    """
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def baseline(outcomes: Sequence[Outcome]) -> Outcome | None:
    """Return the plain loop, if it was measured."""
    return next((found for found in outcomes if found.family == PLAIN and not found.skipped), None)


def cells(found: Outcome, plain: Outcome | None, work: Workload) -> tuple[str, ...]:
    """Return the texts of a row."""
    median = work.scale * found.median
    return (
        f"{found.name}: {found.note}" if "auto" in found.name else found.name,
        f"{median:.3f}" if median < 10 else f"{median:.1f}",
        f"{plain.mean / found.mean:.1f}x" if plain else "",
        f"{found.prepare:.1f}",
        clock(found.total(work.rounds, work.scale)),
        f"{found.memory / MB:,.0f}" if found.memory else "",
        str(len(found.seconds)),
    )


def rows(outcomes: Sequence[Outcome], work: Workload) -> list[tuple[str, ...]]:
    """Return a row for every system that took part."""
    plain = baseline(outcomes)
    return [cells(found, plain, work) for found in outcomes if not found.skipped]


def absent(outcomes: Sequence[Outcome]) -> list[str]:
    """Return a line for every system that did not."""
    return [f"{found.name}: not measured: {found.skipped}" for found in outcomes if found.skipped]


def text(outcomes: Sequence[Outcome], work: Workload) -> str:
    """Return a table for a terminal."""
    lines = [HEADER, *rows(outcomes, work)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    shown = ["  ".join(f"{word:<{width}}" for word, width in zip(line, widths, strict=True)) for line in lines]
    return "\n".join([*shown, *absent(outcomes)])


def markdown(header: Sequence[str], lines: Sequence[Sequence[str]], texts: Sequence[str]) -> str:
    """Return a table for a page; the columns of ``texts`` are aligned on the left."""
    rule = ["---" if name in texts else "---:" for name in header]
    return "\n".join(f"| {' | '.join(line)} |" for line in (header, rule, *lines))
