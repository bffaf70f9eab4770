"""``simulate``: run a method on a task in this process, from its arguments to its result."""

import inspect
import warnings
from pathlib import Path
from typing import Any

from gossamer.core.errors import ConfigError, RunError
from gossamer.core.method import Method
from gossamer.engines.control import Callbacks
from gossamer.engines.kept_run import DamagedRunWarning
from gossamer.engines.options import Options
from gossamer.engines.result import Result
from gossamer.engines.simulation import Simulation
from gossamer.engines.warm_start import Init, Source
from gossamer.runs.folder import RunFolder
from gossamer.runs.report.progress import progress_of
from gossamer.runs.report.scores import primary
from gossamer.runs.trackers import Track, Tracking
from gossamer.tasks.task import Task


def simulate(
    method: Method,
    task: Task,
    *,
    out: str | Path | None = None,
    resume: bool = False,
    init: Source | None = None,
    callbacks: Callbacks = (),
    progress: bool | None = None,
    track: Track = None,
    **options: Any,
) -> Result:
    """Run ``method`` on ``task``.

    Args:
        method: the federated method
        task: data, partition and network
        out: run folder; without one the run is kept in memory
        resume: continue the run in ``out``; method, task and options must be the same
        init: initial weights instead of the network's own: a file of a state dict, a run folder, a module or tensors
        callbacks: a function or several, called after each round with its record and the run; a text that one
            returns ends the run
        progress: show the progress; by default in a terminal and in a notebook alone
        track: trackers: a name such as ``"tensorboard"``, a ``Tracker``, or a list of these
        options: fields of ``Options``
    """
    if resume:
        _check_run(out)
    tracking = Tracking.started(track, Path(out) if resume and out else None)
    kept = Init.kept(Path(out)) if resume and out is not None and init is None else None
    made = Options.of(options, inspect.signature(simulate).parameters)
    simulation = Simulation(method, task, made, init=kept if init is None else Init.of(init))
    simulation.tracking = tracking
    if not resume:
        made.check_exclusion(task.clients)
    if out is None:
        return carry_out(simulation, None, callbacks, progress)
    folder = simulation.restore(Path(out)) if resume else simulation.create(Path(out))
    return carry_out(simulation, folder, callbacks, progress)


def _check_run(out: str | Path | None) -> None:
    """Refuse to resume a run that is not there."""
    if out is None:
        raise ConfigError("resume=True continues the run of a folder: name it with out=")
    if not (Path(out) / "run.json").exists():
        raise RunError(f"{out} is not a run: there is no run.json in it: leave out resume=True to start it")


def carry_out(
    simulation: Simulation, folder: RunFolder | None, callbacks: Callbacks = (), progress: bool | None = None
) -> Result:
    """Do the remaining rounds of a simulation, show the progress, and close its folder."""
    try:
        for warning in folder.warnings if folder is not None else ():
            warnings.warn(warning, DamagedRunWarning, stacklevel=3)
        rounds, score = simulation.options.rounds, primary(simulation.about)
        with progress_of(rounds, simulation.metrics, score, progress) as watch:
            return simulation.run(folder, watch, callbacks)
    finally:
        if folder is not None:
            folder.close()
