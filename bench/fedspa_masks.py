"""Measure personal masks: the search for a client's next mask relative to its training, and aggregation on the server.

    python bench/fedspa_masks.py [--models lenet5 vgg11 resnet18-gn] [--device cuda] [--executor captured] [--clients 9]

A client has the size of one in FedSpa's paper (https://arxiv.org/abs/2201.11380), with random images: 5 epochs in
batches of 128, density 0.5, in the first round, whose search moves half of the mask. The search is the whole of
``BoundPersonalMask.revise``: a dense gradient on one batch, removal and regrowth of entries, and encoding of the
change. It should take at most a tenth of the training time. A captured executor computes the gradient right after the
steps. There the search is the difference to training with masks that do not move, plus ``revise``. On a GPU the masks
are compared with those that the CPU finds for the same weights and gradients, and the captured gradient with that of
one client alone. ``--clients`` trains several clients at once; times are then those of all of them.

On a CPU there is one thread, and its processor time counts, so that other load matters little. Training is timed on a
few steps and extrapolated, since all steps are equal; the table has their number. Training and search take turns. Times
are medians.

The second part folds 10 masked ResNet18-GN messages on the server: seconds, and the peak memory of aggregation in dense
models, with 2 messages and with 10. It must not grow with their number. ``--profile FILE`` writes where its time goes.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import gpu_profile
import stopwatch
import torch
from held import peak

from gossamer import METHODS, Task
from gossamer.core.exchange import GLOBAL, LocalTrainingInfo
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
    """Clients ready for their first round, with an executor for moving masks and one for masks that do not move.

    Args:
        client: the client
        moving: the executor of a client with moving masks
        still: the same with static masks, whose training includes no search
        client_tasks: the task of each client
        share: the share of a round's steps that a task takes
    """

    client: Client
    moving: Executor
    still: Executor
    client_tasks: list[ClientTask]
    share: float

    @classmethod
    def of(cls, model: str, device: str, executor: str, clients: int) -> "Entrant":
        setting = SETTINGS[model]
        objective = Objective(images(model, setting.samples * clients, clients), device, KEY)
        client, still = (Client(METHODS["fedspa"](mask=mask).bind(objective), objective) for mask in ("dst", "rsm"))
        server = client.method.init(objective.initial(), KEY)
        whole = len(client.exchange.solver.plan(setting.samples, KEY))
        few = setting.steps if device == "cpu" else whole
        tasks = [_task(client, server, objective, number)._replace(limit=few) for number in range(clients)]
        executors = [EXECUTORS[executor](each) for each in (client, still)]
        for each in executors:
            each.prepare(tasks[0]._replace(limit=None), clients)
        return cls(client, executors[0], executors[1], tasks, few / whole)

    def train(self, executor: Executor, jobs: list[Job]) -> list[Trained]:
        if isinstance(executor, InChunks):
            with torch.no_grad():
                return executor.group(list(zip(self.client_tasks, jobs, strict=True))).train()
        return [self.client.train(*each) for each in zip(self.client_tasks, jobs, strict=True)]

    def measure(self, clock: Callable[[Callable[[], object]], float]) -> dict[str, float]:
        """Return the milliseconds of a whole round's training, and of the search after it."""
        found, jobs = list[Trained](), [self.client.read_download(task) for task in self.client_tasks]
        training, more = clock(lambda: self.train(self.still, jobs)) / self.share, 0.0
        whole = clock(lambda: found.extend(self.train(self.moving, jobs))) / self.share
        if found[0].gradient is not None:  # computed with the steps
            more = gradient = whole - training
        else:
            gradient = clock(lambda: [info.gradient() for info in self.infos(jobs, found)])
        infos = self.infos(jobs, found)
        search = more + clock(lambda: [self.revise(job, info) for job, info in zip(jobs, infos, strict=True)])
        return {"train": training, "gradient": gradient, "search": search}

    def infos(self, jobs: list[Job], found: list[Trained]) -> list[TrainingInfo]:
        return [TrainingInfo(self.client, job, trained) for job, trained in zip(jobs, found, strict=True)]

    def revise(self, job: Job, info: LocalTrainingInfo) -> State:
        view = self.client.exchange.view_memory
        assert view is not None
        return view.revise(view.first(job.clock.client), info, job.clock, fold(job.key, "view"))[0]

    def check(self) -> str:
        """Compare masks with those that the CPU finds, and gradients with those of one client alone."""
        jobs = [self.client.read_download(task) for task in self.client_tasks]
        found, same, far = self.train(self.moving, jobs), True, 0.0
        for job, info, trained in zip(jobs, self.infos(jobs, found), found, strict=True):
            alone = TrainingInfo(self.client, job, trained._replace(gradient=None)).gradient()
            used = trained.gradient or alone
            far = max(far, *(float((used[n] - t).norm() / t.norm().clamp(min=1e-30)) for n, t in alone.items()))
            here, there = self.revise(job, info), self.revise(job, Made.of(info, used))
            same &= all(torch.equal(here["mask"][n].cpu(), there["mask"][n]) for n in there["mask"])
        return f"masks as on the CPU: {'SAME' if same else 'DIFFERENT'}; gradients differ by at most {far:.1e}"


def _task(client: Client, server: State, objective: Objective, number: int) -> ClientTask:
    clock = Clock(0, ROUNDS, number)
    data = client.exchange.make_download(server, clock, KEY, GLOBAL, None, None).data
    return ClientTask(clock, KEY, data, {}, objective.task.split.train(number))


def searches(models: list[str], device: str, executor: str, repeats: int, clients: int) -> None:
    clock, checks = clock_of(device), list[str]()
    print("| network | samples | timed steps | training | search | gradient of the search | search / training |")
    print("|" + " --- |" + " ---: |" * 6)
    for model in models:
        racer = Entrant.of(model, device, executor, clients)
        turns = [racer.measure(clock) for _ in range(WARM_UP[device] + repeats)][WARM_UP[device] :]
        times = {part: statistics.median(stage[part] for stage in turns) for part in turns[0]}
        ratios = sorted(stage["search"] / stage["train"] for stage in turns)
        ratio = statistics.median(ratios)
        parts = " | ".join(f"{times[part]:,.1f} ms" for part in ("train", "search", "gradient"))
        spread = f"{100 * ratio:.1f} % ({100 * ratios[0]:.1f} to {100 * ratios[-1]:.1f})"
        verdict = "" if ratio <= MOST else ", target MISSED"
        print(
            f"| `{model}` | {SETTINGS[model].samples} | {racer.client_tasks[0].limit} | {parts} | {spread}{verdict} |",
            flush=True,
        )
        checks += [f"{model}: {racer.check()}"] if device == "cuda" else []
    print("\n".join(["", *checks]))


# Folding.


class Made:
    """Training information of a client without training: given weights, and given or random gradients."""

    def __init__(self, weights: Params, draw: torch.Generator, slopes: Params | None = None) -> None:
        self.start, self.weights, self.carry, self.draw, self.slopes = weights, weights, State(), draw, slopes

    @classmethod
    def of(cls, info: TrainingInfo, gradient: Params) -> "Made":
        """Copy weights and gradients to the CPU."""
        weights, slopes = ({name: t.cpu() for name, t in each.items()} for each in (info.weights, gradient))
        return cls(weights, torch.Generator(), slopes)

    def loss(self) -> float:
        return 1.0

    def accuracy(self, params: Params) -> float:
        return 1.0

    def gradient(self) -> Params:
        drawn = ((name, torch.randn(t.shape, generator=self.draw).to(t)) for name, t in self.weights.items())
        return self.slopes or dict(drawn)

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


def folding(
    device: str, repeats: int, model: str = "resnet18-gn", count: int = 10, profile: Path | None = None
) -> None:
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
    if profile is not None:
        found = gpu_profile.spans(lambda: desk.fold(count), device)
        profile.write_text(gpu_profile.report(f"folding {count} messages of {model}", taken / 1e3, {}, *found) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure personal masks.")
    parser.add_argument("--models", nargs="*", choices=list(SETTINGS), default=list(SETTINGS))
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--executor", choices=("one-by-one", "captured", "captured-plain"), default="one-by-one")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--clients", type=int, default=1, help="clients that train at once (1)")
    parser.add_argument("--no-folding", action="store_true", help="skip the aggregation")
    parser.add_argument("--profile", type=Path, help="file for a profile of the aggregation")
    given: Any = parser.parse_args()
    with threads(1):
        searches(given.models, given.device, given.executor, given.repeats, given.clients)
        if not given.no_folding:
            folding(given.device, given.repeats, profile=given.profile)


if __name__ == "__main__":
    main()
