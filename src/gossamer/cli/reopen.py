"""Runs by their folder: build the method and the task again, look at a run in Python, or continue it.

A run of the command line is built from its request. A run from Python is built from the name of its recipe and the
arguments of ``Task.named``. Objects of your own are not in the folder: they are given by the caller.
"""

import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

from gossamer.cli import trust
from gossamer.cli.build import make_task, whole_task
from gossamer.cli.build_method import make_method
from gossamer.cli.common import open_run, reading
from gossamer.cli.request import Request
from gossamer.core.errors import ConfigError
from gossamer.core.fields import known_arguments
from gossamer.core.method import Method
from gossamer.engines.control import Callbacks, Until
from gossamer.engines.export import stand
from gossamer.engines.options import Options
from gossamer.engines.result import Result
from gossamer.engines.simulate import carry_out
from gossamer.engines.simulation import Simulation
from gossamer.engines.warm_start import Init
from gossamer.methods.registry import METHODS
from gossamer.runs.checkpoint import read_split
from gossamer.runs.records import read_metrics
from gossamer.runs.trackers import Tracking
from gossamer.tasks.data.partition import Split
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


def rebuild(
    path: Path,
    about: dict[str, Any],
    method: Method | None = None,
    task: Task | None = None,
    read: Callable[[str], Task] = whole_task,
    *,
    trusted: bool = False,
) -> tuple[Method, Task]:
    """Return the method and the task of a run.

    Args:
        path: the run folder
        about: content of ``run.json``
        method: the method, if the folder does not tell it
        task: the task, if the folder does not tell it
        read: finds a task in a user file
        trusted: whether the user agrees to execute the files of the run
    """
    check_files(path, about, trusted)
    with reading(path):
        method = method or _method(about)
        split = Split.from_tensors(read_split(path))
        task = task.with_split(split) if task else _task(about, split, read)
    if method is None or task is None:
        lacking = [name for name, part in (("method", method), ("task", task)) if part is None]
        flags = " ".join(f"--{name} FILE.py:NAME" for name in lacking)
        given = ", ".join(f"{name}={name}" for name in lacking)
        raise ConfigError(
            f"{path} was started from Python, and its {' and '.join(lacking)} cannot be built from the folder: "
            f"add {flags}, or in Python {given}, or run its script again with resume=True"
        )
    return method, task


def reopened(
    path: Path,
    about: dict[str, Any],
    method: Method | None = None,
    task: Task | None = None,
    warn: Callable[[str], None] = warnings.warn,
    *,
    trusted: bool = False,
    place: Mapping[str, Any] = MappingProxyType({}),
) -> Simulation:
    """Return a recorded run as a simulation at its start, with its trackers; ``reopen`` restores its last checkpoint.

    ``warn`` reports trackers that fail, and ``place`` are options that say where the run is computed from now on. The
    other arguments are those of ``rebuild``.
    """
    built = rebuild(path, about, method, task, trusted=trusted)
    with reading(path):
        options = Options.read(about["options"])
    if place:
        options = replace(options, **{**({"actors": None} if "cluster" in place else {}), **place})
    simulation = Simulation(*built, options, about["request"], Init.kept(path))
    simulation.tracking = Tracking.resumed(path, warn)
    return simulation


def check_files(path: Path, about: dict[str, Any], trusted: bool = False) -> None:
    """Refuse a run whose user files are missing, were changed, or may not be executed (``gossamer.cli.trust``)."""
    if not about["request"]:
        return
    specs, digests = Request.read(about["request"]).files().values(), about["request"].get("digests", {})
    trust.check_files(path, "run.json", specs, digests, trusted)


def _method(about: dict[str, Any]) -> Method | None:
    if about["request"]:
        return make_method(Request.read(about["request"]))
    recipe = about.get("recipe")
    if not recipe or recipe["name"] not in METHODS:
        return None
    method = make_method(Request(recipe["name"], recipe["given"]))
    return method if method.describe() == about["method"] else None  # parts were replaced after the recipe


def _task(about: dict[str, Any], split: Split, read: Callable[[str], Task]) -> Task | None:
    if about["request"]:
        return make_task(Request.read(about["request"]), about["options"]["seed"], split, read)
    call = about.get("task_call")
    return Task.named(**call).with_split(split) if call else None
