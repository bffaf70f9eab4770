"""Compare every executor on a GPU with the CPU, and measure its speed relative to a plain PyTorch loop.

    python bench/gpu.py [--data-dir DIR] [--rounds 5]

The first part runs each method with each executor for three rounds in double precision, and prints the largest
difference of any parameter from the CPU's. The second part runs FedAvg with CNN4 on images of Fashion-MNIST's size (the
real ones if DIR has them): 100 clients, 10 per round, 10 epochs in batches of 64. It prints the median seconds per
round of a plain loop and of each executor, in turns. ``gpu_rows.py`` measures captured rounds of more networks and of
FedMRN in each precision, with memory, seconds until ready, and profiles.
"""

import argparse
import copy
import statistics
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

from gossamer import METHODS, Method, Options, Task, fedavg, simulate
from gossamer.core.random import key
from gossamer.engines.metrics import Ledger
from gossamer.engines.simulation import Simulation
from gossamer.tasks.data import load
from gossamer.tasks.nets import build
from gossamer.tasks.task import deal
from gossamer.testing import tiny_task

EXECUTORS = ("one-by-one", "stacked", "captured")
EPOCHS, BATCH, LR = 10, 64, 0.03


def difference(method: Method, executor: str) -> float:
    task = tiny_task(clients=8, dtype=torch.float64)
    here = simulate(method, task, rounds=3, per_round=6).model.state_dict()
    there = simulate(method, task, rounds=3, per_round=6, device="cuda", executor=executor).model.state_dict()
    return max(float((here[name] - there[name].cpu()).abs().max()) for name in here)


def fashion(data_dir: str | None) -> Task:
    if data_dir is not None:
        data = load("fashion-mnist", data_dir=Path(data_dir), clients=100, key=key(0))
        return Task(lambda: build("cnn4", data.shape, 10), data, deal(data, "iid", 100, 0))
    torch.manual_seed(0)
    x, y = torch.randn(60000, 1, 28, 28), torch.randint(10, (60000,))
    return Task.of(lambda: build("cnn4", (1, 28, 28), 10), (x, y), (x[:1000], y[:1000]), clients=100)


def plain_round(model: nn.Module, simulation: Simulation, cohort: list[int]) -> None:
    states = []
    for client in cohort:
        mine, index = copy.deepcopy(model).train(), torch.from_numpy(simulation.split.train(client)).cuda()
        x, y = simulation.objective.samples.x[index], simulation.objective.samples.y[index]
        optimiser = torch.optim.SGD(mine.parameters(), lr=LR)
        for _ in range(EPOCHS):
            for batch in torch.split(torch.randperm(len(x), device="cuda"), BATCH):
                optimiser.zero_grad()
                F.cross_entropy(mine(x[batch]), y[batch]).backward()
                optimiser.step()
        states.append(mine.state_dict())
    model.load_state_dict({n: torch.stack([s[n].float() for s in states]).mean(0) for n in states[0]})


def timed(simulation: Simulation, number: int, cohort: list[int]) -> tuple[float, float]:
    """Return the seconds of a round, and of its preparation."""
    torch.cuda.synchronize()
    begin = time.perf_counter()
    simulation.prepare(number, cohort, Ledger())
    ready = time.perf_counter()
    ledger = Ledger()
    simulation.train(number, ledger)
    torch.cuda.synchronize()
    spent = time.perf_counter() - ready
    if number == 2:
        print(f"phases of a round: {ledger.seconds}", flush=True)
    return spent, ready - begin


def race(task: Task, rounds: int) -> None:
    options = {"rounds": rounds, "per_round": 10, "device": "cuda"}
    method = fedavg(lr=LR, epochs=EPOCHS, batch=BATCH)
    runs = {name: Simulation(method, task, Options(executor=name, **options)) for name in EXECUTORS}  # type: ignore[arg-type]
    first = runs["one-by-one"]
    model, plain = first.objective.build(), []
    times: dict[str, list[float]] = {name: [] for name in runs}
    for number in range(rounds):
        cohort = first.cohort(number, Ledger())
        if number < 3:
            begin = time.perf_counter()
            plain_round(model, first, cohort)
            torch.cuda.synchronize()
            plain.append(time.perf_counter() - begin)
        for name, simulation in runs.items():
            if name not in ("one-by-one", "stacked") or number < 2:
                spent, ready = timed(simulation, number, cohort)
                times[name].append(spent)
                if number == 0:
                    print(f"{name:12} prepared in {ready:.1f} s, first round {spent:.2f} s", flush=True)
    base = statistics.median(plain[1:])
    print(f"plain loop   {base:.3f} s per round")
    for name, taken in times.items():
        median = statistics.median(taken[1:])
        print(f"{name:12} {median:.3f} s per round, {base / median:.1f}x the plain loop")


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare and measure executors on a GPU.")
    parser.add_argument("--data-dir")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", choices=("agreement", "speed"))
    given = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("torch finds no GPU: this benchmark needs one")
    for executor in EXECUTORS if given.only != "speed" else ():
        for name, recipe in METHODS.items():
            print(f"{executor:12} {name:12} {difference(recipe(), executor):.1e}", flush=True)
    if given.only != "agreement":
        race(fashion(given.data_dir), given.rounds)


if __name__ == "__main__":
    main()
