"""Progress of a run: a live line in a terminal and in a notebook, one line per round elsewhere."""

import sys
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from importlib import import_module
from types import TracebackType
from typing import TYPE_CHECKING, Any

from gossamer.runs.records import STOPPED
from gossamer.runs.report.scores import ACCURACY, Score
from gossamer.runs.report.text import BLANK, duration, number, size

if TYPE_CHECKING:
    from rich.progress import Progress as Live

FIGURES = 94
"""The width of everything but the bar in a terminal, in columns; a narrower terminal shows no elapsed time."""

LINES = 50
"""The approximate number of lines without a terminal, whatever the number of rounds."""


def progress_of(
    rounds: int, past: Sequence[dict[str, Any]], score: Score, shown: bool | None
) -> AbstractContextManager[Callable[[dict[str, Any]], None]]:
    """Return the progress of a run that Python starts; by default it is shown in a terminal and in a notebook alone."""
    visible = sys.stderr.isatty() or notebook() is not None if shown is None else shown
    return Progress(rounds, past, score) if visible else nullcontext(lambda record: None)


def notebook() -> Any:
    """Return the IPython shell of a notebook; none elsewhere."""
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    return shell if hasattr(shell, "kernel") else None


class Progress:
    """Show round, primary metric, loss, bytes, seconds and remaining time; call it with the record of each round.

    Args:
        rounds: the number of rounds of the run
        past: the records of earlier rounds: their bytes count, their seconds do not
        score: the primary metric
    """

    def __init__(self, rounds: int, past: Sequence[dict[str, Any]] = (), score: Score = ACCURACY) -> None:
        self.score = score
        self.rounds, self.first, self.begin = rounds, len(past), time.monotonic()
        self.up = self.down = self.failed = self.lost = 0
        self.seen: dict[str, Any] = {}
        self.time: float | None = None
        for record in past:
            self._note(record)
        self._live = _live() if sys.stderr.isatty() else None
        self._cell = _Cell() if notebook() is not None else None

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
        done, status, over = record["round"], self.status(), record["round"] == self.rounds or STOPPED in record
        left = f"stopped: {record[STOPPED]}" if STOPPED in record else self.left(done - self.first)
        if self._live:
            self._live.update(self._live.task_ids[0], completed=done, status=status, left=left)
            return
        line = f"round {done}/{self.rounds}  {status}  {duration(time.monotonic() - self.begin)}  {left}"
        if self._cell:
            self._cell.show(line, over)
        elif done % max(1, self.rounds // LINES) == 0 or over:
            print(line, file=sys.stderr, flush=True)

    def _note(self, record: dict[str, Any]) -> None:
        self.up += sum(record["bytes_up"].values())
        self.down += sum(record["bytes_down"].values())
        self.failed += len(record["failures"])
        self.lost += len(record["lost"])
        self.time = record.get("time")
        if self.score.name in record:
            self.seen = record

    def status(self) -> str:
        """Return primary metric, loss, costs so far, and virtual time if there is a schedule."""
        failed = f"  failed so far {self.failed:,}" if self.failed else ""
        lost = f"  lost so far {self.lost:,}" if self.lost else ""
        value, loss = self.score.write(self.seen.get(self.score.name)), number(self.seen.get("loss"))
        costs = f"up {size(self.up)}  down {size(self.down)}{failed}{lost}"
        time = f"  virtual time {duration(self.time)}" if self.time is not None else ""
        return f"{self.score.words} {value}  loss {loss}  {costs}{time}"

    def left(self, done: int) -> str:
        """Return the estimated remaining time, by the ``done`` rounds of this process."""
        spent = time.monotonic() - self.begin
        return f"left {duration(spent / done * (self.rounds - self.first - done)) if done else BLANK}"


class _Cell:
    """A line of the output of a notebook cell, which is rewritten."""

    def __init__(self) -> None:
        self._handle: Any = None
        self._next = 0.0

    def show(self, line: str, over: bool) -> None:
        """Show a line in place of the last one, at most ten times per second, and the last line in any case."""
        shown = {"text/plain": line}
        if self._handle is None:
            self._handle = import_module("IPython.display").display(shown, raw=True, display_id=True)
        elif over or time.monotonic() >= self._next:
            self._handle.update(shown, raw=True)
            self._next = time.monotonic() + 0.1


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
