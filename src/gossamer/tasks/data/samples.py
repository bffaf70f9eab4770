"""Data as tensors: inputs and labels, with a default split and a default model.

Some data has natural owners: writers, speakers, or the clients of a generator. ``group`` holds them, and the split
``natural`` makes them the clients.
"""

import hashlib
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from gossamer.tasks.data.augment import Augment
from gossamer.tasks.data.partition import Index


@dataclass(frozen=True, eq=False)
class Samples:
    """Inputs and labels, with the natural owner of each sample if there is one."""

    x: Tensor
    y: Tensor
    group: Index | None = None

    def __len__(self) -> int:
        return len(self.y)

    def take(self, index: Index) -> "Samples":
        """Return the samples at ``index``, in that order."""
        at = torch.from_numpy(np.ascontiguousarray(index))
        return Samples(self.x[at], self.y[at], None if self.group is None else self.group[index])

    @property
    def labels(self) -> Index:
        """Labels as a NumPy array, for splits and counts."""
        return self.y.cpu().numpy().astype(np.int64, copy=False)


@dataclass(frozen=True, eq=False)
class Data:
    """A data set with its default split, default model, and augmentation of training batches, if any.

    Args:
        name: its name
        train: training samples
        test: test samples
        classes: number of classes; 0 if targets are not classes
        split: default split
        model: default network
        augment: augmentation of training batches
        loss: name of the default loss
        metrics: names of the default metrics; empty means those of the loss
    """

    name: str
    train: Samples
    test: Samples
    classes: int
    split: str
    model: str
    augment: Augment | None = None
    loss: str = "cross_entropy"
    metrics: tuple[str, ...] = ()

    @property
    def outputs(self) -> int:
        """Number of outputs of a network: one per class, or one per target."""
        return self.classes if self.loss in ("cross_entropy", "nll") else self.train.y[:1].numel()

    @property
    def shape(self) -> torch.Size:
        """Shape of one input."""
        return self.train.x.shape[1:]

    def digest(self) -> str:
        """Return the SHA-256 of all samples; a resumed run must have the same data."""
        return self._digest

    @cached_property
    def _digest(self) -> str:
        total = hashlib.sha256()
        for samples in (self.train, self.test):
            for array in (samples.x.cpu().numpy(), samples.y.cpu().numpy(), samples.group):
                if array is not None:
                    total.update(f"{array.dtype.str}{array.shape}".encode())
                    total.update(np.ascontiguousarray(array).data)
        return total.hexdigest()
