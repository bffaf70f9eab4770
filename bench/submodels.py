"""Measure the savings of narrower clients by width: memory and time of a training step, and time of a round.

    python bench/submodels.py [--device cuda] [--executor captured] [--repeats 7]

ResNet18 on random images of CIFAR-10's shape, batches of 10, SGD with momentum and clipping; one thread on a CPU.

The first part is a step at each width relative to the full one: memory as ``gossamer.tasks.memory`` computes it, memory
as measured, and milliseconds. Measured memory is PyTorch's peak from reading the download to the end of training. At
width 1/16 the targets on a CPU are at most 12 % of the memory and a fifth of the time.

The second part is a round of five clients, one per width: as narrow networks, and with the same channels as masks on
the whole network. Narrow networks should be at least twice as fast on a CPU. Everything takes turns; times are medians.
"""

import argparse
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, NamedTuple

import stopwatch
import torch
from held import peak

from gossamer import SGD, Dense, Mean, Method, Options, Task, compose
from gossamer.core.exchange import GLOBAL, Context
from gossamer.core.jobs import Job
from gossamer.core.random import Key, key
from gossamer.core.types import Clock, Params, Part, State
from gossamer.engines.client import Client, ClientTask
from gossamer.engines.executors import EXECUTORS, Executor, threads
from gossamer.engines.executors.stacked import InChunks
from gossamer.engines.metrics import Ledger
from gossamer.engines.simulation import Simulation
from gossamer.fleet.capacity import SHARES
from gossamer.parts.views import View, WidthSlice
from gossamer.tasks.nets import build
from gossamer.tasks.objective import Objective

KEY, CLOCK = key(0), Clock(0, 1, 0)
SHAPE, BATCH = torch.Size([3, 32, 32]), 10
STEPS = {"cpu": 2, "cuda": 50}
"""Local steps of a round; fewer than four would not be captured."""
MEMORY, TIME, ROUND = 0.12, 0.2, 2.0
"""Targets on a CPU: shares of memory and time at width 1/16, and the speed-up of a round."""


@dataclass(frozen=True)
class Masked(View):
    """The channels of a width slice as a mask on the whole network."""

    channels: WidthSlice

    def bind(self, context: Context) -> "Masked":
        return Masked(self.channels.bind(context))

    def part(self, like: Params, clock: Clock, key: Key, memory: State | None = None) -> Part:
        narrow = self.channels.part(like, clock, key)
        return Part() if narrow.whole else Part(keep=narrow.coverage(like))


def method(view: Any, device: str) -> Method:
    solver = SGD(0.01, steps=STEPS[device], batch=BATCH, momentum=0.9, weight_decay=5e-4, clip=1.0)
    return compose(view, solver, Dense(), Mean("uniform", over="holders"))


def task(clients: int, device: str) -> Task:
    draw = torch.Generator().manual_seed(0)
    samples = clients * BATCH * STEPS[device]
    x, y = torch.randn(samples, *SHAPE, generator=draw), torch.randint(10, (samples,), generator=draw)
    return Task.of(lambda: build("resnet18", SHAPE, 10), (x, y), (x[:2], y[:2]), clients=clients)


# A step at each width.


class Entrant(NamedTuple):
    """A client of one width, ready to be measured."""

    client: Client
    executor: Executor
    client_task: ClientTask

    @classmethod
    def of(cls, share: float, device: str, executor: str) -> "Entrant":
        objective = Objective(task(1, device), device, KEY)
        made = method(WidthSlice((share,)), device).bind(objective)
        client, state = Client(made, objective), made.init(objective.initial(), KEY)
        data = made.training.make_download(state, CLOCK, KEY, GLOBAL, None, None).data
        client_task = ClientTask(CLOCK, KEY, data, {}, objective.task.split.train(0))
        runs = EXECUTORS[executor](client)
        runs.prepare(client_task, 1)
        return cls(client, runs, client_task)

    def train(self, job: Job) -> None:
        if isinstance(self.executor, InChunks):
            with torch.no_grad():
                self.executor.group([(self.client_task, job)]).train()
        else:
            self.client.train(self.client_task, job)

    def estimate(self) -> int:
        """Return the bytes that ``gossamer.tasks.memory`` computes."""
        return self.client.objective.memory(
            self.client.read_download(self.client_task).start, self.client.exchange.solver
        )

    def memory(self, device: str) -> int:
        """Return the peak of allocated bytes."""
        return peak(lambda: self.client.train(self.client_task, self.client.read_download(self.client_task)), device)

    def step(self, device: str) -> float:
        """Return the milliseconds of one step."""
        job = self.client.read_download(self.client_task)
        return _clock(device)(lambda: self.train(job)) / STEPS[device]


def steps(device: str, executor: str, repeats: int) -> None:
    field = {share: Entrant.of(share, device, executor) for share in SHARES}
    turns = [{share: each.step(device) for share, each in field.items()} for _ in range(1 + repeats)][1:]
    sizes = {share: (each.estimate(), each.memory(device)) for share, each in field.items()}
    times = {share: statistics.median(stage[share] for stage in turns) for share in SHARES}
    print("| width | computed memory | of full | measured memory | of full | step | of full |\n|" + " ---: |" * 7)
    for share in SHARES:
        pairs = [(size / 2**20, size / full, "MiB") for size, full in zip(sizes[share], sizes[1.0], strict=True)]
        pairs.append((times[share], times[share] / times[1.0], "ms"))
        values = " | ".join(f"{value:.1f} {unit} | {100 * ratio:.1f} %" for value, ratio, unit in pairs)
        print(f"| {Fraction(share)} | {values} |")
    least = min(SHARES)
    shares = [size / full for size, full in zip(sizes[least], sizes[1.0], strict=True)]
    _report("computed memory", shares[0], shares[0] <= MEMORY, device)
    _report("measured memory", shares[1], shares[1] <= MEMORY, device)
    _report("step", times[least] / times[1.0], times[least] / times[1.0] <= TIME, device)


# A round.


def rounds(device: str, executor: str, repeats: int) -> None:
    clients, channels = range(len(SHARES)), WidthSlice(SHARES)
    views = {"narrow networks": channels, "masks on the whole network": Masked(channels)}
    options: dict[str, Any] = {"rounds": 1 + repeats, "device": device, "executor": executor}
    field = {name: _simulation(view, device, options) for name, view in views.items()}
    clock = _clock(device)
    taken: dict[str, list[float]] = {name: [] for name in field}
    for number in range(1 + repeats):
        for name, run in field.items():
            run.prepare(number, clients, Ledger())
            taken[name].append(clock(lambda: run.train(number, Ledger())))  # noqa: B023
            if number == 0:
                print(f"{name}: first round {taken[name][0]:.0f} ms, bytes sent: {_bytes(run):,}")
    narrow, masked = (statistics.median(each[1:]) for each in taken.values())
    ratios = sorted(m / n for n, m in list(zip(*taken.values(), strict=True))[1:])
    print(f"round: {narrow:.0f} ms narrow, {masked:.0f} ms masked; ratio {ratios[0]:.2f} to {ratios[-1]:.2f}")
    _report("speed-up of a round", masked / narrow, masked / narrow >= ROUND, device)


def _simulation(view: Any, device: str, options: dict[str, Any]) -> Simulation:
    return Simulation(method(view, device), task(len(SHARES), device), Options(**options))


def _bytes(run: Simulation) -> int:
    """Return the bytes that the clients of a round send."""
    ledger = Ledger()
    run.train(0, ledger)
    return sum(ledger.up.values())


def _clock(device: str) -> Callable[[Callable[[], object]], float]:
    return stopwatch.on_gpu if device == "cuda" else stopwatch.on_cpu


def _report(what: str, found: float, met: bool, device: str) -> None:
    verdict = ("target met" if met else "target MISSED") if device == "cpu" else "no target on this device"
    print(f"{what}: {found:.3f}, {verdict}")


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure the savings of narrower clients.")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--executor", choices=("one-by-one", "captured", "captured-plain"), default="one-by-one")
    parser.add_argument("--repeats", type=int, default=7)
    given = parser.parse_args()
    with threads(1):
        steps(given.device, given.executor, given.repeats)
        rounds(given.device, given.executor, given.repeats)


if __name__ == "__main__":
    main()
