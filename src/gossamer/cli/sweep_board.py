"""What a sweep shows while it runs: a live table in a terminal, one line per run that ends elsewhere."""

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from gossamer.cli.common import say
from gossamer.runs.report.sweep_points import Standing
from gossamer.runs.report.text import BLANK, count, duration
from gossamer.runs.sweeps import Sweep

if TYPE_CHECKING:
    from rich.live import Live
    from rich.table import Table

EVERY = 1.0
"""Seconds between two updates of the table."""

AROUND = 8
"""Lines of a terminal that the table leaves free."""

ORDER = ("running", "failed", "waiting", "paused", "interrupted", "finished")
"""The states of runs, in the order in which a table that is too long for the terminal shows them."""


class Board:
    """The states of the runs of a sweep, in the order of the sweep.

    Args:
        path: the folder of the sweep
        sweep: the sweep
        jobs: the number of runs at once
        shown: whether anything is shown; by default in any case
    """

    def __init__(self, path: Path, sweep: Sweep, jobs: int, shown: bool | None = None) -> None:
        self.path, self.jobs, self.begun, self._next = path, jobs, time.monotonic(), 0.0
        self.shown = shown is not False
        self.standings = {run.name: Standing.of(path / run.name) for run in sweep.runs}
        self.interrupted = "paused" if sweep.halving else "interrupted"
        self.states = {name: self._state(name) for name in self.standings}
        self.notes: list[str] = []
        self._live = _live() if self.shown and sys.stderr.isatty() else None

    def __enter__(self) -> "Board":
        done = sum(state == "finished" for state in self.states.values())
        before = f", {done} of them finished" if done else ""
        self.note(f"{self.path}: {count(len(self.states), 'run')}{before}; {self.jobs} at once")
        if self._live:
            self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._live:
            self.refresh(now=True)
            self._live.stop()

    def note(self, line: str) -> None:
        """Show a line about the sweep."""
        self.notes.append(line)
        if self.shown and not self._live:
            say(line)

    def begin(self, names: Sequence[str]) -> None:
        """Note the runs that are to do."""
        self.states |= dict.fromkeys(names, "waiting")

    def end(self, name: str, reason: str | None) -> None:
        """Show that a run has ended."""
        self._read(name)
        self.states[name] = "failed" if reason else self._state(name)
        if self.shown and not self._live:
            done = sum(state not in ("waiting", "running") for state in self.states.values())
            ended = f"failed: {reason}" if reason else f"{self.states[name]}, {self.standings[name].line}"
            say(f"[{done}/{len(self.states)}] {name}: {ended}  {duration(time.monotonic() - self.begun)}")

    def refresh(self, now: bool = False) -> None:
        """Read what the runs have done since, and draw the table again, once per second at most."""
        if self._live is None or (time.monotonic() < self._next and not now):
            return
        self._next = time.monotonic() + EVERY
        for name, state in self.states.items():
            if state in ("waiting", "running"):
                self._read(name)
                self.states[name] = self._state(name) if self.standings[name].busy else state
        self._live.update(self._table(), refresh=True)

    def _state(self, name: str) -> str:
        """Return the state of a run; one that waits for others at a rung is paused."""
        state = self.standings[name].state
        return self.interrupted if state == "interrupted" else state

    def _read(self, name: str) -> None:
        self.standings[name] = Standing.of(self.path / name)

    def _table(self) -> "Table":
        from rich.table import Table
        from rich.text import Text

        assert self._live is not None
        drawn = Table(title=self.notes[-1], title_justify="left", box=None, pad_edge=False)
        for head in ("run", "state", "round", "metric"):
            drawn.add_column(head, overflow="fold")
        room = max(4, self._live.console.height - AROUND)
        first = sorted(self.states, key=lambda name: ORDER.index(self.states[name]))[:room]
        for name in (each for each in self.states if each in first):
            standing = self.standings[name]
            cells = (name, self.states[name], standing.progress or BLANK, standing.scores or BLANK)
            drawn.add_row(*map(Text, cells))
        totals = [f"{sum(mine == state for mine in self.states.values())} {state}" for state in ORDER]
        shown = ", ".join(text for text in totals if not text.startswith("0 "))
        drawn.caption = f"{shown}  {duration(time.monotonic() - self.begun)}"
        return drawn


def _live() -> "Live | None":
    try:
        from rich.console import Console
        from rich.live import Live
    except ImportError:  # rich is an extra: without it, one line per run
        return None
    return Live(console=Console(stderr=True), auto_refresh=False)
