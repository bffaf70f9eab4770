"""What a round of PERM takes beside FedAvg, Per-FedAvg and pFedMe: the paper's Figure 3.

    python bench/perm_rounds.py [--settings synthetic cnn] [--device cuda] [--executor captured] [--repeats 7]

Every client takes 20 local steps on batches of 20 of its 400 samples. All 50 clients are in every round; of the CNN
there are 5 on a CPU. A step of Per-FedAvg has two gradients, one of pFedMe five. PERM has one more exchange a round:
the global model goes down, and a gradient of it comes back, on one batch (``--probe 20``) or on all samples. Lambda is
given, so that the noise of gradients is not measured; and it is so large that all weights are alike. That is the
dearest case: no visit is without weight, so that none is skipped. PERM with a gradient of one batch is to take at most
1.4 times as long as FedAvg.

Timed is a round from the first message to the new models, without evaluation. All methods take turns; times are
medians. On a CPU there is one thread, whose own time counts, so that a busy machine matters little.
"""

import argparse
import statistics
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from fedspa_masks import clock_of

from gossamer import METHODS, Method, Options, Task
from gossamer.engines.executors import threads
from gossamer.engines.ledger import Ledger
from gossamer.engines.simulate import Simulation
from gossamer.nets import build

STEPS, BATCH, SAMPLES = 20, 20, 400
ALIKE = 1e9
"""A lambda under which everybody learns from all alike, however unlike they are."""
MOST = 1.4
"""Times as long as FedAvg that PERM may take, with the gradient of one batch."""
WARM_UP = 2
"""Rounds that do not count: caches are filled, and a GPU captures."""
PERM, FULL = "perm, one batch", "perm, all samples"


class Setting(NamedTuple):
    """A network, and how many clients train it, by device."""

    model: str
    shape: tuple[int, ...]
    classes: int
    clients: dict[str, int]


SETTINGS = {
    "synthetic": Setting("logistic", (60,), 2, {"cpu": 50, "cuda": 50}),
    "cnn": Setting("cnn2", (3, 32, 32), 10, {"cpu": 5, "cuda": 50}),
}


def field() -> dict[str, Method]:
    """All methods, with as many local steps."""
    given: dict[str, Any] = {"steps": STEPS, "batch": BATCH}
    mixed = {**given, "lr": 0.01, "warmup": 0, "lambda_": ALIKE}
    return {
        "fedavg": METHODS["fedavg"](**given),
        "per-fedavg": METHODS["per-fedavg"](**given),
        "pfedme": METHODS["pfedme"](**given),
        PERM: METHODS["perm"](**mixed, probe=BATCH),
        FULL: METHODS["perm"](**mixed),
    }


def task(setting: Setting, clients: int) -> Task:
    """Random samples: how long a round takes does not depend on what they are."""
    draw = torch.Generator().manual_seed(0)
    many = clients * SAMPLES
    x = torch.randn(many, *setting.shape, generator=draw)
    y = torch.randint(setting.classes, (many,), generator=draw)
    network = lambda: build(setting.model, setting.shape, setting.classes)  # noqa: E731
    return Task.of(network, (x, y), (x[:2], y[:2]), clients=clients)


class Entrant:
    """A run that does one round after the other."""

    def __init__(self, method: Method, problem: Task, options: dict[str, Any]) -> None:
        self.run, self.cohort, self.done = Simulation(method, problem, Options(**options)), range(problem.clients), 0

    def round(self) -> None:
        """One more."""
        ledger = Ledger()
        self.run.train(self.done, self.cohort, ledger)
        assert not ledger.failures, ledger.failures[0]
        self.done += 1

    def measure(self, clock: Callable[[Callable[[], object]], float]) -> float:
        """Milliseconds of one more round; getting ready is not part of it."""
        self.run.prepare(self.done, self.cohort, Ledger())
        return clock(self.round)


def race(name: str, device: str, executor: str, repeats: int) -> None:
    setting, rounds = SETTINGS[name], WARM_UP + repeats
    options = {"rounds": rounds, "device": device, "executor": executor}
    problem, clock = task(setting, setting.clients[device]), clock_of(device)
    entrants = {name: Entrant(method, problem, options) for name, method in field().items()}
    turns = [{name: each.measure(clock) for name, each in entrants.items()} for _ in range(rounds)][WARM_UP:]
    print(f"\n{name}: `{setting.model}`, {problem.clients} clients, {device}, {executor}\n")
    print("| method | a round | times FedAvg |\n| --- | ---: | ---: |")
    for each in entrants:
        ratios = sorted(turn[each] / turn["fedavg"] for turn in turns)
        taken, ratio = (statistics.median(values) for values in ([turn[each] for turn in turns], ratios))
        verdict = "" if each != PERM else ", as asked" if ratio <= MOST else ", MORE than asked"
        print(f"| {each} | {taken:,.0f} ms | {ratio:.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f}){verdict} |")
    for entrant in entrants.values():
        entrant.run.close()


def main() -> None:
    parser = argparse.ArgumentParser(description="What a round of PERM takes.")
    parser.add_argument("--settings", nargs="*", choices=list(SETTINGS), default=list(SETTINGS))
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--executor", choices=("one-by-one", "stacked", "captured"), default="one-by-one")
    parser.add_argument("--repeats", type=int, default=7)
    given = parser.parse_args()
    with threads(1):
        for name in given.settings:
            race(name, given.device, given.executor, given.repeats)


if __name__ == "__main__":
    main()
