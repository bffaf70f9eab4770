"""Data as a value: inputs and labels as tensors, with the split and the model that suit them.

Some data has natural owners (writers, speakers, the clients of a generator): ``group`` keeps them, and the split
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
    """Inputs and labels, sample by sample, with the natural owner of each where there is one."""

    x: Tensor
    y: Tensor
    group: Index | None = None

    def __len__(self) -> int:
        return len(self.y)

    def take(self, index: Index) -> "Samples":
        """The samples at ``index``, in that order."""
        at = torch.from_numpy(np.ascontiguousarray(index))
        return Samples(self.x[at], self.y[at], None if self.group is None else self.group[index])

    @property
    def labels(self) -> Index:
        """The labels as a NumPy array, for splitting and counting."""
        return self.y.cpu().numpy().astype(np.int64, copy=False)


@dataclass(frozen=True, eq=False)
class Data:
    """A data set with the split and the model that suit it, and what is done to a training batch, if anything."""

    name: str
    train: Samples
    test: Samples
    classes: int
    split: str
    model: str
    augment: Augment | None = None

    @property
    def shape(self) -> torch.Size:
        """The shape of one input."""
        return self.train.x.shape[1:]

    def digest(self) -> str:
        """SHA-256 of all samples: a resumed run checks that it still sees the same data."""
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
