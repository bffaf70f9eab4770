"""Compare a local step with its convolutions and matrix products alone, which no other code of a step can beat.

    python bench/speed/step_floor.py                      W1 and W2: plain loop, one-by-one, compiled, and the floors
    python bench/speed/step_floor.py --layouts            also a step and a program with channels-last tensors

One thread; processor time, so that other processes of the machine matter little. All rows take turns, and medians are
shown. A floor is the sum of the calls of oneDNN and BLAS in a recorded step, on the tensors of the step: as they are in
the step, channels-last, and in bfloat16 if the processor has instructions for it. Images are random.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from systems.gossamer import samples
from systems.networks import network
from torch import Tensor, fx
from torch.utils._pytree import tree_map
from workloads import CLASSES, WORKLOADS, made_up

from gossamer import Options, Task, fedavg
from gossamer.core import tree
from gossamer.core.types import State
from gossamer.engines.executors import building
from gossamer.engines.executors.building import Graph, compile_graph
from gossamer.engines.executors.compiled import CompiledClient
from gossamer.engines.executors.kept import KeptPrograms
from gossamer.engines.executors.pieces import take_apart
from gossamer.engines.executors.products import add_products, separate
from gossamer.engines.executors.recording import Recording, record
from gossamer.engines.run import Stage
from gossamer.engines.simulation import Simulation
from gossamer.runs.report import text
from gossamer.tasks.data import Data, Split
from gossamer.tasks.nets import build

IMAGES = 6_000
WARM_UP = 2
ENOUGH = 50.0
"""Milliseconds of a measurement: short steps are repeated, so that they find their tensors in the cache."""
ATEN = torch.ops.aten
PRODUCTS = {
    op.default for op in (ATEN.convolution, ATEN.convolution_backward, ATEN.mm, ATEN.addmm, ATEN.bmm, ATEN.baddbmm)
}
Work = Callable[[], object]


class Step:
    """A local step of a workload, recorded, with the tensors that it needs."""

    def __init__(self, workload: str, images: int) -> None:
        work = WORKLOADS[workload]
        data = Data("bench", samples(made_up(images, 1)), samples(made_up(100, 2)), CLASSES, "iid", work.net)
        one = Split(np.arange(work.batch), np.array([0, work.batch]), np.arange(0), np.zeros(2, dtype=int))
        task = Task(lambda: build(work.net, data.shape, CLASSES), data, one)
        method = fedavg(lr=work.lr, epochs=1, batch=work.batch)
        simulation = Simulation(method, task, Options(rounds=1, per_round=1))
        stage = Stage(simulation.method.training, 0, {0: simulation.typical_assignment(0)})
        client_task, _ = simulation.client_task(stage, 0, {})
        self.client, job = CompiledClient(simulation.client), simulation.client.read_download(client_task)
        self.job, self.local = job, self.client.local_step(job)
        self.nest = {**self.client._nest(job, 1), "feed": self.client.batches(client_task).feed(0)}
        self.net, self.batch = work.net, self.client.objective.open(self.nest["feed"])

    def recording(self) -> Recording:
        with torch.no_grad():
            return take_apart(record(self.client.program(self.job).function, self.nest))

    def one_by_one(self) -> Work:
        nest: State = {**self.nest, "carry": tree.clone(self.nest["carry"])}
        x, y = self.batch
        return lambda: self.local.eager(nest["start"], nest["carry"], nest["context"], x, y, nest["hyperparams"])

    def plain(self, layout: torch.memory_format = torch.preserve_format, dtype: torch.dtype = torch.float32) -> Work:
        """Return the step of a plain loop."""
        model = network(self.net).to(dtype)
        model = model.to(memory_format=layout) if layout is torch.channels_last else model  # type: ignore[call-overload]
        x, y = self.batch
        assert isinstance(x, Tensor)
        x, optimiser = _formed(x, layout, dtype), torch.optim.SGD(model.parameters(), lr=0.05)

        def step() -> None:
            optimiser.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimiser.step()

        return step


class Calls(fx.Interpreter):
    """Collects the calls of convolutions and matrix products in a graph, and of those that are added to weights."""

    def __init__(self, recording: Recording, weights: list[int]) -> None:
        super().__init__(recording.graph)
        self.found: list[tuple[Any, Any]] = []
        with torch.no_grad():
            inputs = [example.clone() for example in recording.examples]
            _, *factors = self.run(*inputs)
        pairs = zip(weights, factors[::2], factors[1::2], strict=True)
        self.found += [(ATEN.addmm_.default, (inputs[number].view(len(a), -1), a * 1e-9, b)) for number, a, b in pairs]

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        if target in PRODUCTS:
            self.found.append((target, args))
        return super().call_function(target, args, kwargs)


def floor(calls: Calls, layout: torch.memory_format, dtype: torch.dtype = torch.float32) -> Work:
    """Return the calls alone, on tensors of a layout and type."""
    ready = [(target, tree_map(lambda arg: _formed(arg, layout, dtype), args)) for target, args in calls.found]

    def run() -> None:
        for target, args in ready:
            target(*args)

    return torch.no_grad()(run)


def _formed(value: Any, layout: torch.memory_format, dtype: torch.dtype) -> Any:
    if not isinstance(value, Tensor):
        return value
    value = value.to(dtype) if value.is_floating_point() else value
    return value.contiguous(memory_format=layout) if value.dim() == 4 and layout is torch.channels_last else value


def program(recording: Recording, weights: list[int], options: dict[str, Any]) -> Work:
    """Return a compiled step; only that with the usual options is kept."""
    usual = building.OPTIONS
    programs = KeptPrograms(Path(tempfile.mkdtemp())) if options else KeptPrograms.of_user()
    building.OPTIONS = usual | options
    try:
        graph: Graph = compile_graph(recording, programs)
    finally:
        building.OPTIONS = usual
    inputs = [example.clone() for example in recording.examples]
    return torch.no_grad()(lambda: add_products(inputs, weights, graph(inputs)))


def rows(workload: str, images: int, layouts: bool) -> dict[str, Work]:
    """Return the work of each row of the table."""
    step = Step(workload, images)
    recording, last, half = step.recording(), torch.channels_last, torch.bfloat16
    weights = separate(recording)
    calls = Calls(recording, weights)
    found = {"plain loop": step.plain(), "one-by-one": step.one_by_one(), "compiled": program(recording, weights, {})}
    if layouts:
        found["plain loop, channels-last"] = step.plain(last)
        found["compiled, channels-last"] = program(recording, weights, {"layout_optimization": True})
    found["floor"] = floor(calls, torch.preserve_format)
    found["floor, channels-last"] = floor(calls, last)
    if torch.cpu._is_avx512_bf16_supported():
        found["plain loop, bfloat16"] = step.plain(dtype=half)
        found["floor, bfloat16"] = floor(calls, torch.preserve_format, half)
    return found


def medians(found: dict[str, Work], repeats: int) -> dict[str, float]:
    """Return the median processor time of each row in milliseconds, measured in turns."""
    for work in found.values():
        milliseconds(work, WARM_UP)
    calls = {name: 1 + int(ENOUGH / milliseconds(work, 1)) for name, work in found.items()}
    taken = [{name: milliseconds(work, calls[name]) for name, work in found.items()} for _ in range(repeats)]
    return {name: statistics.median(turn[name] for turn in taken) for name in found}


def milliseconds(work: Work, calls: int) -> float:
    """Return the mean processor time of some calls."""
    begin = time.process_time()
    for _ in range(calls):
        work()
    return 1e3 * (time.process_time() - begin) / calls


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workloads", default="w1,w2", help="names, separated by commas (default: w1,w2)")
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--images", type=int, default=IMAGES, help="number of random images")
    parser.add_argument("--layouts", action="store_true", help="also steps with channels-last tensors")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    for workload in asked.workloads.split(","):
        found = medians(rows(workload, asked.images, asked.layouts), asked.repeats)
        best = min(found["floor"], found["floor, channels-last"])
        lines = [
            (name, f"{ms:.2f}", f"{found['plain loop'] / ms:.2f}x", f"{best / ms:.2f}") for name, ms in found.items()
        ]
        print(f"{workload}: {WORKLOADS[workload].describe()}")
        print(text.table((workload, "ms per step", "speed", "floor / step"), lines), flush=True)


if __name__ == "__main__":
    main()
