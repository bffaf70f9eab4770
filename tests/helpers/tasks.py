"""Small networks and tasks that several tests train."""

import torch
from torch import Tensor, nn

from gossamer.core.types import Params
from gossamer.tasks.task import Task


def batch_norm_task(clients: int = 4, dtype: torch.dtype = torch.float64) -> Task:
    """Clients of 20 samples each, for a network with running statistics."""
    draw = torch.Generator().manual_seed(3)
    x = torch.randn(20 * clients, 5, generator=draw, dtype=dtype)
    y = (x[:, 0] + x[:, 1] > 0).long()

    def network() -> nn.Module:
        return nn.Sequential(nn.Linear(5, 7), nn.BatchNorm1d(7), nn.ReLU(), nn.Linear(7, 2)).to(dtype)

    return Task.of(network, (x, y), (x, y), clients=clients)


def floats(module: nn.Module) -> Params:
    """Parameters and buffers of floating-point numbers."""
    return {name: tensor.clone() for name, tensor in module.state_dict().items() if tensor.is_floating_point()}


class Fragile(nn.Module):
    """Fails in training on a batch with a large first feature."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        if self.training and bool((x[:, 0] > 5).any()):
            raise ValueError("sensor broken")
        return self.layer(x)
