"""What a round of PERM takes beside FedAvg, Per-FedAvg and pFedMe: the paper's Figure 3.

    python bench/perm_rounds.py [--settings synthetic cnn] [--device cuda] [--executor captured] [--repeats 15]

Every client takes 20 local steps on batches of 20 of its 400 samples. All 50 clients are in every round; of the CNN
there are 5 on a CPU. A step of Per-FedAvg has two gradients, one of pFedMe five. PERM has one more exchange a round:
the global model goes down, and a gradient of it comes back, on one batch (``--probe 20``) or on all samples. Lambda is
given, so that the noise of gradients is not measured. It is so large that all weights are alike: that is the dearest
case, as no visit is without weight and skipped. PERM with a gradient of one batch is to take at most 1.4 times as long
as FedAvg. On the two populations there is also what suits them, the gradient on all samples and a lambda under which
clients learn from their own half alone: the other visits are skipped.

Timed is a round from the first message to the new models, without evaluation. All methods take turns; times are
medians, ratios those of medians. On a CPU there is one thread, whose own time counts, so that a busy machine matters
less.
"""

import argparse
import statistics
from collections.abc import Callable
from typing import Any

import torch
from fedspa_masks import clock_of

from gossamer import METHODS, Method, Options, Task
from gossamer.engines.executors import threads
from gossamer.engines.metrics import Ledger
from gossamer.engines.simulate import Simulation
from gossamer.tasks.nets import build

STEPS, BATCH, SAMPLES = 20, 20, 400
ALIKE, SUITED = 1e9, 160.0
"""Lambdas under which everybody learns from all alike, and from its own population alone."""
MOST = 1.4
"""Times as long as FedAvg that PERM may take, with the gradient of one batch."""
WARM_UP = 2
"""Rounds that do not count: caches are filled, and a GPU captures."""
PERM, FULL, HALF = "perm, one batch", "perm, all samples", "perm, all samples, own half"


def field(setting: str) -> dict[str, Method]:
    """All methods, with as many local steps."""
    given: dict[str, Any] = {"steps": STEPS, "batch": BATCH}
    mixed = {**given, "lr": 0.01, "warmup": 0}
    methods = {
        "fedavg": METHODS["fedavg"](**given),
        "per-fedavg": METHODS["per-fedavg"](**given),
        "pfedme": METHODS["pfedme"](**given),
        PERM: METHODS["perm"](**mixed, probe=BATCH, lambda_=ALIKE),
        FULL: METHODS["perm"](**mixed, lambda_=ALIKE),
    }
    if setting == "synthetic":
        methods[HALF] = METHODS["perm"](**mixed, lambda_=SUITED)
    return methods


def synthetic(device: str) -> Task:
    """The two populations."""
    return Task.named("two-populations", clients=50)


def cnn(device: str) -> Task:
    """Random images of CIFAR-10's shape."""
    clients, draw, shape = 5 if device == "cpu" else 50, torch.Generator().manual_seed(0), (3, 32, 32)
    x = torch.randn(clients * SAMPLES, *shape, generator=draw)
    y = torch.randint(10, (len(x),), generator=draw)
    return Task.of(lambda: build("cnn2", shape, 10), (x, y), (x[:2], y[:2]), clients=clients)


SETTINGS = {"synthetic": synthetic, "cnn": cnn}


class Entrant:
    """A run that does one round after the other."""

    def __init__(self, method: Method, problem: Task, options: dict[str, Any]) -> None:
        self.run, self.cohort, self.done = Simulation(method, problem, Options(**options)), range(problem.clients), 0

    def round(self) -> None:
        """One more."""
        ledger = Ledger()
        self.run.train(self.done, ledger)
        assert not ledger.failures, ledger.failures[0]
        self.done += 1

    def measure(self, clock: Callable[[Callable[[], object]], float]) -> float:
        """Milliseconds of one more round; getting ready is not part of it."""
        self.run.prepare(self.done, self.cohort, Ledger())
        return clock(self.round)


def race(setting: str, device: str, executor: str, repeats: int) -> None:
    problem, clock, rounds = SETTINGS[setting](device), clock_of(device), WARM_UP + repeats
    options = {"rounds": rounds, "device": device, "executor": executor}
    entrants = {name: Entrant(method, problem, options) for name, method in field(setting).items()}
    turns = [{name: each.measure(clock) for name, each in entrants.items()} for _ in range(rounds)][WARM_UP:]
    times = {name: statistics.median(stage[name] for stage in turns) for name in entrants}
    print(f"\n{setting}: {problem.clients} clients, {device}, {executor}, {repeats} turns\n")
    print("| method | a round | times FedAvg |\n| --- | ---: | ---: |")
    for name, taken in times.items():
        ratio = taken / times["fedavg"]
        verdict = "" if name != PERM else ", as asked" if ratio <= MOST else ", MORE than asked"
        print(f"| {name} | {taken:,.0f} ms | {ratio:.2f}{verdict} |")
    for entrant in entrants.values():
        entrant.run.close()


def main() -> None:
    parser = argparse.ArgumentParser(description="What a round of PERM takes.")
    parser.add_argument("--settings", nargs="*", choices=list(SETTINGS), default=list(SETTINGS))
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--executor", choices=("one-by-one", "stacked", "captured"), default="one-by-one")
    parser.add_argument("--repeats", type=int, default=15)
    given = parser.parse_args()
    with threads(1):
        for name in given.settings:
            race(name, given.device, given.executor, given.repeats)


if __name__ == "__main__":
    main()
