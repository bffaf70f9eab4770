"""Every method on a GPU beside the CPU: the same function, to rounding.

    python bench/cuda.py

Runs each method for three rounds in double precision on both and prints the largest difference of any parameter, then
one round of CNN4 on images of Fashion-MNIST's size in single precision, with its seconds by phase.
"""

import torch
from torch import Tensor

from gossamer import METHODS, Method, Task, fedavg, simulate
from gossamer.nets import build
from gossamer.testing import tiny_task


def difference(method: Method) -> float:
    task = tiny_task(dtype=torch.float64)
    ends = [simulate(method, task, rounds=3, per_round=3, device=d).module.state_dict() for d in ("cpu", "cuda")]
    return max(float((ends[0][name] - ends[1][name].cpu()).abs().max()) for name in ends[0])


def images(n: int) -> tuple[Tensor, Tensor]:
    return torch.randn(n, 1, 28, 28), torch.randint(10, (n,))


def main() -> None:
    for name, recipe in METHODS.items():
        print(f"{name:12} {difference(recipe()):.1e}")
    torch.manual_seed(0)
    task = Task.of(lambda: build("cnn4", (1, 28, 28), 10), images(6000), images(1000), clients=10)
    method = fedavg(lr=0.03, epochs=1, batch=64)
    for record in simulate(method, task, rounds=2, device="cuda").metrics:
        print("cnn4", {phase: round(spent, 3) for phase, spent in record["seconds"].items()}, record["accuracy"])


if __name__ == "__main__":
    main()
