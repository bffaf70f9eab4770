"""Cells of the FedSpa experiments, run side by side: as :mod:`cells` does it, with what is peculiar to them.

All methods share weight decay and clipping, which not every recipe has a parameter for; what counts is how good the
clients' own models are; and a cell whose data is not here is left out, so that one command serves whoever has some.
"""

import json
import multiprocessing
import shutil
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import cells
from cells import Cell, Facts
from fedspa_facts import facts
from fedspa_studies import recipe

from gossamer import Task, simulate
from gossamer.data import load
from gossamer.errors import ConfigError
from gossamer.random import key
from gossamer.tasks import deal


def task(cell: Cell, data_dir: Path) -> Task:
    """What a cell trains on; ``ConfigError`` says which file is missing."""
    data = load(cell.data, data_dir=data_dir, clients=cell.clients, key=key(cell.seed))
    split = deal(data, cell.split, cell.clients, cell.seed)
    return Task(lambda: cells.network(cell.model, data.shape, data.classes), data, split)


def outcome(cell: Cell, mine: Task) -> Facts:
    """Run a cell, or what is left of it."""
    told = {"rounds": cell.rounds, "per_round": cell.per_round, "seed": cell.seed, "eval_every": cell.eval_every}
    options = {**told, **cells.how(mine.model()), **({"executor": cell.executor} if cell.executor else {})}
    result = simulate(recipe(cell), mine, out=cell.folder, resume=cell.folder.exists(), **options)
    return {**cell._asdict(), **facts(cell, mine, result)}


def keep(cell: Cell, data_dir: Path, until: float) -> str:
    """Run a cell unless it is there already, time is up or its data is not here; keep it, and say what came of it."""
    if not cell.path.exists():
        if time.time() > until:
            return f"{cell.name}: not begun"
        try:
            mine = task(cell, data_dir)
        except ConfigError as error:
            return f"{cell.name}: left out, {str(error).splitlines()[0]}"
        cell.path.write_text(json.dumps(outcome(cell, mine)) + "\n")
        shutil.rmtree(cell.folder)
    found = cells.read(cell)
    return f"{cell.name}: best {found['best']:.2f}, last {found['last']:.2f}"


def run(mine: Sequence[Cell], data_dir: Path, jobs: int, seconds: float) -> None:
    """Run the cells that are missing, several at once; none is begun after so many seconds."""
    cells.CELLS.mkdir(parents=True, exist_ok=True)
    until = time.time() + seconds
    with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn")) as pool:
        for job in [pool.submit(keep, cell, data_dir, until) for cell in mine]:
            print(job.result(), flush=True)
