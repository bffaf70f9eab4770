"""A task for a deployment: every machine has samples of its own, and the server has none.

    gossamer deploy try fedavg --task examples/each_its_own.py:task --rounds 3

``task`` is called on every machine, with the number of the client that it is (``None``: the server) and with the
machine's settings, which are what its SuperNode was started with. A real one would read files from a folder that the
settings name, such as ``settings["data-dir"]``; this one makes its samples up, so that it can be tried anywhere.
"""

from typing import Any

import torch
from torch import Tensor, nn

from gossamer import Task

CLIENTS = 3


def readings(client: int, samples: int, seed: int) -> tuple[Tensor, Tensor]:
    """Two sensors and whether something is wrong; each machine sees the world a little shifted."""
    draw = torch.Generator().manual_seed(1000 * client + seed)
    x = torch.randn(samples, 2, generator=draw) + 0.3 * client
    return x, (x.sum(1) > 0).long()


def task(client: int | None, settings: dict[str, Any]) -> Task:
    if client is None:
        return Task.own(model, client=None, clients=CLIENTS)
    return Task.own(model, readings(client, 200, 1), readings(client, 100, 2), client=client, clients=CLIENTS)


def model() -> nn.Module:
    return nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, 2))
