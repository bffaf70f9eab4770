"""Peak memory of a client's training step by method, as stated and as measured, for one transformer.

    python bench/memory.py
    python bench/memory.py --device cuda --layers 12 --width 768 --heads 12 --length 512 --classes 50257 --batch 8

Stated is ``Objective.memory``, which says how much of a model fits a device. It is computed on the CPU, whatever the
device. Measured is the peak of the second step of a client: the tensors that it holds, the solver's state and the
batch, which exist before the step, and what the step allocates: according to PyTorch's allocator on a GPU, and storage
by storage on a CPU (``gossamer.tasks.operations``). Sequences are random; the memory does not depend on them. Stored
samples and code are not counted.
"""

import argparse
import gc
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any
from unittest.mock import patch

import torch
from held import peak

from gossamer import Adam, LoRA, Method, Options, Task, compose, decomfl
from gossamer.core import tree
from gossamer.engines.local_step import LocalStep
from gossamer.engines.simulation import Simulation
from gossamer.parts.solvers.sgd import SGD
from gossamer.parts.views.entries import Full
from gossamer.tasks.nets.text import GPTSize
from gossamer.tasks.operations import Allocations

STEPS = 2
HEADS = ("method", "trained parameters", "stated", "measured", "measured / stated", "of the first row")


@dataclass(frozen=True)
class Row:
    """A row of the table.

    Args:
        name: what is trained, and how
        make: the method, given the batch size
        options: options of the run
        adapted: whether adapters are trained instead of all weights
    """

    name: str
    make: Callable[[int], Method]
    options: dict[str, Any]
    adapted: bool = False

    def method(self, batch: int, rank: int) -> Method:
        """Return the method."""
        return replace(self.make(batch), adapter=LoRA(rank=rank) if self.adapted else None)


def sgd(batch: int) -> Method:
    return compose(Full(), SGD(steps=STEPS, batch=batch))


def adam(batch: int) -> Method:
    return compose(Full(), Adam(steps=STEPS, batch=batch))


def seeds(steps: int, batch: int) -> Method:
    return decomfl(steps=steps, perturbations=2, batch=batch)


WAYS: dict[str, dict[str, Any]] = {
    "": {},
    ", bf16": {"precision": "bf16"},
    ", checkpointing": {"checkpointing": True},
    ", bf16, checkpointing": {"precision": "bf16", "checkpointing": True},
}
ROWS = [
    Row(f"{what}, {make.__name__}{way}", make, options, adapted)
    for what, adapted in (("all weights", False), ("LoRA", True))
    for make in (sgd, adam)
    for way, options in WAYS.items()
]
ROWS += [
    Row(f"{what}, losses only, {steps} steps{way}", partial(seeds, steps), options, adapted)
    for what, adapted in (("all weights", False), ("LoRA", True))
    for steps in (STEPS, 1)
    for way, options in list(WAYS.items())[:2]
]


class Watched:
    """The local step of clients, with its memory measured."""

    def __init__(self, simulation: Simulation) -> None:
        self.simulation, self.step = simulation, LocalStep.eager
        self.peaks: list[int] = []

    def __call__(self, local: Any, start: Any, carry: Any, context: Any, x: Any, y: Any, hyperparams: Any) -> Any:
        """Run one step."""
        found, objective = [], self.simulation.objective
        held = tree.flatten({"start": start, "carry": carry, "context": context}).values()
        counted = Allocations([*held, *objective.kept(), x, y])

        def work() -> None:
            found.append(self.step(local, start, carry, context, x, y, hyperparams))

        if objective.device.type == "cuda":
            self.peaks.append(counted.peak + peak(work, "cuda"))
        else:
            with counted:
                work()
            self.peaks.append(counted.peak)
        return found[0]


def task_of(given: argparse.Namespace) -> Task:
    """Return random sequences for a transformer: one client, with the samples of one batch per step."""
    draw = torch.Generator().manual_seed(0)
    rows = torch.randint(given.classes, (STEPS * given.batch, given.length + 1), generator=draw)
    net, shape = GPTSize(given.layers, given.width, given.heads), torch.Size((given.length,))
    data = rows[:, :-1].clone(), rows[:, 1:].clone()
    return Task.of(lambda: net.build(shape, given.classes), data, data, clients=1, loss="cross_entropy")


def measure(row: Row, given: argparse.Namespace) -> tuple[int, int, int]:
    """Return the number of trained parameters, and the bytes of a step as stated and as measured."""
    options = Options(rounds=1, device=given.device, **row.options)
    simulation = Simulation(row.method(given.batch, given.rank), task_of(given), options)
    stated = simulation.objective.memory(simulation.like, simulation.client.exchange.solver)
    watched = Watched(simulation)
    with patch.object(LocalStep, "eager", lambda *given: watched(*given)):
        record = simulation.round(0, None)
    if record["failures"]:
        raise SystemExit(f"{row.name}: {record['failures'][0]['reason']}")
    return simulation.objective.layout.size, stated, watched.peaks[-1]


def line(row: Row, found: tuple[int, int, int], first: int) -> str:
    """Return a row of the table."""
    trained, stated, measured = found
    cells = [row.name, f"{trained:,}", f"{stated / 1e6:,.1f} MB", f"{measured / 1e6:,.1f} MB"]
    return "| " + " | ".join([*cells, f"{measured / stated:.2f}", f"{100 * measured / first:.1f} %"]) + " |"


def arguments(words: list[str] | None = None) -> argparse.Namespace:
    made = argparse.ArgumentParser(description="Peak memory of a client's training step, by method.")
    for name, default in {"layers": 6, "width": 128, "heads": 4, "length": 64, "classes": 65, "batch": 8}.items():
        made.add_argument(f"--{name}", type=int, default=default)
    made.add_argument("--rank", type=int, default=8, help="rank of the adapters")
    made.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    made.add_argument("--only", default="", help="rows whose name contains this text; the first row is always there")
    return made.parse_args(words)


def main(words: list[str] | None = None) -> None:
    given, first = arguments(words), 0
    print("| " + " | ".join(HEADS) + " |\n|---|" + "---:|" * (len(HEADS) - 1))
    for row in ROWS:
        if row is not ROWS[0] and given.only not in row.name:
            continue
        found = measure(row, given)
        first = first or found[2]
        print(line(row, found, first), flush=True)
        gc.collect()


if __name__ == "__main__":
    main()
