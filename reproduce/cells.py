"""Cells of a table: one run each, kept as a small JSON file, done side by side, and never done twice.

A cell that is cut off goes on where it stopped: until it is done its run is kept in ``runs/cells``.
"""

import argparse
import json
import multiprocessing
import shutil
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from gossamer import METHODS, MagnitudePruned, Method, Task, Wireless, simulate
from gossamer.core.errors import ConfigError
from gossamer.core.random import key
from gossamer.core.specs import parse
from gossamer.engines.run import Result
from gossamer.fleet.fleet import Fleet
from gossamer.parts.codecs import OnWeights
from gossamer.parts.solvers.schedules import SCHEDULES
from gossamer.tasks.data import load
from gossamer.tasks.nets import build
from gossamer.tasks.nets.dense import mlp
from gossamer.tasks.nets.lstm import lstm
from gossamer.tasks.static_norms import STATISTICS
from gossamer.tasks.task import deal

HERE = Path(__file__).parent
PAGES = HERE.parent / "docs/reproduction"
CELLS = PAGES / "cells"
UNDER_WAY = HERE.parent / "runs/cells"
NO_PART = ("prepare", "evaluate", "save")
"""Seconds that belong to a run and not to its rounds."""


class Cell(NamedTuple):
    """One run: everything that decides it.

    ``leave`` names tensors that are not compressed; * stands for anything. ``executor`` is what trains its clients,
    where :func:`how` is not to say; ``solver`` has fields of the solver that its recipe has no parameters for.
    ``samples`` is how many training samples a client has where not all are dealt, ``fleet`` the file of its devices if
    it is run over radio links, and ``prune`` the share of the smallest weights that clients leave out.
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
    solver: dict[str, Any] = {}  # noqa: RUF012 - nobody writes to it
    samples: int = 0
    fleet: str = ""
    prune: float = 0.0

    @property
    def path(self) -> Path:
        """Where its result is kept."""
        return CELLS / f"{self.name}.json"

    @property
    def folder(self) -> Path:
        """Where its run is kept until it is done."""
        return UNDER_WAY / self.name


Facts = dict[str, Any]
More = Callable[[Cell, Task, Result], Facts]
"""What else is to be kept of a run, from its cell, task and result."""
Engine = Callable[..., Result]
"""What carries a run out, where that is not ``simulate`` itself, which it is called like."""


def nothing(cell: Cell, task: Task, result: Result) -> Facts:
    """Nothing else."""
    return {}


def outcome(cell: Cell, data_dir: Path, more: More = nothing, engine: Engine | None = None) -> Facts:
    """Run a cell, or what is left of it: accuracy by evaluated round in per cent, seconds by round, bytes."""
    mine = task(cell, data_dir)
    told = {"rounds": cell.rounds, "per_round": cell.per_round, "seed": cell.seed, "eval_every": cell.eval_every}
    options = {**told, **how(mine.model(), cell.executor)}
    if cell.fleet:
        options["channel"] = Wireless(Fleet.read(HERE / cell.fleet))
    carry_out = engine or simulate
    result = carry_out(method(cell), mine, out=cell.folder, resume=cell.folder.exists(), **options)
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
    """Of a run whose clients' own models are what counts: these by evaluated round, beside the global one."""
    told = [record for record in result.metrics if "personal_accuracy" in record]
    found = [round(100 * record["personal_accuracy"], 2) for record in told]
    return {
        "best": max(found),
        "last": found[-1],
        "rounds_told": [record["round"] for record in told],
        "personal": found,
        "accuracy": [round(100 * record["accuracy"], 2) for record in told],
        "worst_tenth": round(100 * told[-1]["worst_tenth_accuracy"], 2),
        "flops": sum(record["flops"] for record in result.metrics),
    }


def timed(result: Result) -> Facts:
    """Seconds of a round (median), from the first message to the new model, and what they were measured on."""
    return {
        "round_seconds": round(statistics.median(map(seconds, result.metrics)), 3),
        "device": result.about["machine"]["device"],
        "executor": result.about["executor"],
    }


def seconds(record: Facts) -> float:
    """How long a round took."""
    return float(sum(spent for phase, spent in record["seconds"].items() if phase not in NO_PART))


def task(cell: Cell, data_dir: Path) -> Task:
    """What a cell trains on; ``ConfigError`` says which file is missing."""
    data = load(cell.data, data_dir=data_dir, clients=cell.clients, key=key(cell.seed))
    if cell.samples:
        data = replace(data, train=data.train.take(np.arange(cell.samples * cell.clients)))
    split = deal(data, cell.split, cell.clients, cell.seed)
    by = parse(cell.statistics, STATISTICS, "statistics")
    return Task(lambda: network(cell.model, data.shape, data.classes), data, split, statistics=by)


def method(cell: Cell) -> Method:
    """A cell's method with its schedule; if it compresses, then not the tensors that are to be left."""
    made = METHODS[cell.method](**cell.given)
    fields = dict(cell.solver)
    if cell.schedule != "constant":
        fields["schedule"] = parse(cell.schedule, SCHEDULES, "schedule")
    made = made.with_parts(solver=replace(made.solver, **fields)) if fields else made  # type: ignore[type-var]
    made = made.with_parts(view=MagnitudePruned((cell.prune,))) if cell.prune else made
    codec = made.codec
    return made.with_parts(codec=replace(codec, exclude=cell.leave)) if isinstance(codec, OnWeights) else made


def network(name: str, shape: torch.Size, classes: int) -> nn.Module:
    """The network of a name; ``lstm-plain`` is the LSTM without dropout, ``mlp-64`` the MLP with 64 hidden units."""
    if name == "mlp-64":
        return mlp(shape, classes, hidden=64)
    return lstm(shape, classes, dropout=0) if name == "lstm-plain" else build(name, shape, classes)


def how(model: nn.Module, wanted: str = "") -> dict[str, Any]:
    """Device and executor: the one that is wanted where it can be.

    Else captured on a GPU, if the network draws no random numbers; on a CPU nothing can be captured.
    """
    if not torch.cuda.is_available():
        return {"device": "cpu", "executor": "auto" if wanted.startswith("captured") else wanted or "auto"}
    draws = any(isinstance(part, nn.Dropout) for part in model.modules())
    return {"device": "cuda", "executor": wanted or ("one-by-one" if draws else "captured")}


def keep(cell: Cell, data_dir: Path, until: float, more: More = nothing, engine: Engine | None = None) -> str:
    """Run a cell unless it is there already, time is up or it cannot be run here; keep it, and say what came of it."""
    if not cell.path.exists():
        if time.time() > until:
            return f"{cell.name}: not begun"
        try:
            found = outcome(cell, data_dir, more, engine)
        except ConfigError as error:  # its data is not here, say
            return f"{cell.name}: left out, {str(error).splitlines()[0]}"
        cell.path.write_text(json.dumps(found) + "\n")
        shutil.rmtree(cell.folder)
    found = read(cell)
    return f"{cell.name}: best {found['best']:.2f}, last {found['last']:.2f}"


def read(cell: Cell) -> Facts:
    """What is kept of a cell."""
    kept: Facts = json.loads(cell.path.read_text())
    return kept


def run(
    cells: Sequence[Cell],
    data_dir: Path,
    jobs: int,
    seconds: float,
    more: More = nothing,
    engine: Engine | None = None,
) -> None:
    """Run the cells that are missing, several at once; none is begun after so many seconds.

    One that fails (a full disk, say) does not keep the others from being done: that is said at the end.
    """
    CELLS.mkdir(parents=True, exist_ok=True)
    until, failed = time.time() + seconds, []
    with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn")) as pool:
        under_way = {pool.submit(keep, cell, data_dir, until, more, engine): cell for cell in cells}
        for job in as_completed(under_way):
            if error := job.exception():
                failed.append(under_way[job].name)
            print(f"{under_way[job].name}: FAILED, {error!r}" if error else job.result(), flush=True)
    if failed:
        raise SystemExit(f"failed: {', '.join(failed)}; what they had saved is in {UNDER_WAY}: run again to go on")


def parser(description: str, studies: Sequence[str], default: Sequence[str], methods: str) -> argparse.ArgumentParser:
    """What can be asked of a script that runs cells."""
    made = argparse.ArgumentParser(description=f"{description}, cell by cell.")
    made.add_argument("--data-dir", type=Path, default=Path("data"))
    made.add_argument("--only", choices=studies, nargs="*", default=default, help="studies")
    made.add_argument("--methods", nargs="*", help=f"{methods} (all)")
    made.add_argument("--jobs", type=int, default=1, help="cells at once")
    made.add_argument("--seconds", type=float, default=1e9, help="begin no cell after so long")
    made.add_argument("--list", action="store_true", help="only say which cells there are, and their cost")
    return made


def told(mine: Sequence[Cell], cost: Callable[[Cell], float]) -> str:
    """What is to be done, and roughly what it costs, in units of 10^15 operations."""
    lines = [f"{cost(cell):6.2f}  {cell.name}{' (is there)' if cell.path.exists() else ''}" for cell in mine]
    left = sum(cost(cell) for cell in mine if not cell.path.exists())
    return "\n".join([*lines, f"{left:6.2f}  PFLOP to be done"])


def missing(studies: Mapping[str, Callable[[], Iterable[Cell]]], *others: str) -> str:
    """Which studies have cells that were not run yet, and what else there is not, as a line of a page."""
    found = []
    for name, study in studies.items():
        every = list(study())
        absent = sum(not cell.path.exists() for cell in every)
        found += [f"`{name}` ({absent} of {len(every)} cells)"] if absent else []
    found += [f"`{other}`" for other in others]
    return f"\n**Not run yet:** {', '.join(found)}." if found else "\n**All cells are there.**"


def write(page: Path, table: str) -> None:
    """Put a table, made of all cells there are, behind its mark on a page."""
    before, mark, _ = page.read_text().partition("<!-- table -->")
    page.write_text(f"{before}{mark or '<!-- table -->'}\n{table}\n")
    print(table)
