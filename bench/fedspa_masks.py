"""What masks of clients' own cost: the search for a client's next mask beside its training, and folding on the server.

    python bench/fedspa_masks.py [--models lenet5 vgg11 resnet18-gn] [--device cuda] [--executor captured] [--repeats 5]

A client of the size that FedSpa's paper has, with random images: 5 epochs in batches of 128, density 0.5, the first
round, whose search moves half of the mask. The search is all that `BoundPersonalMask.revise` does: a gradient of all
entries on one batch, dropping, taking up, and coding the change for the wire. It is to take at most a tenth of the
training time. On a CPU there is one thread, whose own time counts, so that a busy machine matters little; training is
timed on few steps and multiplied, as its steps are all alike; the table says how many. Training and search take turns;
times are medians.

Then a round of 10 masked ResNet18-GN messages on the server: seconds, and the most memory that folding holds at once,
in dense models, with 2 messages and with 10. It must not grow with their number.
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
"""Turns that do not count: a GPU captures odd batches when it meets them for the second time."""
MOST = 0.1
"""The share of the training time that the search may take."""


class Setting(NamedTuple):
    """A client of the paper's: its samples, and on a CPU how many steps of its training are timed."""

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
    """Random images."""
    _, shape, classes, _ = SETTINGS[model]
    draw = torch.Generator().manual_seed(0)
    x, y = torch.randn(samples, *shape, generator=draw), torch.randint(classes, (samples,), generator=draw)
    return Task.of(lambda: build(model, shape, classes), (x, y), (x[:2], y[:2]), clients=clients)


def on_one_thread(work: Callable[[], object]) -> float:
    """Milliseconds of computing, of a process with one thread."""
    before = time.process_time()
    work()
    return 1e3 * (time.process_time() - before)


def clock_of(device: str) -> Callable[[Callable[[], object]], float]:
    return stopwatch.on_gpu if device == "cuda" else on_one_thread


# Training and search.


class Entrant(NamedTuple):
    """A client ready for its first round, and how many rounds' steps it takes in one."""

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
        """Milliseconds of a whole round's training, and of the search that follows."""
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
    print("| network | samples | steps timed | training | search | of it the gradient | search of training |")
    print("|" + " --- |" + " ---: |" * 6)
    for model in models:
        racer = Entrant.of(model, device, executor)
        turns = [racer.measure(clock) for _ in range(WARM_UP[device] + repeats)][WARM_UP[device] :]
        times = {part: statistics.median(stage[part] for stage in turns) for part in turns[0]}
        ratios = sorted(stage["search"] / stage["train"] for stage in turns)
        ratio = statistics.median(ratios)
        told = " | ".join(f"{times[part]:,.1f} ms" for part in ("train", "search", "gradient"))
        spread = f"{100 * ratio:.1f} % ({100 * ratios[0]:.1f} to {100 * ratios[-1]:.1f})"
        verdict = "" if ratio <= MOST else ", MORE than asked"
        print(
            f"| `{model}` | {SETTINGS[model].samples} | {racer.client_task.limit} | {told} | {spread}{verdict} |",
            flush=True,
        )


# Folding.


class Made:
    """What a client knows that did not train: random weights and gradients."""

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
    """A server with a round's messages before it."""

    def __init__(self, model: str, many: int, device: str) -> None:
        objective = Objective(images(model, many, many), device, KEY)
        method = METHODS["fedspa"](own_init=True).bind(objective)
        self.exchange, self.state = method.training, method.init(objective.initial(), KEY)
        self.dense = 4 * objective.layout.size
        draw = torch.Generator().manual_seed(1)
        self.messages = [self._message(Clock(0, ROUNDS, c), draw) for c in range(many)]

    def _message(self, clock: Clock, draw: torch.Generator) -> tuple[Clock, bytes]:
        down = self.exchange.make_download(self.state, clock, KEY, GLOBAL, None, None)
        job = self.exchange.read_download(down.data, {}, clock, KEY)
        made = Made(job.start, draw)
        trained = Trained(job.part.take(made.gradient()), {}, 0.0, Flops(0, 0), 500)
        sent, _ = self.exchange.make_upload(job, trained, made)
        return clock, bytes(sent.data)

    def fold(self, many: int) -> None:
        """What the server does with so many messages, from their bytes to the new model."""
        server = self.exchange.server
        acc = server.begin(self.state, {clock.client: GLOBAL for clock, _ in self.messages[:many]})
        for clock, data in self.messages[:many]:
            arrival, _ = self.exchange.read_upload(data, self.state, clock, KEY, GLOBAL, None)
            acc = server.fold(acc, arrival)
        server.finish(self.state, acc, Clock(0, ROUNDS, -1))


def folding(device: str, repeats: int, model: str = "resnet18-gn", many: int = 10) -> None:
    desk = Desk(model, many, device)
    clock = clock_of(device)
    desk.fold(1)
    taken = statistics.median(clock(lambda: desk.fold(many)) for _ in range(repeats))
    held = {few: peak(lambda: desk.fold(few), device) for few in (1, 2, many)}  # noqa: B023
    size = statistics.mean(len(data) for _, data in desk.messages)
    print(f"\na dense `{model}`: {desk.dense / 2**20:.1f} MiB; a message: {size / 2**20:.1f} MiB")
    print(f"folding {many} messages: {taken:,.0f} ms, {taken / many:,.0f} ms each")
    for few, most in held.items():
        print(f"most memory at once, {few} messages: {most / 2**20:.1f} MiB, {most / desk.dense:.2f} dense models")
    kept = held[many] <= 1.01 * held[2]
    print("memory does not grow with messages, as asked" if kept else "memory GROWS with messages")


def main() -> None:
    parser = argparse.ArgumentParser(description="What masks of clients' own cost.")
    parser.add_argument("--models", nargs="*", choices=list(SETTINGS), default=list(SETTINGS))
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--executor", choices=("one-by-one", "captured", "captured-plain"), default="one-by-one")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--no-folding", action="store_true", help="leave the server out")
    given: Any = parser.parse_args()
    with threads(1):
        searches(given.models, given.device, given.executor, given.repeats)
        if not given.no_folding:
            folding(given.device, given.repeats)


if __name__ == "__main__":
    main()
