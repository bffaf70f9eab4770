"""Measure personal masks: the search for a client's next mask relative to its training, and aggregation on the server.

    python bench/fedspa_masks.py [--models lenet5 vgg11 resnet18-gn] [--device cuda] [--executor captured] [--clients 9]

A client has the size of one in FedSpa's paper (https://arxiv.org/abs/2201.11380), with random images: 5 epochs in
batches of 128, density 0.5, in the first round, whose search moves half of the mask. The search is the whole of
``PersonalMask.revise``: a dense gradient on one batch, removal and regrowth of entries, and encoding of the
change. It should take at most a tenth of the training time. A captured executor computes the gradient right after the
steps. There the search is the difference to training with masks that do not move, plus ``revise``. On a GPU the masks
are compared with those that the CPU finds for the same weights and gradients, and the captured gradient with that of
one client alone. ``--clients`` trains several clients at once; times are then those of all of them.

On a CPU there is one thread, and its processor time counts, so that other load matters little. Training is timed on a
few steps and extrapolated, since all steps are equal; the table has their number. Training and search take turns. Times
are medians.

The second part folds 10 masked ResNet18-GN messages on the server (``mask_folding.py``). ``--folding-only`` does that
alone, in less than a minute; ``--profile FILE`` writes where its time goes.
"""

import argparse
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from mask_folding import KEY, ROUNDS, SETTINGS, Made, clock_of, folding, images
from mask_folding import Setting as Setting

from gossamer import METHODS
from gossamer.core.exchange import GLOBAL, LocalTrainingInfo
from gossamer.core.jobs import Job, Trained
from gossamer.core.random import fold
from gossamer.core.types import Clock, State
from gossamer.engines.client import Client, ClientTask, TrainingInfo
from gossamer.engines.executors import EXECUTORS, Executor, threads
from gossamer.engines.executors.stacked import InChunks
from gossamer.tasks.objective import Objective

BATCH, EPOCHS = 128, 5
WARM_UP = {"cpu": 1, "cuda": 2}
"""Turns that do not count: a GPU captures the last, smaller batch when it occurs for the second time."""
MOST = 0.1
"""Target for the share of the search in the training time."""


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
        view = self.client.exchange.view
        return view.revise(view.first(job.clock.client), info, job.clock, fold(job.key, "view"))[0]

    def check(self) -> str:
        """Compare masks with those that the CPU finds, and gradients with those of one client alone."""
        jobs = [self.client.read_download(task) for task in self.client_tasks]
        found, same, far = self.train(self.moving, jobs), True, 0.0
        for job, info, trained in zip(jobs, self.infos(jobs, found), found, strict=True):
            alone = TrainingInfo(self.client, job, trained._replace(gradient=None)).gradient()
            used = trained.gradient or alone
            far = max(far, *(float((used[n] - t).norm() / t.norm().clamp(min=1e-30)) for n, t in alone.items()))
            here, there = self.revise(job, info), self.revise(job, Made.copied(info.weights, used))
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


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure personal masks.")
    parser.add_argument("--models", nargs="*", choices=list(SETTINGS), default=list(SETTINGS))
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--executor", choices=("one-by-one", "captured", "captured-plain"), default="one-by-one")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--clients", type=int, default=1, help="clients that train at once (1)")
    parts = parser.add_mutually_exclusive_group()
    parts.add_argument("--no-folding", action="store_true", help="skip the aggregation")
    parts.add_argument("--folding-only", action="store_true", help="skip training and search")
    parser.add_argument("--profile", type=Path, help="file for a profile of the aggregation")
    given: Any = parser.parse_args()
    with threads(1):
        if not given.folding_only:
            searches(given.models, given.device, given.executor, given.repeats, given.clients)
        if not given.no_folding:
            folding(given.device, given.repeats, profile=given.profile)


if __name__ == "__main__":
    main()
