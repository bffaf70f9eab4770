"""Runs by their folder, in Python: look at one, or continue it."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path

from gossamer.cli.common import open_run
from gossamer.cli.rebuild import rebuild, reopened
from gossamer.core.errors import ConfigError
from gossamer.core.fields import known_arguments
from gossamer.core.method import Method
from gossamer.engines.control import Callbacks, Until
from gossamer.engines.export import stand
from gossamer.engines.result import Result
from gossamer.engines.simulate import carry_out
from gossamer.runs.records import read_metrics
from gossamer.tasks.task import Task


@known_arguments("load_run")
def load_run(
    path: str | Path, *, method: Method | None = None, task: Task | None = None, trust: bool = False
) -> Result:
    """Return the result of a recorded run: metrics, plots and, once they are needed, its models.

    Args:
        path: the run folder
        method: the method, if it is your own object and the folder cannot rebuild it; needed for models alone
        task: likewise the task
        trust: execute the user files of a run that you have not started on this machine, to build its models
    """
    path = Path(path)
    about = open_run(path)
    built = partial(rebuild, path, about, method, task, trusted=trust)
    return Result(about, read_metrics(path), path, lambda: stand(path, *built()))


@known_arguments("resume")
def resume(
    path: str | Path,
    *,
    method: Method | None = None,
    task: Task | None = None,
    rounds: int | None = None,
    until: str | Mapping[str, float] | None = None,
    patience: int | None = None,
    cluster: str | None = None,
    actors: int | None = None,
    callbacks: Callbacks = (),
    progress: bool | None = None,
    trust: bool = False,
) -> Result:
    """Continue a recorded simulation, and return its result.

    Args:
        path: the run folder
        method: the method, if it is your own object and the folder cannot rebuild it
        task: likewise the task
        rounds: a new number of rounds, also for a finished run; finished rounds stay as they are
        until: new targets
        patience: a new patience
        cluster: another Ray cluster, as for ``simulate``, or ``"none"``; by default that of the run
        actors: another number of Ray actors on each node
        callbacks: as for ``simulate``
        progress: as for ``simulate``
        trust: execute the user files of a run that you have not started on this machine
    """
    path = Path(path)
    about = open_run(path)
    if "deployment" in about:
        raise ConfigError(f"{path} was deployed: continue it with gossamer resume {path}")
    moved = {"cluster": None if cluster == "none" else cluster} if cluster else {}
    place = moved | ({"actors": actors} if actors else {})
    run = reopened(path, about, method, task, trusted=trust, place=place)
    folder = run.reopen(path, rounds=rounds, until=Until.of(until) if until else None, patience=patience)
    return carry_out(run, folder, callbacks, progress)
