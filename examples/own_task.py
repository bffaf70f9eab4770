"""A task of your own for the command line: a network, arrays and a partition.

    gossamer run fedavg --task examples/own_task.py:task --rounds 10

``task`` is a function that returns a Task, or a Task. It must return the same data in every call, because a resumed run
calls it again and compares.
"""

import torch
from torch import Tensor, nn

from gossamer import Task


def spirals(samples: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return points on two spirals, and the spiral of each point."""
    draw = torch.Generator().manual_seed(seed)
    y = torch.randint(2, (samples,), generator=draw)
    angle = 6 * torch.rand(samples, generator=draw)
    turned = angle + torch.pi * y
    x = angle.unsqueeze(1) * torch.stack([turned.cos(), turned.sin()], dim=1) / 3
    return x + 0.05 * torch.randn(samples, 2, generator=draw), y


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 2))


def task() -> Task:
    return Task.of(network, spirals(2000, seed=1), spirals(500, seed=2), clients=10, split="dirichlet:1")


if __name__ == "__main__":
    print("run it with: gossamer run fedavg --task examples/own_task.py:task --rounds 10")
