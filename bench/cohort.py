"""A round of many clients: Gossamer, and the same clients by hand as the rows of one matrix.

    python bench/cohort.py [--workloads linear cnn] [--rounds 5] [--set together=auto ...]

``linear``: 1,000 clients of one step of a linear model (64 inputs, 10 classes, batches of 20), which two cores of a CPU
can run. ``cnn``: 50 clients of 5 steps of 10 random images of CIFAR-10's shape, for pfl-research's network of 2.17
million weights, on a GPU. A round has dense messages both ways, and no evaluation. The program by hand is what a
careful engineer writes without Gossamer: gradients of all rows by ``torch.func``, messages with a sum over 64-bit words
in each, and the ordered sum of the updates. Rounds of both alternate in one process; the median counts.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap

from gossamer import Options, Task, fedavg
from gossamer.engines.metrics import Ledger
from gossamer.engines.simulation import Simulation


class Work(NamedTuple):
    """A workload: clients, steps of a batch each, and the network for inputs of a shape."""

    clients: int
    steps: int
    batch: int
    shape: tuple[int, ...]
    network: Callable[[], nn.Module]
    device: str


def _cnn() -> nn.Module:
    dense = [nn.Linear(64 * 14**2, 128), nn.ReLU(), nn.Linear(128, 10)]
    return nn.Sequential(
        nn.Conv2d(3, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), *dense
    )


WORKLOADS = {
    "linear": Work(1000, 1, 20, (64,), lambda: nn.Linear(64, 10), "cpu"),
    "cnn": Work(50, 5, 10, (3, 32, 32), _cnn, "cuda"),
}


def data(work: Work) -> tuple[Tensor, Tensor]:
    """Return the samples of all clients, [clients, samples, ...]."""
    draw = torch.Generator().manual_seed(1)
    x = torch.randn(work.clients, work.steps * work.batch, *work.shape, generator=draw)
    return x, torch.randint(10, x.shape[:2], generator=draw)


class ByHand:
    """A round of the clients as the rows of a matrix."""

    def __init__(self, work: Work) -> None:
        self.work, self.network = work, work.network().to(work.device)
        named = dict(self.network.named_parameters())
        self.shapes = {name: tensor.shape for name, tensor in named.items()}
        self.model = torch.cat([tensor.detach().reshape(-1) for tensor in named.values()])  # [n]
        self.x, self.y = (tensor.to(work.device) for tensor in data(work))
        self.gradients = vmap(grad_and_value(self._loss))

    def _loss(self, params: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return nn.functional.cross_entropy(functional_call(self.network, params, (x,)), y)

    def round(self) -> None:
        """Train all rows, make and check messages, and add them up in client order."""
        work, sizes = self.work, [shape.numel() for shape in self.shapes.values()]
        rows = self.model.expand(work.clients, -1).clone()  # [K, n]
        order = torch.stack([torch.randperm(self.x.shape[1]) for _ in range(work.clients)]).to(rows.device)
        lines = torch.arange(work.clients, device=rows.device)[:, None]
        for picked in order.split(work.batch, 1):
            pieces = zip(self.shapes.items(), rows.split(sizes, 1), strict=True)
            params = {name: piece.view(-1, *shape) for (name, shape), piece in pieces}
            grads, _ = self.gradients(params, self.x[lines, picked], self.y[lines, picked])
            rows.sub_(torch.cat([grads[name].flatten(1) for name in self.shapes], 1), alpha=0.1)
        messages = (rows - self.model).view(torch.uint8)  # [K, 4 n]
        assert messages.shape[1] % 8 == 0
        checks = messages.view(torch.int64).sum(1)
        assert torch.equal(messages.view(torch.int64).sum(1), checks)
        for message in messages.view(torch.float32):
            self.model += message / work.clients


class Ours:
    """A round of the clients by Gossamer."""

    def __init__(self, work: Work, settings: dict[str, Any]) -> None:
        x, y = data(work)
        owner = list(torch.arange(x.shape[0] * x.shape[1]).view(work.clients, -1).numpy())
        train, test = (x.flatten(0, 1), y.flatten()), (x[0], y[0])
        task = Task.of(work.network, train, test, clients=work.clients, split=owner)
        method = fedavg(lr=0.1, epochs=1, batch=work.batch)
        options = Options(rounds=10**6, per_round=work.clients, device=work.device, **settings)
        self.run, self.number = Simulation(method, task, options), 0

    def round(self) -> None:
        self.run.train(self.number, Ledger())
        self.number += 1


def timed(act: Callable[[], None]) -> float:
    begin = time.perf_counter()
    act()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - begin


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workloads", nargs="+", choices=WORKLOADS, default=["linear"])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--set", nargs="*", default=[], metavar="NAME=VALUE", help="options of the run")
    given = parser.parse_args()
    settings = {
        name: int(value) if value.isdigit() else value for name, _, value in (s.partition("=") for s in given.set)
    }
    for name in given.workloads:
        work = WORKLOADS[name]
        both: dict[str, ByHand | Ours] = {"by hand": ByHand(work), "gossamer": Ours(work, settings)}
        times: dict[str, list[float]] = {who: [] for who in both}
        for number in range(given.rounds + 2):
            for who, program in both.items():
                spent = timed(program.round)
                times[who] += [spent] if number >= 2 else []
        row = ", ".join(f"{who} {statistics.median(spent):.4f} s" for who, spent in times.items())
        print(f"{name}: {row} per round (medians of {given.rounds})", flush=True)


if __name__ == "__main__":
    main()
