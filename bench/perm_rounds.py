"""Measure a round of PERM next to FedAvg, Per-FedAvg and pFedMe: the paper's Figure 3 (https://arxiv.org/abs/2310.17761).

    python bench/perm_rounds.py [--settings synthetic cnn] [--device cuda] [--executor captured] [--repeats 15]

Every client takes 20 local steps on batches of 20 of its 400 samples. All 50 clients take part in every round; the CNN
has 5 clients on a CPU. A step of Per-FedAvg has two gradients, one of pFedMe five. PERM has one more exchange per
round: clients download the global model and upload a gradient of it, on one batch (``--probe 20``) or on all samples.

Lambda is given, so that the noise of gradients is not measured. It is so large that all mixing weights are equal. This
is the most expensive case, since no client is idle. PERM with a gradient on one batch should take at most 1.4 times
as long as FedAvg. The two populations also run with their suitable setting: gradients on all samples, and a lambda that
puts all weight in a client's own half, so that an epoch has half as many rounds.

A round is timed from the first message to the new models, without evaluation. Methods take turns. Times are medians,
and ratios are those of medians. On a CPU there is one thread, and its processor time counts, so that other load matters
less.
"""

import argparse
import statistics
from collections.abc import Callable
from typing import Any

import torch
from mask_folding import clock_of

from gossamer import METHODS, Method, Options, Task
from gossamer.engines.executors import threads
from gossamer.engines.metrics import Ledger
from gossamer.engines.simulation import Simulation
from gossamer.tasks.nets import build

STEPS, BATCH, SAMPLES = 20, 20, 400
ALIKE, SUITED = 1e9, 160.0
"""Lambdas that give equal weights, and weights in a client's own population only."""
MOST = 1.4
"""Target for the time of PERM relative to FedAvg, with the gradient on one batch."""
WARM_UP = 2
"""Rounds that do not count: they fill caches, and a GPU captures."""
PERM, FULL, HALF = "perm, one batch", "perm, all samples", "perm, all samples, own half"


def field(setting: str) -> dict[str, Method]:
    """Return all methods, with the same number of local steps."""
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
    """Return the two populations."""
    return Task.named("two-populations", clients=50)


def cnn(device: str) -> Task:
    """Return random images with the shape of CIFAR-10."""
    clients, draw, shape = 5 if device == "cpu" else 50, torch.Generator().manual_seed(0), (3, 32, 32)
    x = torch.randn(clients * SAMPLES, *shape, generator=draw)
    y = torch.randint(10, (len(x),), generator=draw)
    return Task.of(lambda: build("cnn2", shape, 10), (x, y), (x[:2], y[:2]), clients=clients)


SETTINGS = {"synthetic": synthetic, "cnn": cnn}


class Entrant:
    """A run that can be measured round by round."""

    def __init__(self, method: Method, problem: Task, options: dict[str, Any]) -> None:
        self.run, self.cohort, self.done = Simulation(method, problem, Options(**options)), range(problem.clients), 0

    def round(self) -> None:
        """Run the next round."""
        ledger = Ledger()
        self.run.train(self.done, ledger)
        assert not ledger.failures, ledger.failures[0]
        self.done += 1

    def measure(self, clock: Callable[[Callable[[], object]], float]) -> float:
        """Return the milliseconds of the next round, without preparation."""
        self.run.prepare(self.done, self.cohort, Ledger())
        return clock(self.round)


def race(setting: str, device: str, executor: str, repeats: int) -> None:
    problem, clock, rounds = SETTINGS[setting](device), clock_of(device), WARM_UP + repeats
    options = {"rounds": rounds, "device": device, "executor": executor}
    entrants = {name: Entrant(method, problem, options) for name, method in field(setting).items()}
    turns = [{name: each.measure(clock) for name, each in entrants.items()} for _ in range(rounds)][WARM_UP:]
    times = {name: statistics.median(stage[name] for stage in turns) for name in entrants}
    print(f"\n{setting}: {problem.clients} clients, {device}, {executor}, {repeats} turns\n")
    print("| method | round | relative to FedAvg |\n| --- | ---: | ---: |")
    for name, taken in times.items():
        ratio = taken / times["fedavg"]
        verdict = "" if name != PERM else ", target met" if ratio <= MOST else ", target MISSED"
        print(f"| {name} | {taken:,.0f} ms | {ratio:.2f}{verdict} |")
    for entrant in entrants.values():
        entrant.run.close()


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure a round of PERM.")
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
