"""All compression methods in one table: accuracy, bits per parameter in both directions, and times.

    make reproduce WHAT=codecs REPRODUCE="--data-dir DIR --jobs 16"

Three tasks: handwritten digits with an MLP, Fashion-MNIST with a CNN, MNIST read row by row with an LSTM. A row of the
table is a line of ``ROWS``: the words after ``gossamer run``. Within a task all rows have the same network, clients,
rounds, local steps and learning rate; nothing is tuned per row. Bits are counted from the messages of all rounds. Times
are those of one client's message with one million weights, by processor time on one thread: encoding ends with its
bytes, and folding begins with them. A stored cell does not run again.
"""

import functools
import re
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import torch
from torch import nn

from gossamer import Result, Task
from reproduce.common import cells, store, tables, timing
from reproduce.common.cells import Cell, Studies
from reproduce.common.cli import Reproduction
from reproduce.common.seeds import spread
from reproduce.common.store import Facts

STUDY, SEEDS = "codecs", (0, 1, 2)
REPEATS, WARM_UP = 9, 2
BASE = "fedavg"

ROWS = (
    BASE,
    "fedavg --codec dense:float16 --down dense:float16",
    "fedavg --codec dense:bfloat16 --down dense:bfloat16",
    "fedmrn",
    "fedmrn --learn-masks",
    "fedmrn --learn-masks --block none",
    "fedmrns",
    "fedmrns --learn-masks",
    "fedmrn --down delta",
    "fedmrn --down delta:eden:2 --set down.whole.dtype=float16",
    "signsgd",
    "z-signfedavg",
    "terngrad --no-coded",
    "terngrad",
    "qsgd",
    "int8",
    "int8 --codec int4 --down int8",
    "quic-fl --bits 1",
    "quic-fl --bits 2",
    "drive",
    "eden --bits 1",
    "eden --bits 1 --set codec.other=dense:float16",
    "eden --bits 2",
    "eden --bits 4",
    "eden --bits 4 --coded --down eden:8",
    "topk",
    "topk --feedback",
    "subsample",
    "fedpm",
    "klms",
)
"""The methods of the table, each as the words after ``gossamer run``."""


class Setting(NamedTuple):
    """A task of the table.

    Args:
        title: head of its columns
        data: data set
        model: network
        split: partition
        clients: number of clients
        per_round: clients per round
        rounds: number of rounds
        samples: training samples per client; 0 partitions all samples
        lr: learning rate of SGD; FedPM trains with Adam and has its own
        epochs: local epochs
        batch: batch size
    """

    title: str
    data: str
    model: str
    split: str
    clients: int
    per_round: int
    rounds: int
    samples: int
    lr: float
    epochs: int
    batch: int


TASKS = {
    "digits": Setting("digits, MLP", "digits", "mlp", "labels:4", 50, 50, 40, 0, 0.1, 5, 16),
    "fashion": Setting("Fashion-MNIST, CNN", "fashion-mnist", "cnn2", "dirichlet:0.3", 100, 10, 40, 120, 0.05, 2, 20),
    "rows": Setting("MNIST by rows, LSTM", "mnist", "lstm-rows", "dirichlet:1", 100, 10, 40, 120, 1.0, 3, 30),
}


def cell(task: str, row: str, seed: int) -> Cell:
    """Return the run of a row on a task."""
    mine = TASKS[task]
    method, _, words = row.partition(" ")
    given = {"epochs": mine.epochs, "batch": mine.batch, **({} if method in ("fedpm", "klms") else {"lr": mine.lr})}
    return Cell(
        f"{STUDY}-{task}-{slug(row)}-{seed}", method, given, mine.data, mine.model, mine.split, seed, mine.rounds,
        mine.clients, mine.per_round, eval_every=mine.rounds, executor="stacked", samples=mine.samples, words=words,
    )  # fmt: skip


def slug(row: str) -> str:
    """Return a row as part of a name.

    >>> slug("eden --bits 4 --down eden:8")
    'eden-bits-4-down-eden-8'
    """
    return "-".join(re.findall(r"[a-z0-9.]+", row))


def study(task: str) -> Iterator[Cell]:
    """Return the runs of all rows on a task."""
    return (cell(task, row, seed) for seed in SEEDS for row in ROWS)


def more(cell: Cell, task: Task, result: Result) -> Facts:
    """Return bits per parameter of an average message, in both directions."""
    size = sum(tensor.numel() for tensor in task.model().state_dict().values())
    entries = size * sum(len(record["clients"]) for record in result.metrics)
    bits = {way: 8 * sum(sum(record[way].values()) for record in result.metrics) for way in ("bytes_up", "bytes_down")}
    return {"parameters": size, "up": bits["bytes_up"] / entries, "down": bits["bytes_down"] / entries}


# Times.


def linear() -> nn.Module:
    """Return a layer of one million weights."""
    return nn.Linear(1000, 1000, bias=False)


def measure(data_dir: Path) -> None:
    """Measure the rows whose times are not stored, in turns."""
    left = [row for row in ROWS if _times(row) not in store.read(STUDY)]
    x, y = torch.randn(2, 1000, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 1])
    task = Task.of(linear, (x, y), (x, y), clients=1)
    methods = {row: cells.written(row.split()[0], {"epochs": 1}, row.partition(" ")[2]) for row in left}
    for row, turns in timing.race(methods, task, "cpu", "one-by-one", REPEATS, WARM_UP, time.process_time).items():
        medians = {part: timing.median([turn[part] for turn in turns], 2) for part in ("encode", "fold")}
        store.write(STUDY, _times(row), {**medians, "torch": torch.__version__})


def _times(row: str) -> str:
    return f"{STUDY}-times-{slug(row)}"


# The page.


def page() -> str:
    """Return the table, and what was not run."""
    absent = [] if all(_times(row) in store.read(STUDY) for row in ROWS) else ["times"]
    heads = ["`gossamer run`", *(head for mine in TASKS.values() for head in (mine.title, "bits up, down"))]
    rows = [_line(row) for row in ROWS]
    return tables.joined([tables.markdown([*heads, "encode", "fold"], rows), tables.missing(STUDIES, *absent)])


def _line(row: str) -> list[str]:
    times = store.read(STUDY).get(_times(row))
    spent = [f"{times[part]:.1f} ms" for part in ("encode", "fold")] if times else ["", ""]
    return [f"`{row}`", *(text for task in TASKS for text in _on(task, row)), *spent]


def _on(task: str, row: str) -> tuple[str, str]:
    """Return accuracy and bits of a row on a task."""
    found = cells.read_all(cell(task, row, seed) for seed in SEEDS)
    if not found:
        return "", ""
    up, down = (statistics.mean(one[way] for one in found) for way in ("up", "down"))
    return spread([one["last"] for one in found], 1), f"{up:.2f}, {down:.2f}"


STUDIES: Studies = {task: functools.partial(study, task) for task in TASKS}
REPRODUCTION = Reproduction(
    name=STUDY,
    description="Run all compression methods on three tasks.",
    studies=STUDIES,
    page=page,
    methods="fedavg, terngrad, eden, ...",
    more=more,
    measurements={"times": measure},
)
main = REPRODUCTION.main

if __name__ == "__main__":
    main()
