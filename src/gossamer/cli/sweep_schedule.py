"""Carry out a sweep: its runs as jobs, rung by rung if hopeless points are stopped, and what is shown meanwhile.

Without halving there is one rung, that of all rounds. Within a rung the runs are independent. A rung ends when all of
its runs have reached it; then the points that go on are chosen from the records (``gossamer.runs.sweeps``). A sweep
that is continued repeats these decisions, and does only what is missing.

A live table is shown in a terminal, and one line per run that ends elsewhere.
"""

import os
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from math import inf
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple

from gossamer.cli import guarded
from gossamer.cli.build_method import find_recipe
from gossamer.cli.common import open_run, say, warn
from gossamer.cli.flags import Flag, switches, value
from gossamer.cli.reopen import reopened
from gossamer.cli.request import ROUNDS
from gossamer.cli.run import go, read_words, start
from gossamer.cli.run_args import RUN, RUN_VERB, own_flags
from gossamer.core import files
from gossamer.core.chunks import cores
from gossamer.core.extras import need
from gossamer.runs.inside import refuse_links
from gossamer.runs.jobs import Ended, Job, Launcher, Local, spread, visible_gpus
from gossamer.runs.records import Record
from gossamer.runs.report.scores import held_out
from gossamer.runs.report.sweep_points import Standing
from gossamer.runs.report.text import BLANK, count, duration
from gossamer.runs.sweeps import ABOUT, LOCK, LOGS, Sweep, SweepRun, survivors

if TYPE_CHECKING:
    pass


STOPPED = 130
"""The exit status of a run that was interrupted."""


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
        self._live: Any = None
        if self.shown and sys.stderr.isatty():
            with suppress(ImportError):  # rich is an extra: without it, one line per run
                from rich.console import Console
                from rich.live import Live

                self._live = Live(console=Console(stderr=True), auto_refresh=False)

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
        from rich.table import Table
        from rich.text import Text

        self._next = time.monotonic() + EVERY
        for name, state in self.states.items():
            if state in ("waiting", "running"):
                self._read(name)
                self.states[name] = self._state(name) if self.standings[name].busy else state
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
        self._live.update(drawn, refresh=True)

    def _state(self, name: str) -> str:
        """Return the state of a run; one that waits for others at a rung is paused."""
        state = self.standings[name].state
        return self.interrupted if state == "interrupted" else state

    def _read(self, name: str) -> None:
        self.standings[name] = Standing.of(self.path / name)


def work(words: list[str], path: Path, pause: int | None) -> int:
    """Start the run of these words of ``gossamer run`` in a folder, or continue it there; return the exit status.

    Args:
        words: the words, without the folder
        path: the folder of the run
        pause: the round after which the run is interrupted; none carries it out
    """
    return guarded(partial(_work, words, path, pause))


def _work(words: list[str], path: Path, pause: int | None) -> int:
    if (path / "run.json").exists():
        simulation = reopened(path, open_run(path), warn=warn)
        return go(simulation, simulation.reopen(path), pause)
    asked = read_words([*words, f"--out={path}"], RUN_VERB)
    assert asked is not None  # no word asks for help
    return start(asked, pause)


class Budget(NamedTuple):
    """What a sweep may use."""

    jobs: int | None = None  # runs at once; none is one per core or, on GPUs, one per GPU
    seconds: float = inf  # no run starts later
    cluster: str | None = None  # the Ray cluster over which the runs are spread; none is this machine, without Ray


class Places(NamedTuple):
    """Where the runs go."""

    launcher: Launcher  # starts them
    jobs: int  # the number of runs at once
    cores: int  # the number of cores of each
    gpus: float  # its share of a GPU, or 0


class Done(NamedTuple):
    """How a sweep ended."""

    failed: dict[str, str]  # why runs failed, by name
    left: list[str]  # the names of runs that are not finished and did not fail: time was up


def carry_out(path: Path, sweep: Sweep, budget: Budget, shown: bool | None = None) -> Done:
    """Do what is left of a sweep.

    Args:
        path: the folder of the sweep
        sweep: the sweep, which was checked
        budget: what it may use
        shown: whether the progress is shown
    """
    refuse_links(path, (ABOUT, LOCK, LOGS, *(run.name for run in sweep.runs)))
    with files.on_failure(f"{path / LOCK} cannot be used"):
        lock = files.take_lock(path / LOCK)
    try:
        places = places_of(path, sweep, budget)
        with Board(path, sweep, places.jobs, shown) as board, places.launcher:
            return _Schedule(path, sweep, places, board).run(budget.seconds)
    finally:
        os.close(lock)


def places_of(path: Path, sweep: Sweep, budget: Budget) -> Places:
    """Return where the runs of a sweep go: to processes of this machine, or to the nodes of a cluster."""
    on_gpu = "cuda" in (sweep.settings.get("device"), *sweep.grid.get("device", ()))
    if budget.cluster is None:
        gpus = visible_gpus() if on_gpu else []
        jobs = min(budget.jobs or (len(gpus) if gpus else cores()), len(sweep.runs))
        share = min(1.0, len(gpus) / jobs) if gpus else 0
        return Places(Local(jobs, gpus), jobs, max(1, cores() // jobs), share)
    most = budget.jobs and min(budget.jobs, len(sweep.runs))
    launcher = need("gossamer.engines.ray.jobs").OnNodes(budget.cluster, path / ABOUT, most, on_gpu)
    return Places(launcher, launcher.jobs, launcher.cores, launcher.gpus)


class _Schedule:
    """A sweep in progress."""

    def __init__(self, path: Path, sweep: Sweep, places: Places, board: Board) -> None:
        self.path, self.sweep, self.launcher, self.board = path, sweep, places.launcher, board
        self.share = places.cores, places.gpus
        self.failed: dict[str, str] = {}

    def run(self, seconds: float) -> Done:
        """Do all rungs; no run starts after this time."""
        until, points = time.monotonic() + seconds, self.sweep.points
        rounds = int(self.sweep.settings.get("rounds", ROUNDS))
        rungs = self.sweep.halving.rungs(len(points), rounds) if self.sweep.halving else [None]
        for rung in rungs:
            mine = [run for run in self.sweep.runs if run.point in points]
            pause = None if rung == rungs[-1] else rung
            jobs = [self._job(run, pause) for run in mine if not self._standing(run).reached(pause)]
            self.board.begin([job.name for job in jobs])
            for ended in spread(jobs, self.launcher, until - time.monotonic(), self.board.refresh):
                if reason := self._problem(ended):
                    self.failed[ended.job.name] = reason
                self.board.end(ended.job.name, reason)
            left = [run.name for run in mine if run.name not in self.failed and not self._standing(run).reached(rung)]
            if left or rung is None or rung == rungs[-1]:
                return Done(self.failed, left)
            points = self._kept(rung, points)
        raise AssertionError("the last rung returns")

    def _job(self, run: SweepRun, rung: int | None) -> Job:
        log = self.path / LOGS / f"{run.name}.log"
        args = (words_of(self.sweep, run), (self.path / run.name).resolve(), rung)
        return Job(run.name, work, args, *self.share, log.resolve())

    def _problem(self, ended: Ended) -> str | None:
        """Return why a run failed: the last line that it printed; none if it did not."""
        log = self.path / LOGS / f"{ended.job.name}.log"
        if ended.error is None and ended.value in (0, STOPPED):
            return None
        last = (log.read_text(errors="replace").splitlines() or [""])[-1] if log.exists() else ""
        reason = last.strip().removeprefix("gossamer: ").removeprefix("- ") if ended.error is None else ended.error
        return f"{reason} (log in {log})"

    def _standing(self, run: SweepRun) -> Standing:
        return Standing.of(self.path / run.name)

    def _kept(self, rung: int, points: list[tuple[tuple[str, str], ...]]) -> list[tuple[tuple[str, str], ...]]:
        """Return the points that go on after a rung."""
        standings = {run.name: self._standing(run) for run in self.sweep.runs if run.point in points}
        known = [standing.about for standing in standings.values() if standing.about]
        if not known:
            return []

        def metrics(run: SweepRun) -> Sequence[Record]:
            return standings[run.name].metrics

        score = held_out(known[0])[0]
        kept = survivors(self.sweep, rung, points, metrics, score.name, score.better)
        self.board.note(f"after round {rung}: {len(kept)} of {len(points)} points go on")
        return kept


def words_of(sweep: Sweep, run: SweepRun) -> list[str]:
    """Return the words after ``gossamer run`` that start a run, without its folder."""
    point = dict(run.point)
    method = point.pop("method", None) or sweep.method
    assert method is not None  # or the sweep was refused
    known = {flag.word: flag for flag in (*RUN, *own_flags(find_recipe(method), method))}
    settings = {**sweep.settings, **{name: text for name, text in point.items() if "." not in name}, "seed": run.seed}
    sets = [*sweep.sets, *(f"{name}={text}" for name, text in point.items() if "." in name)]
    words = [_typed(name, text, known) for name, text in settings.items()]
    return [method, *words, *(f"--set={each}" for each in sets)]


def _typed(name: str, text: Any, known: Mapping[str, Flag]) -> str:
    """Return a flag with its value: ``--lr=0.1``, or ``--no-coded``."""
    word = "--" + name.rstrip("_").replace("_", "-")
    if word in known and switches(known[word].kind) and str(text) not in ("none", "None"):
        given = value(word, text, bool)
        return next(each for each, implied in known[word].words.items() if implied is given)
    return f"{word}={text}"
