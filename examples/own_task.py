"""A task of your own for the command line: the network, the arrays and who holds what.

    gossamer run fedavg --task examples/own_task.py:task --rounds 10

``task`` is a function that returns a Task; a Task itself would do as well. It must give the same data every time it is
called, because a resumed run calls it again and compares.
"""

import torch
from torch import Tensor, nn

from gossamer import Task


def spirals(samples: int, seed: int) -> tuple[Tensor, Tensor]:
    """Points on two spirals, and which of the two each is on."""
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
