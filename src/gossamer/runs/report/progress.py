"""Progress of a run: a live line in a terminal, one line per round elsewhere."""

import sys
import time
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

from gossamer.runs.report.text import BLANK, duration, number, percent, size

if TYPE_CHECKING:
    from rich.progress import Progress as Live

FIGURES = 94
"""The width of everything but the bar in a terminal, in columns; a narrower terminal shows no elapsed time."""

LINES = 50
"""The approximate number of lines without a terminal, whatever the number of rounds."""


class Progress:
    """Show round, accuracy, loss, bytes, seconds and remaining time; call it with the record of each round.

    Args:
        rounds: the number of rounds of the run
        past: the records of earlier rounds: their bytes count, their seconds do not
    """

    def __init__(self, rounds: int, past: Sequence[dict[str, Any]] = ()) -> None:
        self.rounds, self.first, self.begin = rounds, len(past), time.monotonic()
        self.up = self.down = self.failed = self.lost = 0
        self.seen: dict[str, Any] = {}
        for record in past:
            self._note(record)
        self._live = _live() if sys.stderr.isatty() else None

    def __enter__(self) -> "Progress":
        if self._live and self.first < self.rounds:
            self._live.start()
            self._live.add_task("", total=self.rounds, completed=self.first, status=self.status(), left=self.left(0))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._live:
            self._live.stop()

    def __call__(self, record: dict[str, Any]) -> None:
        """Show a finished round."""
        self._note(record)
        done, status, left = record["round"], self.status(), self.left(record["round"] - self.first)
        if self._live:
            self._live.update(self._live.task_ids[0], completed=done, status=status, left=left)
        elif done % max(1, self.rounds // LINES) == 0 or done == self.rounds:
            spent = duration(time.monotonic() - self.begin)
            print(f"round {done}/{self.rounds}  {status}  {spent}  {left}", file=sys.stderr, flush=True)

    def _note(self, record: dict[str, Any]) -> None:
        self.up += sum(record["bytes_up"].values())
        self.down += sum(record["bytes_down"].values())
        self.failed += len(record["failures"])
        self.lost += len(record["lost"])
        if "accuracy" in record:
            self.seen = record

    def status(self) -> str:
        """Return accuracy, loss and costs so far."""
        failed = f"  failed {self.failed:,}" if self.failed else ""
        lost = f"  lost {self.lost:,}" if self.lost else ""
        accuracy, loss = percent(self.seen.get("accuracy")), number(self.seen.get("loss"))
        return f"accuracy {accuracy}  loss {loss}  up {size(self.up)}  down {size(self.down)}{failed}{lost}"

    def left(self, done: int) -> str:
        """Return the estimated remaining time, by the ``done`` rounds of this process."""
        spent = time.monotonic() - self.begin
        return f"left {duration(spent / done * (self.rounds - self.first - done)) if done else BLANK}"


def _live() -> "Live | None":
    try:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
    except ImportError:  # rich is an extra: without it, one line per round
        return None
    console = Console(stderr=True)
    bar = min(20, console.width - FIGURES)
    counted = [TextColumn("round"), MofNCompleteColumn(), *([BarColumn(bar)] if bar > 3 else [])]
    elapsed = [TimeElapsedColumn()] if console.width >= FIGURES else []
    status, left = TextColumn("{task.fields[status]}"), TextColumn("{task.fields[left]}")
    return Progress(*counted, status, *elapsed, left, console=console)
