"""Tiny tasks in float64: three noisy classes of 4 by 4 pictures, and networks of about a hundred parameters.

No bias is before a norm: its gradient would be zero but for rounding, and signs and masks would follow from that.
"""

from collections.abc import Callable
from functools import cache

import numpy as np
import torch
from torch import Tensor, nn

from gossamer import Task

TRAIN, TEST = 61, 24


def _convolution(norm: nn.Module) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 2, 3, bias=False), norm, nn.ReLU(), nn.Flatten(), nn.Linear(8, 4), nn.ReLU(), nn.Linear(4, 3)
    )


def _block() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 4), nn.ReLU())


class _Residual(nn.Module):
    """A convolution with a connection around it."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.norm = nn.Conv2d(1, 2, 3), nn.Conv2d(2, 2, 1, bias=False), nn.BatchNorm2d(2)
        self.head = nn.Linear(2, 3)

    def forward(self, x: Tensor) -> Tensor:
        held: Tensor = self.first(x)
        held = torch.relu(held + self.norm(self.second(held)))
        scores: Tensor = self.head(held.mean((2, 3)))
        return scores


def _frozen() -> nn.Module:
    net = _convolution(nn.GroupNorm(1, 2)).double()
    next(net.parameters()).requires_grad_(False)
    return net


NETS: dict[str, Callable[[], nn.Module]] = {
    "batch": lambda: _convolution(nn.BatchNorm2d(2)).double(),
    "group": lambda: _convolution(nn.GroupNorm(2, 2)).double(),
    "blocks": lambda: nn.Sequential(nn.Flatten(), nn.Linear(16, 4), _block(), _block(), nn.Linear(4, 3)).double(),
    "dropout": lambda: nn.Sequential(_convolution(nn.BatchNorm2d(2)), nn.Dropout(0.3)).double(),
    "residual": lambda: _Residual().double(),
    "frozen": _frozen,
    "dense": lambda: nn.Sequential(nn.Flatten(), nn.Linear(16, 5), nn.ReLU(), nn.Linear(5, 3)).double(),
}
"""Networks by their norms. ``batch`` has running statistics, ``dense`` has linear layers only."""


@cache
def samples(n: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return pictures and labels."""
    random = np.random.default_rng(seed)
    y, x = torch.from_numpy(random.integers(0, 3, n)), torch.from_numpy(random.random((n, 1, 4, 4)) - 0.5)
    x[torch.arange(n), 0, y] += 1
    return x, y


def task(net: str = "batch", split: str = "dirichlet:1", clients: int = 5) -> Task:
    """Return a task. Its clients have unequal numbers of samples, so that most last batches are short."""
    return Task.of(NETS[net], samples(TRAIN, 7), samples(TEST, 8), clients=clients, split=split)
