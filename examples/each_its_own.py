"""A task for a deployment: every machine has samples of its own, and the server has none.

    gossamer deploy try fedavg --task examples/each_its_own.py:task --rounds 3

``task`` is called on every machine, with the number of its client (``None`` on the server) and the settings of the
machine: the ``--node-config`` of its SuperNode. A real task reads files from a folder in these settings, such as
``settings["data-dir"]``. This one draws random samples, so that it runs anywhere.
"""

from typing import Any

import torch
from torch import Tensor, nn

from gossamer import Task

CLIENTS = 3


def readings(client: int, samples: int, seed: int) -> tuple[Tensor, Tensor]:
    """Readings of two sensors and a binary label; the distribution is shifted by client."""
    draw = torch.Generator().manual_seed(1000 * client + seed)
    x = torch.randn(samples, 2, generator=draw) + 0.3 * client
    return x, (x.sum(1) > 0).long()


def task(client: int | None, settings: dict[str, Any]) -> Task:
    if client is None:
        return Task.own(model, client=None, clients=CLIENTS)
    return Task.own(model, readings(client, 200, 1), readings(client, 100, 2), client=client, clients=CLIENTS)


def model() -> nn.Module:
    return nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, 2))


if __name__ == "__main__":
    print("run it with: gossamer deploy try fedavg --task examples/each_its_own.py:task --rounds 3")
