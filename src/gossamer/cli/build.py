"""Build the objects of a run from a request. The request is checked as a whole, and every mistake is listed at once."""

import inspect
import typing
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar

from gossamer.cli import user_files
from gossamer.cli.build_method import find_recipe, make_method, with_budget
from gossamer.cli.common import flag_word
from gossamer.cli.flags import (
    by_flags,
    flags,
    value,
)
from gossamer.cli.request import CLIENTS, DATA, ROUNDS, TASK, Request
from gossamer.core.errors import ConfigError, Mistake, Mistakes
from gossamer.core.random import key
from gossamer.core.specs import parse
from gossamer.engines.options import AUTO, Options
from gossamer.engines.simulation import Simulation
from gossamer.engines.warm_start import Init
from gossamer.tasks.batch_norms import STATISTICS
from gossamer.tasks.data.datasets import DATASETS, load
from gossamer.tasks.data.partition import Split
from gossamer.tasks.data.partitioners import SPLITS
from gossamer.tasks.data.samples import Data
from gossamer.tasks.nets import build, check_name
from gossamer.tasks.task import Task, deal, task_at

T = TypeVar("T")

OPTIONS = tuple(option.name for option in fields(Options))


def assemble(
    request: Request, options: dict[str, Any], split: Split | None = None, init: str | None = None
) -> Simulation:
    """Return a checked simulation; nothing is written before this returns."""
    mistakes = Mistakes()
    start = mistakes.attempt(in_flags, request, Init.of, init) if init else None
    method = mistakes.attempt(make_method, request)
    checked = mistakes.attempt(make_options, options)
    task = mistakes.attempt(make_task, request, checked.seed if checked else 0, split)
    clients = task.clients if task else None if request.task else Mistakes().attempt(make_clients, request)
    if clients is not None:
        mistakes.attempt(check_cohort, options, clients)
    mistakes.settle()
    assert method is not None  # or there were mistakes
    assert task is not None
    assert checked is not None
    if request.privacy:
        request = in_flags(request, with_budget, request, method, task, checked)
        method = make_method(request)
    given = (method, task, checked, request.plain(), start)
    if not request.files():
        return in_flags(request, Simulation, *given)
    label = " with ".join(request.files().values())
    made: Simulation = in_flags(request, user_files.called, label, Simulation, *given)
    return made


def in_flags(request: Request, function: Callable[..., T], *args: Any) -> T:
    """Call a function. Its mistakes name the flags of the method and of the run in place of fields and options."""
    try:
        return function(*args)
    except ConfigError as error:
        own = Mistakes().attempt(lambda: flags(find_recipe(request.method), request.method)) or []
        options = (*OPTIONS, "init")
        raise ConfigError(*(by_flags(mistake, own, options)[0] for mistake in error.mistakes)) from error


def make_options(given: dict[str, Any]) -> Options:
    """Return options from text or from a recorded run; mistakes name the flags."""
    hints, mistakes = typing.get_type_hints(Options), Mistakes()
    values: dict[str, Any] = {"rounds": ROUNDS, "executor": AUTO}
    for name, text in given.items():
        try:
            values[name] = value(flag_word(name), text, hints[name])
        except ConfigError as error:
            mistakes.note(*error.mistakes)
    try:
        options = Options(**values)
    except ConfigError as error:
        mistakes.note(*map(as_typed, error.mistakes))
    mistakes.settle()
    return options


def check_cohort(given: dict[str, Any], clients: int) -> None:
    """Refuse a cohort larger than the number of clients, or too small for ``--exclude-after`` if that is given."""
    options = make_options({name: given[name] for name in ("per_round", "exclude_after", "schedule") if name in given})
    try:
        options.check_exclusion(clients)
    except ConfigError as error:
        raise ConfigError(*map(as_typed, error.mistakes)) from None


def as_typed(mistake: Mistake) -> str:
    """Return a mistake about options in terms of flags."""
    return mistake.written(lambda setting: str(setting) if setting.part else flag_word(setting.field))


def make_task(request: Request, seed: int, split: Split | None, read: Callable[[str], Task] | None = None) -> Task:
    """Return the task of a request.

    Args:
        request: the request
        seed: the seed of the run
        split: the partition of the run that is resumed; by default a new one is drawn
        read: finds a task in a user file
    """
    if request.task:
        mistakes = Mistakes()
        if replaced := [flag_word(name) for name in TASK if getattr(request, name)]:
            mistakes.note(f"--task brings its own data, model and split: leave out {', '.join(replaced)}")
        task = mistakes.attempt(read or whole_task, request.task)
        mistakes.settle()
        assert task is not None  # or there were mistakes
        return task.with_split(split) if split else task
    mistakes = Mistakes()
    seed = mistakes.attempt(data_seed, request, seed) or 0
    clients = mistakes.attempt(make_clients, request)
    data = mistakes.attempt(make_data, request, clients or CLIENTS, seed)
    if data is not None:
        mistakes.attempt(build, request.model or data.model, data.shape, data.outputs)
    elif request.model:
        mistakes.attempt(check_name, request.model)
    if data is not None and clients is not None:
        split = split or mistakes.attempt(deal, data, request.split or data.split, clients, seed)
    elif request.split:
        mistakes.attempt(parse, request.split, SPLITS, "split")
    if request.statistics:
        mistakes.attempt(parse, request.statistics, STATISTICS, "statistics")
    mistakes.settle()
    assert data is not None  # or there were mistakes
    assert split is not None
    return Task.of_data(data, request.model, request.split or data.split, split, request.statistics)


_KEPT: dict[tuple[Any, ...], Data] = {}
_keeping = False


@contextmanager
def keeping_data() -> Iterator[None]:
    """Read the data set of several requests once, as long as the requests ask for the same."""
    global _keeping
    _keeping = True
    try:
        yield
    finally:
        _keeping = False
        _KEPT.clear()


def make_data(request: Request, clients: int, seed: int) -> Data:
    """Return the data set of a request."""
    name, folder = request.data or DATA, Path(request.data_dir) if request.data_dir else None
    mistakes = Mistakes()
    mistakes.attempt(parse, name, DATASETS, "data set")
    if folder is not None and not folder.is_dir():
        mistakes.note(f"--data-dir: there is no folder {folder}")
    mistakes.settle()
    if (asked := (name, folder, clients, seed)) not in _KEPT:
        _KEPT.clear()
        _KEPT[asked] = load(name, data_dir=folder, clients=clients, key=key(seed))
    return _KEPT[asked] if _keeping else _KEPT.pop(asked)


def make_clients(request: Request) -> int:
    """Return the number of clients of a request."""
    clients: int = CLIENTS if request.clients is None else value("--clients", request.clients, int)
    if clients < 1:
        raise ConfigError(f"--clients must be at least 1, got {clients}")
    return clients


def data_seed(request: Request, seed: int) -> int:
    """Return the seed of the data and the partition: by default that of the run."""
    chosen: int = seed if request.data_seed is None else value("--data-seed", request.data_seed, int)
    if chosen < 0:
        raise ConfigError(f"--data-seed must not be negative, got {chosen}")
    return chosen


def whole_task(spec: str) -> Task:
    """Return the task of ``file.py:name`` for a simulation, with the samples of all clients."""
    label = f"--task {spec}"
    found = user_files.load(spec, label)
    if callable(found) and any(p.default is p.empty for p in inspect.signature(found).parameters.values()):
        raise ConfigError(f"{label}: it takes arguments, which only a deployment passes")
    if callable(found):
        found = user_files.called(label, found)
    return _checked(found, label)


def server_task(spec: str) -> Task:
    """Return the task of ``file.py:name`` for the server of a deployment."""
    label = f"--task {spec}"
    found: Any = user_files.load(spec, label)
    return _checked(user_files.called(label, task_at, found, None, {}), label)


def _checked(found: object, label: str) -> Task:
    if not isinstance(found, Task):
        raise ConfigError(f"{label}: must be a gossamer.Task or a function that returns one")
    return found


def recorded_data(about: dict[str, Any]) -> Data | None:
    """Return the data of a recorded run; ``None`` if it cannot be loaded or has changed."""
    request = Request.recorded(about)
    if request is None:
        return None
    seed = data_seed(request, about["options"]["seed"])
    task = request.task
    data = whole_task(task).data if task else make_data(request, make_clients(request), seed)
    return data if data.digest() == about["task"]["data_digest"] else None
