"""Data sets by name: what is trained on, what is tested on, and whose each sample is by nature.

A data set is a value: training and test samples as tensors, the number of classes, and the split and model that suit it
when the user names none. Some data has natural owners (writers, speakers, the clients of a generator); ``group`` keeps
them, and the split ``natural`` makes them the clients. Adding a data set is one function and one line in ``DATASETS``.
"""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from gossamer import specs
from gossamer.data import synthetic
from gossamer.data.partition import Index
from gossamer.errors import ConfigError, require
from gossamer.random import Key, fold, permutation
from gossamer.random import key as new_key

TEST_SHARE = 0.2


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
    """A data set with the split and the model that suit it."""

    name: str
    train: Samples
    test: Samples
    classes: int
    split: str
    model: str

    @property
    def shape(self) -> torch.Size:
        """The shape of one input."""
        return self.train.x.shape[1:]

    def digest(self) -> str:
        """SHA-256 of all samples: a resumed run checks that it still sees the same data."""
        total = hashlib.sha256()
        for samples in (self.train, self.test):
            for array in (samples.x.cpu().numpy(), samples.y.cpu().numpy(), samples.group):
                if array is not None:
                    total.update(f"{array.dtype.str}{array.shape}".encode())
                    total.update(np.ascontiguousarray(array).data)
        return total.hexdigest()


@dataclass(frozen=True)
class Source:
    """Where a data set comes from: ``load(data_dir, clients, key)`` makes it."""

    load: Callable[[Path | None, int, Key], Data]
    summary: str


def load(name: str, *, data_dir: Path | None = None, clients: int = 50, key: Key) -> Data:
    """The data set called ``name``; generated ones make the data of ``clients`` clients from ``key``."""
    if name not in DATASETS:
        raise ConfigError(specs.unknown("data set", name, DATASETS))
    require((clients >= 1, f"clients must be >= 1, got {clients}"))
    return DATASETS[name].load(data_dir, clients, key)


def hold_out(labels: Index, share: float, key: Key) -> tuple[Index, Index]:
    """Training and test indices, both ascending, with ``share`` of every class in the test set."""
    test = np.zeros(len(labels), dtype=bool)
    for label in np.unique(labels):
        members = np.flatnonzero(labels == label)
        order = permutation(fold(key, int(label)), len(members))
        test[members[order[: round(share * len(members))]]] = True
    return np.flatnonzero(~test), np.flatnonzero(test)


def _digits(data_dir: Path | None, clients: int, key: Key) -> Data:
    from sklearn.datasets import load_digits  # here, so that the core needs torch and numpy alone

    images, labels = load_digits(return_X_y=True)
    x = torch.from_numpy(images / 16).float().reshape(-1, 1, 8, 8)
    samples = Samples(x, torch.from_numpy(labels).long())
    # A constant key: the test set is part of the data set, the same in every run whatever its seed.
    train, test = hold_out(samples.labels, TEST_SHARE, fold(new_key(0), "digits", "test"))
    return Data("digits", samples.take(train), samples.take(test), 10, split="dirichlet:0.3", model="mlp")


def _two_populations(name: str, balanced: bool) -> Callable[[Path | None, int, Key], Data]:
    def make(data_dir: Path | None, clients: int, key: Key) -> Data:
        drawn = synthetic.two_populations(clients, fold(key, "two-populations"), balanced=balanced)
        samples = Samples(torch.from_numpy(drawn.x), torch.from_numpy(drawn.y), drawn.client)
        # A client's samples are independent draws, so its last fifth is as good a test set as any.
        test = np.arange(len(samples)) % synthetic.SAMPLES >= round((1 - TEST_SHARE) * synthetic.SAMPLES)
        train, held = samples.take(np.flatnonzero(~test)), samples.take(np.flatnonzero(test))
        return Data(name, train, held, 2, split="natural", model="logistic")

    return make


DATASETS: dict[str, Source] = {
    "digits": Source(_digits, "1,797 handwritten digits of 8 x 8 pixels, 10 classes; comes with scikit-learn"),
    "two-populations": Source(
        _two_populations("two-populations", balanced=True),
        "generated: two halves of the clients label in opposite ways (PERM), labels balanced",
    ),
    "two-populations-literal": Source(
        _two_populations("two-populations-literal", balanced=False),
        "generated: as PERM states it, where one class may hold nearly all labels",
    ),
}
