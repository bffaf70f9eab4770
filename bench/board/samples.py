"""Training samples of a workload: random ones of the published shapes, and CIFAR-10's own if its file is there."""

from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from board.workloads import Numbers, Workload

CHARACTERS, TIME = 90, 80
SHAPES = {"femnist": (1, 28, 28), "cifar10": (3, 32, 32), "cifar100": (3, 32, 32), "shakespeare": (TIME,)}
CLASSES = {"femnist": 62, "cifar10": 10, "cifar100": 100, "shakespeare": CHARACTERS}
FILE = "cifar10.npz"
DIFFERENT = 4_096
"""Number of different random images; they are repeated, because drawing millions takes longer than training."""


class Held(NamedTuple):
    """Inputs and targets; client c has those from ``starts[c]`` to ``starts[c + 1]``."""

    x: Tensor
    y: Tensor
    starts: Numbers

    def client(self, number: int) -> slice:
        """Return the samples of a client."""
        return slice(int(self.starts[number]), int(self.starts[number + 1]))

    def to(self, device: str) -> "Held":
        """Return the same samples on a device."""
        return Held(self.x.to(device), self.y.to(device), self.starts)


def held(work: Workload, folder: str) -> Held:
    """Return the samples of all clients, in client order."""
    starts = np.concatenate([[0], np.cumsum(work.sizes())])
    x, y = cifar10(folder, int(starts[-1])) if real(work, folder) else made_up(work, int(starts[-1]))
    return Held(x, y, starts)


def real(work: Workload, folder: str) -> bool:
    """Return whether the data set's own samples are used."""
    return work.data == "cifar10" and not work.small and (Path(folder) / FILE).is_file()


def origin(work: Workload, folder: str) -> str:
    """Describe the samples of ``held``."""
    return "CIFAR-10's images, IID" if real(work, folder) else f"random samples of the shape of {work.data}"


def made_up(work: Workload, count: int) -> tuple[Tensor, Tensor]:
    """Return random images with random labels, or random characters with random successors."""
    generator = torch.Generator().manual_seed(0)
    if work.data == "shakespeare":
        text = torch.randint(1, CHARACTERS, (count, (6 if work.small else TIME) + 1), generator=generator)
        return text[:, :-1].contiguous(), text[:, 1:].contiguous()
    some = torch.randn(min(count, DIFFERENT), *SHAPES[work.data], generator=generator)
    x = some.repeat(-(-count // DIFFERENT), 1, 1, 1)[:count]
    return x, torch.randint(CLASSES[work.data], (count,), generator=generator)


def cifar10(folder: str, count: int) -> tuple[Tensor, Tensor]:
    """Return CIFAR-10's training images in random order, scaled to [-1, 1]."""
    with np.load(Path(folder) / FILE) as stored:
        order = np.random.default_rng(0).permutation(len(stored["x_train"]))[:count]
        pixels, labels = stored["x_train"][order], stored["y_train"][order]
    x = torch.from_numpy(pixels).permute(0, 3, 1, 2).float() / 127.5 - 1
    return x.contiguous(), torch.from_numpy(labels.astype(np.int64))
