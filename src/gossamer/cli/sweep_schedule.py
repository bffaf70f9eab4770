"""Carry out a sweep: its runs as jobs, rung by rung if hopeless points are stopped.

Without halving there is one rung, that of all rounds. Within a rung the runs are independent. A rung ends when all of
its runs have reached it; then the points that go on are chosen from the records (``gossamer.runs.sweeps``). A sweep
that is continued repeats these decisions, and does only what is missing.
"""

import os
import time
from collections.abc import Sequence
from math import inf
from pathlib import Path
from typing import NamedTuple

from gossamer.cli.request import ROUNDS
from gossamer.cli.sweep_board import Board
from gossamer.cli.sweep_check import words_of
from gossamer.cli.sweep_job import work
from gossamer.core import files
from gossamer.core.chunks import cores
from gossamer.core.extras import need
from gossamer.runs.inside import refuse_links
from gossamer.runs.jobs import Ended, Job, Launcher, Local, spread, visible_gpus
from gossamer.runs.records import Record
from gossamer.runs.report.scores import held_out
from gossamer.runs.report.sweep_points import Standing
from gossamer.runs.sweeps import ABOUT, LOCK, LOGS, Sweep, SweepRun, survivors

STOPPED = 130
"""The exit status of a run that was interrupted."""


class Budget(NamedTuple):
    """What a sweep may use.

    Args:
        jobs: runs at once; none is one per core or, on GPUs, one per GPU
        seconds: no run starts later
        cluster: the Ray cluster over which the runs are spread; none is this machine, without Ray
    """

    jobs: int | None = None
    seconds: float = inf
    cluster: str | None = None


class Places(NamedTuple):
    """Where the runs go.

    Args:
        launcher: starts them
        jobs: the number of runs at once
        cores: the number of cores of each
        gpus: its share of a GPU, or 0
    """

    launcher: Launcher
    jobs: int
    cores: int
    gpus: float


class Done(NamedTuple):
    """How a sweep ended.

    Args:
        failed: why runs failed, by name
        left: the names of runs that are not finished and did not fail: time was up
    """

    failed: dict[str, str]
    left: list[str]


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
            self._rung(mine, None if rung == rungs[-1] else rung, until - time.monotonic())
            left = [run.name for run in mine if run.name not in self.failed and not self._standing(run).reached(rung)]
            if left or rung is None or rung == rungs[-1]:
                return Done(self.failed, left)
            points = self._kept(rung, points)
        raise AssertionError("the last rung returns")

    def _rung(self, runs: Sequence[SweepRun], rung: int | None, seconds: float) -> None:
        """Run what is missing up to a rung; none is the end."""
        jobs = [self._job(run, rung) for run in runs if not self._standing(run).reached(rung)]
        self.board.begin([job.name for job in jobs])
        for ended in spread(jobs, self.launcher, seconds, self.board.refresh):
            if reason := self._problem(ended):
                self.failed[ended.job.name] = reason
            self.board.end(ended.job.name, reason)

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
