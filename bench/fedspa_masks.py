"""Measure personal masks: the search for a client's next mask relative to its training, and aggregation on the server.

    python bench/fedspa_masks.py [--models lenet5 vgg11 resnet18-gn] [--device cuda] [--executor captured] [--repeats 5]

A client has the size of one in FedSpa's paper (https://arxiv.org/abs/2201.11380), with random images: 5 epochs in
batches of 128, density 0.5, in the first round, whose search moves half of the mask. The search is the whole of
``BoundPersonalMask.revise``: a dense gradient on one batch, removal and regrowth of entries, and encoding of the
change. It should take at most a tenth of the training time.

On a CPU there is one thread, and its processor time counts, so that other load matters little. Training is timed on a
few steps and extrapolated, since all steps are equal; the table has their number. Training and search take turns. Times
are medians.

The second part folds 10 masked ResNet18-GN messages on the server: seconds, and the peak memory of aggregation in dense
models, with 2 messages and with 10. It must not grow with their number.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import stopwatch
import torch
from held import peak

from gossamer import METHODS, Task
from gossamer.core.exchange import GLOBAL
from gossamer.core.jobs import Job, Trained
from gossamer.core.random import fold, key
from gossamer.core.types import Clock, Flops, Params, State
from gossamer.engines.client import Client, ClientTask, TrainingInfo
from gossamer.engines.executors import EXECUTORS, Executor, threads
from gossamer.engines.executors.stacked import InChunks
from gossamer.tasks.nets import build
from gossamer.tasks.objective import Objective

KEY, ROUNDS = key(0), 1000
BATCH, EPOCHS = 128, 5
WARM_UP = {"cpu": 1, "cuda": 2}
"""Turns that do not count: a GPU captures the last, smaller batch when it occurs for the second time."""
MOST = 0.1
"""Target for the share of the search in the training time."""


class Setting(NamedTuple):
    """A client of the paper: samples, their shape, classes, and the number of timed steps on a CPU."""

    samples: int
    shape: tuple[int, ...]
    classes: int
    steps: int


SETTINGS = {
    "lenet5": Setting(1248, (1, 28, 28), 26, 50),
    "vgg11": Setting(500, (3, 32, 32), 10, 4),
    "resnet18-gn": Setting(500, (3, 32, 32), 100, 2),
}


def images(model: str, samples: int, clients: int = 1) -> Task:
    """Return random images."""
    _, shape, classes, _ = SETTINGS[model]
    draw = torch.Generator().manual_seed(0)
    x, y = torch.randn(samples, *shape, generator=draw), torch.randint(classes, (samples,), generator=draw)
    return Task.of(lambda: build(model, shape, classes), (x, y), (x[:2], y[:2]), clients=clients)


def on_one_thread(work: Callable[[], object]) -> float:
    """Return the processor milliseconds of ``work`` on one thread."""
    before = time.process_time()
    work()
    return 1e3 * (time.process_time() - before)


def clock_of(device: str) -> Callable[[Callable[[], object]], float]:
    return stopwatch.on_gpu if device == "cuda" else on_one_thread


# Training and search.


class Entrant(NamedTuple):
    """A client ready for its first round, and the share of a round's steps that it takes."""

    client: Client
    executor: Executor
    client_task: ClientTask
    share: float

    @classmethod
    def of(cls, model: str, device: str, executor: str) -> "Entrant":
        setting = SETTINGS[model]
        objective = Objective(images(model, setting.samples), device, KEY)
        client, clock = Client(METHODS["fedspa"]().bind(objective), objective), Clock(0, ROUNDS, 0)
        server = client.method.init(objective.initial(), KEY)
        data = client.exchange.make_download(server, clock, KEY, GLOBAL, None, None).data
        client_task = ClientTask(clock, KEY, data, {}, objective.task.split.train(0))
        whole = len(client.exchange.solver.plan(setting.samples, KEY))
        few = setting.steps if device == "cpu" else whole
        runs = EXECUTORS[executor](client)
        runs.prepare(client_task, 1)
        return cls(client, runs, client_task._replace(limit=few), few / whole)

    def train(self, job: Job) -> Trained:
        if isinstance(self.executor, InChunks):
            with torch.no_grad():
                return self.executor.group([(self.client_task, job)]).train()[0]
        return self.client.train(self.client_task, job)

    def measure(self, clock: Callable[[Callable[[], object]], float]) -> dict[str, float]:
        """Return the milliseconds of a whole round's training, and of the search after it."""
        view, found = self.client.exchange.view_memory, list[Trained]()
        assert view is not None
        job = self.client.read_download(self.client_task)
        training = clock(lambda: found.append(self.train(job))) / self.share
        info, hyperparams = TrainingInfo(self.client, job, found[0]), view.first(0)
        gradient = clock(lambda: TrainingInfo(self.client, job, found[0]).gradient())
        search = clock(lambda: view.revise(hyperparams, info, job.clock, fold(job.key, "view")))
        return {"train": training, "gradient": gradient, "search": search}


def searches(models: list[str], device: str, executor: str, repeats: int) -> None:
    clock = clock_of(device)
    print("| network | samples | timed steps | training | search | gradient of the search | search / training |")
    print("|" + " --- |" + " ---: |" * 6)
    for model in models:
        racer = Entrant.of(model, device, executor)
        turns = [racer.measure(clock) for _ in range(WARM_UP[device] + repeats)][WARM_UP[device] :]
        times = {part: statistics.median(stage[part] for stage in turns) for part in turns[0]}
        ratios = sorted(stage["search"] / stage["train"] for stage in turns)
        ratio = statistics.median(ratios)
        parts = " | ".join(f"{times[part]:,.1f} ms" for part in ("train", "search", "gradient"))
        spread = f"{100 * ratio:.1f} % ({100 * ratios[0]:.1f} to {100 * ratios[-1]:.1f})"
        verdict = "" if ratio <= MOST else ", target MISSED"
        print(
            f"| `{model}` | {SETTINGS[model].samples} | {racer.client_task.limit} | {parts} | {spread}{verdict} |",
            flush=True,
        )


# Folding.


class Made:
    """Training information of a client without training: random weights and gradients."""

    def __init__(self, weights: Params, draw: torch.Generator) -> None:
        self.start, self.weights, self.carry, self.draw = weights, weights, State(), draw

    def loss(self) -> float:
        return 1.0

    def accuracy(self, params: Params) -> float:
        return 1.0

    def gradient(self) -> Params:
        return {name: torch.randn(t.shape, generator=self.draw).to(t) for name, t in self.weights.items()}

    def start_gradient(self) -> Params:
        return self.gradient()


class Desk:
    """A server with the messages of a round."""

    def __init__(self, model: str, count: int, device: str) -> None:
        objective = Objective(images(model, count, count), device, KEY)
        method = METHODS["fedspa"](own_init=True).bind(objective)
        self.exchange, self.state = method.training, method.init(objective.initial(), KEY)
        self.dense = 4 * objective.layout.size
        draw = torch.Generator().manual_seed(1)
        self.messages = [self._message(Clock(0, ROUNDS, c), draw) for c in range(count)]

    def _message(self, clock: Clock, draw: torch.Generator) -> tuple[Clock, bytes]:
        down = self.exchange.make_download(self.state, clock, KEY, GLOBAL, None, None)
        job = self.exchange.read_download(down.data, {}, clock, KEY)
        made = Made(job.start, draw)
        trained = Trained(job.part.take(made.gradient()), {}, 0.0, Flops(0, 0), 500)
        sent, _ = self.exchange.make_upload(job, trained, made)
        return clock, bytes(sent.data)

    def fold(self, count: int) -> None:
        """Aggregate the first messages, from their bytes to the new model."""
        server = self.exchange.server
        acc = server.begin(self.state, {clock.client: GLOBAL for clock, _ in self.messages[:count]})
        for clock, data in self.messages[:count]:
            arrival, _ = self.exchange.read_upload(data, self.state, clock, KEY, GLOBAL, None)
            acc = server.fold(acc, arrival)
        server.finish(self.state, acc, Clock(0, ROUNDS, -1))


def folding(device: str, repeats: int, model: str = "resnet18-gn", count: int = 10) -> None:
    desk = Desk(model, count, device)
    clock = clock_of(device)
    desk.fold(1)
    taken = statistics.median(clock(lambda: desk.fold(count)) for _ in range(repeats))
    peaks = {few: peak(lambda: desk.fold(few), device) for few in (1, 2, count)}  # noqa: B023
    size = statistics.mean(len(data) for _, data in desk.messages)
    print(f"\ndense `{model}`: {desk.dense / 2**20:.1f} MiB; message: {size / 2**20:.1f} MiB")
    print(f"folding {count} messages: {taken:,.0f} ms, {taken / count:,.0f} ms each")
    for few, most in peaks.items():
        print(f"peak memory, {few} messages: {most / 2**20:.1f} MiB, {most / desk.dense:.2f} dense models")
    met = peaks[count] <= 1.01 * peaks[2]
    print("memory does not grow with messages: target met" if met else "memory GROWS with messages: target MISSED")


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure personal masks.")
    parser.add_argument("--models", nargs="*", choices=list(SETTINGS), default=list(SETTINGS))
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--executor", choices=("one-by-one", "captured", "captured-plain"), default="one-by-one")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--no-folding", action="store_true", help="skip the aggregation")
    given: Any = parser.parse_args()
    with threads(1):
        searches(given.models, given.device, given.executor, given.repeats)
        if not given.no_folding:
            folding(given.device, given.repeats)


if __name__ == "__main__":
    main()
