"""Downloads of delta downlinks, written by one process and read by another.

    ATEN_CPU_CAPABILITY=default python tests/helpers/downloads.py FILE

writes them. Another CPU capability fuses products with sums and divides otherwise, as another device does.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

from gossamer import Delta, Dense, Drive, Eden, Mean, Method, OneBit, OnWeights, Options, SumThenDecode, Task, methods
from gossamer.core.types import State
from gossamer.engines.run import Stage
from gossamer.engines.simulation import Simulation

PLAIN = methods.fedavg(steps=3).with_parts(server=Mean(server_lr=0.7), down=Delta())
METHODS: dict[str, Method] = {
    "masks": methods.fedmrn(steps=3, alpha=0.05).with_parts(down=Delta()),
    "sums of masks": methods.fedmrn(
        steps=3, noise="uniform", alpha=0.05, common_noise=True, weights="uniform"
    ).with_parts(down=Delta(sums_only=True)),
    "sampled masks": methods.klms(steps=3).with_parts(down=Delta()),
    "scores": methods.fedpm(steps=3).with_parts(down=Delta()),
    "EDEN": PLAIN.with_parts(codec=OnWeights(Eden(1))),
    "one-bit": PLAIN.with_parts(codec=OnWeights(OneBit()), server=SumThenDecode()),
    "scalars": methods.decomfl(steps=2, perturbations=3),
    "curvature": methods.hiso(steps=2, perturbations=3, smoothing=0.3),
    "stacks": methods.flora(steps=3, rank=4, capacities=(1.0, 0.5)),
    "compressed": PLAIN.with_parts(down=Delta(OnWeights(Drive()), Dense("float16"))),
}

Downloads = list[tuple[int, int, str]]
"""Round, client and bytes (hexadecimal) of each download, in order."""


def simulation(method: Method) -> "Recorded":
    x, y = torch.sin(torch.arange(9200.0)).view(46, 200), torch.arange(46) % 3

    def network() -> nn.Module:
        return nn.Sequential(nn.Linear(200, 100), nn.ReLU(), nn.Linear(100, 3))

    task = Task.of(network, (x, y), (x, y), clients=3)
    return Recorded(method, task, Options(rounds=5, per_round=2, executor="one-by-one"))


class Recorded(Simulation):
    """A simulation that keeps its downloads."""

    def client_tasks(self, stage: Stage, *rest: Any) -> Iterator[Any]:
        self.downloads: Downloads = getattr(self, "downloads", [])
        for client_task in super().client_tasks(stage, *rest):
            self.downloads.append((stage.number, client_task.clock.client, bytes(client_task.data).hex()))
            yield client_task


def record(method: Method) -> Downloads:
    """The downloads of a run."""
    run = simulation(method)
    run.run(None, lambda record: None)
    return run.downloads


def read(method: Method, downloads: Downloads) -> None:
    """Read downloads as clients would. The checksum of each model is compared."""
    run, devices = simulation(method), dict[int, State]()
    for number, client, data in downloads:
        clock, key, before = run.clock(number, client), run.round_key(number), devices.get(client, {})
        devices[client] = run.method.training.read_download(bytes.fromhex(data), before, clock, key).state


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(json.dumps({name: record(method) for name, method in METHODS.items()}))
