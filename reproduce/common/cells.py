"""Cells: single runs of a table. They run in parallel, and a stored cell does not run again.

A cell that is interrupted resumes: its run folder stays in ``runs/cells`` until the cell is stored.
"""

import shutil
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from gossamer import METHODS, FleetLinks, MagnitudePruned, Method, Split, Task, Wireless, simulate
from gossamer.cli.build import make_method
from gossamer.cli.request import PARTS, Request
from gossamer.cli.run_args import own_flags, scan
from gossamer.core.errors import ConfigError, require
from gossamer.core.random import key
from gossamer.core.specs import parse
from gossamer.engines.run import Result
from gossamer.fleet.fleet import Fleet
from gossamer.parts.codecs import OnWeights
from gossamer.parts.solvers.schedules import LR_SCHEDULES
from gossamer.runs.jobs import Job, spread
from gossamer.runs.jobs.local import Local
from gossamer.tasks.batch_norms import STATISTICS
from gossamer.tasks.data import Data, load
from gossamer.tasks.data.splits import split
from gossamer.tasks.nets import build
from gossamer.tasks.nets.images import mlp
from gossamer.tasks.nets.text import lstm
from gossamer.tasks.task import deal
from reproduce.common import store
from reproduce.common.by_device import BY_DEVICE, ByDevice
from reproduce.common.protection import Protection, protected
from reproduce.common.row_lstm import RowLSTM
from reproduce.common.small_cnn import small_cnn
from reproduce.common.store import Facts

FLEETS, VIRTUAL_FLEETS = store.ROOT / "reproduce/wireless", store.ROOT / "reproduce/baselines"
NO_PART = ("prepare", "evaluate", "save")
"""Phases that belong to a run but not to its rounds."""


class Cell(NamedTuple):
    """One run, with everything that determines its result. The fields are stored with the result.

    Args:
        name: unique name; its first word is the study that stores the cell
        method: name of the recipe
        given: parameters of the recipe
        data: data set
        model: network
        split: partition of the data among clients
        seed: random seed
        rounds: number of rounds
        clients: number of clients
        per_round: clients per round
        leave: tensors that are not compressed; * matches any name
        statistics: how static norms get their statistics for evaluation
        schedule: learning rate schedule
        eval_every: rounds between evaluations
        executor: executor of local training; chosen by ``how`` if empty
        solver: fields of the solver that the recipe has no parameters for
        samples: training samples per client; 0 partitions all samples
        fleet: file of the fleet, for a run over radio links
        prune: fraction of the smallest weights that clients prune
        retries: how often a message that radio links lost is sent again
        words: further flags of ``gossamer run`` for the method, such as ``--down dense:float16``
        validate: hold out every n-th natural owner, or every n-th training sample, and evaluate on these; 0 for none
        precision: precision of local training
        attack: what hostile clients do, such as ``scale:-50,share=0.1``; empty if all are honest
        virtual: schedule in virtual time, such as ``fedbuff:buffer=5``, on the devices of ``fleet``; empty for none
        until: target that ends the run, such as ``accuracy=0.85``; empty for none
        protect: fields of ``Protection``, for differential privacy or secure aggregation; empty for none
    """

    name: str
    method: str
    given: dict[str, Any]
    data: str
    model: str
    split: str
    seed: int
    rounds: int
    clients: int = 100
    per_round: int = 10
    leave: tuple[str, ...] = ()
    statistics: str = "batch"
    schedule: str = "constant"
    eval_every: int = 1
    executor: str = ""
    solver: dict[str, Any] = {}  # noqa: RUF012 - never modified
    samples: int = 0
    fleet: str = ""
    prune: float = 0.0
    retries: int = 0
    words: str = ""
    validate: int = 0
    precision: str = "float32"
    attack: str = ""
    virtual: str = ""
    until: str = ""
    protect: dict[str, Any] = {}  # noqa: RUF012 - never modified

    @property
    def study(self) -> str:
        """The study that stores the cell."""
        return self.name.partition("-")[0]

    @property
    def stored(self) -> bool:
        """Whether the cell has a result."""
        return self.name in store.read(self.study)

    @property
    def folder(self) -> Path:
        """Run folder until the cell is stored."""
        return store.RUNS / self.name


Studies = Mapping[str, Callable[[], Iterable[Cell]]]
More = Callable[[Cell, Task, Result], Facts]
"""Further values to store, from the cell, its task and its result."""
Engine = Callable[..., Result]
"""A replacement for ``simulate``, with the same signature."""


# Stored results.


def save(cell: Cell, facts: Facts) -> None:
    """Store the result of a cell."""
    store.write(cell.study, cell.name, facts)


def read(cell: Cell) -> Facts:
    """Return the stored result of a cell."""
    facts: Facts = store.read(cell.study)[cell.name]
    return facts


def read_all(cells: Iterable[Cell]) -> list[Facts]:
    """Return the stored results of those cells that have one."""
    return [read(cell) for cell in cells if cell.stored]


def first_round(facts: Facts, target: float, figure: str = "accuracy") -> int | None:
    """Return the first evaluated round that reaches a target; None if no round does."""
    evaluated = zip(facts["rounds_told"], facts[figure], strict=True)
    return next((number for number, value in evaluated if value >= target), None)


# What is stored.


def no_more(cell: Cell, task: Task, result: Result) -> Facts:
    """Store no further values."""
    return {}


def outcome(cell: Cell, data_dir: Path, more: More = no_more, engine: Engine | None = None) -> Facts:
    """Run a cell, or the rest of it. Return accuracy per evaluated round in percent, seconds per round, and bytes."""
    mine = task(cell, data_dir)
    options: dict[str, Any] = {"rounds": cell.rounds, "per_round": cell.per_round, "seed": cell.seed}
    options |= {"eval_every": cell.eval_every, "precision": cell.precision, **how(cell.executor)}
    if cell.attack:
        options["attack"] = cell.attack
    if cell.virtual:
        options |= {"schedule": cell.virtual, "channel": FleetLinks(Fleet.read(VIRTUAL_FLEETS / cell.fleet))}
    elif cell.fleet:
        options["channel"] = Wireless(Fleet.read(FLEETS / cell.fleet), retries=cell.retries)
    if cell.until:
        options["until"] = cell.until
    run_method = engine or simulate
    result = run_method(method(cell), mine, out=cell.folder, resume=cell.folder.exists(), **options)
    curve = [round(100 * record["accuracy"], 2) for record in result.metrics if "accuracy" in record]
    last = result.metrics[-1]
    return {
        **cell._asdict(),
        "last": curve[-1],
        "best": max(curve),
        "accuracy": curve,
        "seconds": [round(sum(record["seconds"].values()), 3) for record in result.metrics],
        "bytes_up": last["bytes_up"],
        "failures": sum(len(record["failures"]) for record in result.metrics),
        **more(cell, mine, result),
    }


def personal(result: Result) -> Facts:
    """Return the accuracy of personalized models per evaluated round, next to that of the global model."""
    evaluated = [record for record in result.metrics if "personal_accuracy" in record]
    accuracies = [round(100 * record["personal_accuracy"], 2) for record in evaluated]
    return {
        "best": max(accuracies),
        "last": accuracies[-1],
        "rounds_told": [record["round"] for record in evaluated],
        "personal": accuracies,
        "accuracy": [round(100 * record["accuracy"], 2) for record in evaluated],
        "worst_tenth": round(100 * evaluated[-1]["worst_tenth_accuracy"], 2),
        "flops": sum(record["flops"] for record in result.metrics),
    }


def timed(result: Result) -> Facts:
    """Return the median seconds of a round, from the first message to the new model, with device and executor."""
    return {
        "round_seconds": round(statistics.median(map(seconds, result.metrics)), 3),
        "device": result.about["machine"]["device"],
        "executor": result.about["executor"],
    }


def seconds(record: Facts) -> float:
    """Return the duration of a round."""
    return float(sum(spent for phase, spent in record["seconds"].items() if phase not in NO_PART))


# Runs.


def task(cell: Cell, data_dir: Path) -> Task:
    """Return the task of a cell; ``ConfigError`` names a missing file."""
    data = _loaded(cell.data, data_dir, cell.clients, cell.seed)
    if cell.samples:
        data = replace(data, train=data.train.take(np.arange(cell.samples * cell.clients)))
    data = validation(data, cell.validate) if cell.validate else data
    split = dealt(data, cell)
    by = parse(cell.statistics, STATISTICS, "statistics")
    return Task(lambda: network(cell.model, data.shape, data.classes), data, split, statistics=by)


def dealt(data: Data, cell: Cell) -> Split:
    """Return the partition of a cell: one of the library's, or one in which labels go with the kind of device."""
    if not cell.split.startswith(BY_DEVICE):
        return deal(data, cell.split, cell.clients, cell.seed)
    return split(ByDevice(float(cell.split.removeprefix(BY_DEVICE))), data, cell.clients, key(cell.seed))


@lru_cache(maxsize=1)
def _loaded(name: str, data_dir: Path, clients: int, seed: int) -> Data:
    """Return a data set, which is not read again for the next cell."""
    return load(name, data_dir=data_dir, clients=clients, key=key(seed))


def validation(data: Data, every: int) -> Data:
    """Return the data with every n-th owner of training samples, or every n-th sample, as the test set."""
    group = data.train.group
    number = np.arange(len(data.train)) if group is None else np.unique(group, return_inverse=True)[1]
    held = number % every == 0
    train, test = (data.train.take(np.flatnonzero(one)) for one in (~held, held))
    return replace(data, train=train, test=test)


def method(cell: Cell) -> Method:
    """Return the method of a cell, with its schedule, pruning, uncompressed tensors and protection."""
    made = written(cell.method, cell.given, cell.words) if cell.words else METHODS[cell.method](**cell.given)
    fields = dict(cell.solver)
    if cell.schedule != "constant":
        fields["schedule"] = parse(cell.schedule, LR_SCHEDULES, "schedule")
    made = made.with_parts(solver=replace(made.solver, **fields)) if fields else made  # type: ignore[type-var]
    made = made.with_parts(view=MagnitudePruned((cell.prune,))) if cell.prune else made
    codec = made.codec
    made = made.with_parts(codec=replace(codec, exclude=cell.leave)) if isinstance(codec, OnWeights) else made
    return protected(made, Protection(**cell.protect), cell.clients, cell.per_round) if cell.protect else made


def written(name: str, given: Facts, words: str) -> Method:
    """Return the method that ``gossamer run`` makes of parameters and further flags."""
    typed = scan(words.split(), own_flags(METHODS[name], name))
    require((not (typed.strange or typed.mistakes), f"{name} {words}: {[*typed.strange, *typed.mistakes]}"))
    parts = {part: typed.given.pop(part) for part in PARTS if part in typed.given}
    return make_method(Request(name, {**given, **typed.given}, tuple(typed.sets), **parts))


def network(name: str, shape: torch.Size, classes: int) -> nn.Module:
    """Return a network of the library, or a variant.

    ``lstm-plain`` is the LSTM without dropout, ``mlp-64`` the MLP with 64 hidden units, ``lstm-rows`` an LSTM that
    reads an image row by row, ``cnn-small`` a CNN without norms.
    """
    if name == "cnn-small":
        return small_cnn(shape, classes)
    if name == "mlp-64":
        return mlp(shape, classes, hidden=64)
    if name == "lstm-rows":
        return RowLSTM(shape[-1], classes)
    return lstm(shape, classes, dropout=0) if name == "lstm-plain" else build(name, shape, classes)


def how(wanted: str = "") -> dict[str, Any]:
    """Return device and executor: the wanted executor where the device has it, else ``captured`` on a GPU."""
    if not torch.cuda.is_available():
        return {"device": "cpu", "executor": "auto" if wanted.startswith("captured") else wanted or "auto"}
    return {"device": "cuda", "executor": wanted or "captured"}


def keep(cell: Cell, data_dir: Path, more: More = no_more, engine: Engine | None = None) -> str:
    """Run and store a cell unless it is stored or its data is missing. Return a line of progress."""
    if not cell.stored:
        try:
            facts = outcome(cell, data_dir, more, engine)
        except ConfigError as error:
            return f"{cell.name}: skipped, {str(error).splitlines()[0]}"
        save(cell, facts)
        shutil.rmtree(cell.folder)
    facts = read(cell)
    return f"{cell.name}: best {facts['best']:.2f}, last {facts['last']:.2f}"


def run(
    cells: Sequence[Cell],
    data_dir: Path,
    jobs: int,
    seconds: float,
    more: More = no_more,
    engine: Engine | None = None,
) -> None:
    """Run the missing cells, ``jobs`` in parallel, as a sweep runs its runs. No cell starts after ``seconds``.

    A cell that fails does not stop the others. All failures are reported at the end.
    """
    for cell in cells:
        if cell.stored:
            print(keep(cell, data_dir), flush=True)
    missing = [cell for cell in cells if not cell.stored]
    left, failed = {cell.name: Job(cell.name, keep, (cell, data_dir, more, engine)) for cell in missing}, []
    with Local(jobs, fresh=False) as launcher:
        for job, line, error in spread(list(left.values()), launcher, seconds):
            print(f"{job.name}: FAILED, {error}" if error else line, flush=True)
            failed += [job.name] if error else []
            del left[job.name]
    print("".join(f"{name}: not started\n" for name in left), end="", flush=True)
    if failed:
        raise SystemExit(f"failed: {', '.join(failed)}; their run folders are in {store.RUNS}: run again to resume")
