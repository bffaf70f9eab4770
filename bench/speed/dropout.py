"""Measure what dropout costs: W1 with and without dropout of 0.5 after each hidden layer, in turns.

    python bench/speed/dropout.py                                            the plain loop and compiled, on the CPU
    python bench/speed/dropout.py --device cuda --executors captured         on a GPU

A round has 10 clients, 5 epochs and batches of 20. The plain loop uses torch's dropout on one thread. The gain of an
executor is the seconds of the plain loop divided by its own. What counts is the part of the gain that is kept with
dropout. Images are random.
"""

import argparse
import copy
import functools
import statistics
import time
from collections.abc import Callable
from dataclasses import replace

import torch
import torch.nn.functional as F
from systems.gossamer import samples, split
from torch import nn
from workloads import CLASSES, TRAIN, WORKLOADS, Workload, made_up

from gossamer import Options, Task, fedavg
from gossamer.engines.simulation import Simulation
from gossamer.tasks.data import Data

RATE = 0.5
HIDDEN = 200
PLAIN = "plain loop"

Round = Callable[[], None]


def network(rate: float) -> nn.Module:
    """Return W1's network, with dropout after each hidden layer unless the rate is 0."""
    layers: list[nn.Module] = [nn.Flatten()]
    for wide in (28 * 28, HIDDEN):
        layers += [nn.Linear(wide, HIDDEN), nn.ReLU(), *([nn.Dropout(rate)] if rate else [])]
    return nn.Sequential(*layers, nn.Linear(HIDDEN, CLASSES))


@functools.cache
def data() -> Data:
    return Data("bench", samples(made_up(TRAIN, 1)), samples(made_up(100, 2)), CLASSES, split="iid", model="mlp")


def plain(simulation: Simulation, work: Workload, device: str) -> Round:
    """Return a round as a plain loop over clients."""
    model, at = simulation.objective.build().train(), iter(range(10**9))

    def round_() -> None:
        clients = range((begin := next(at) * work.cohort), begin + work.cohort)
        states = [train(client % work.clients) for client in clients]
        model.load_state_dict({name: torch.stack([s[name] for s in states]).mean(0) for name in states[0]})

    def train(client: int) -> dict[str, torch.Tensor]:
        mine, rows = copy.deepcopy(model), torch.from_numpy(simulation.split.train(client)).to(device)
        x, y = simulation.objective.samples.read(rows)
        optimiser = torch.optim.SGD(mine.parameters(), lr=work.lr)
        for _ in range(work.epochs):
            for batch in torch.split(torch.randperm(len(x), device=device), work.batch):
                optimiser.zero_grad()
                F.cross_entropy(mine(x[batch]), y[batch]).backward()
                optimiser.step()
        return mine.state_dict()

    return round_


def simulated(work: Workload, rate: float, executor: str, device: str, rounds: int) -> tuple[Simulation, Round]:
    """Return a run, and a function that trains its next round."""
    method = fedavg(lr=work.lr, epochs=work.epochs, batch=work.batch)
    options = Options(rounds, work.cohort, executor=executor, device=device, eval_every=rounds)
    run, at = Simulation(method, Task(lambda: network(rate), data(), split(work)), options), iter(range(rounds))

    def round_() -> None:
        record = run.round(next(at), None)
        if record["failures"]:
            raise SystemExit(f"clients failed: {record['failures'][:3]}")

    return run, round_


def timed(round_: Round, device: str) -> float:
    begin = time.perf_counter()
    round_()
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - begin


def race(work: Workload, executors: list[str], device: str, rounds: int) -> dict[tuple[str, float], float]:
    """Return the median seconds per round by system and rate; the first round of each is not timed."""
    runs: dict[tuple[str, float], tuple[Simulation, Round]] = {}
    for rate in (0.0, RATE):
        for executor in executors:
            runs[executor, rate] = simulated(work, rate, executor, device, rounds + 2)
        some = runs[executors[0], rate][0]
        runs[PLAIN, rate] = some, plain(some, work, device)
    times: dict[tuple[str, float], list[float]] = {name: [] for name in runs}
    for number in range(rounds + 1):
        for name, (_, round_) in runs.items():
            spent = timed(round_, device)
            times[name] += [spent] if number else []
    for run, _ in runs.values():
        run.close()
    return {name: statistics.median(taken) for name, taken in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure the cost of dropout.")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--executors", nargs="+", default=["one-by-one", "compiled"])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--shard", type=int, default=WORKLOADS["w1"].shard, help="samples per client")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    work = replace(WORKLOADS["w1"], shard=asked.shard)
    medians = race(work, asked.executors, asked.device, asked.rounds)
    print("| system | s per round | with dropout | gain | with dropout | kept |\n|---|---|---|---|---|---|")
    for name in (PLAIN, *asked.executors):
        without, with_ = (medians[name, rate] for rate in (0.0, RATE))
        gains = medians[PLAIN, 0.0] / without, medians[PLAIN, RATE] / with_
        kept = f"{gains[0]:.2f}x | {gains[1]:.2f}x | {gains[1] / gains[0]:.0%}"
        print(f"| {name} | {without:.3f} | {with_:.3f} | {kept} |")


if __name__ == "__main__":
    main()
