"""The reference executor beside a plain PyTorch loop, on the same clients, in one run.

    python bench/one_by_one.py [--rounds 5]

Workload: MLP 784-200-200-10, 100 clients of 600 samples, 10 a round, 5 epochs of batches of 20, plain SGD, one thread.
The two take turns; the medians of their rounds and the ratio are printed. A round of Gossamer includes making, checking
and decoding every message; the plain loop has none.
"""

import argparse
import copy
import statistics
import time

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gossamer import Options, Task, fedavg
from gossamer.engines.ledger import Ledger
from gossamer.engines.simulate import Simulation
from gossamer.nets import build

CLIENTS, SHARD, COHORT, EPOCHS, BATCH, LR = 100, 600, 10, 5, 20, 0.05


def plain_client(model: nn.Module, x: Tensor, y: Tensor) -> dict[str, Tensor]:
    model = copy.deepcopy(model)
    optimiser = torch.optim.SGD(model.parameters(), lr=LR)
    for _ in range(EPOCHS):
        for batch in torch.split(torch.randperm(len(x)), BATCH):
            optimiser.zero_grad()
            F.cross_entropy(model(x[batch]), y[batch]).backward()  # type: ignore[no-untyped-call]
            optimiser.step()
    return model.state_dict()


def plain_round(model: nn.Module, task: Task, cohort: list[int]) -> None:
    shards = [torch.from_numpy(task.split.train(client)) for client in cohort]
    states = [plain_client(model, task.data.train.x[i], task.data.train.y[i]) for i in shards]
    model.load_state_dict({name: torch.stack([s[name] for s in states]).mean(0) for name in states[0]})


def measure(rounds: int) -> dict[str, float]:
    torch.manual_seed(0)
    x, y = torch.randn(CLIENTS * SHARD, 1, 28, 28), torch.randint(10, (CLIENTS * SHARD,))
    task = Task.of(lambda: build("mlp", (1, 28, 28), 10), (x, y), (x[:100], y[:100]), clients=CLIENTS)
    simulation = Simulation(fedavg(LR, EPOCHS, batch=BATCH), task, Options(rounds=rounds + 1, per_round=COHORT))
    model = build("mlp", (1, 28, 28), 10)
    times: dict[str, list[float]] = {"plain": [], "gossamer": []}
    for number in range(rounds + 1):
        cohort = simulation.cohort(number)
        begin = time.perf_counter()
        plain_round(model, task, cohort)
        turn = time.perf_counter()
        simulation.train(number, cohort, Ledger())
        times["plain"].append(turn - begin)
        times["gossamer"].append(time.perf_counter() - turn)
    return {name: statistics.median(spent[1:]) for name, spent in times.items()}  # the first round warms up


def main() -> None:
    parser = argparse.ArgumentParser(description="The reference executor beside a plain PyTorch loop.")
    parser.add_argument("--rounds", type=int, default=5)
    torch.set_num_threads(1)
    seconds = measure(parser.parse_args().rounds)
    for name, median in seconds.items():
        print(f"{name:9} {median:.3f} s a round")
    print(f"gossamer is {seconds['plain'] / seconds['gossamer']:.2f}x as fast as the plain loop")


if __name__ == "__main__":
    main()
