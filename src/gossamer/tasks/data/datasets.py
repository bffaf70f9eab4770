"""Data sets by name. Adding one is a small dataclass with a ``load``, and a line in ``DATASETS``.

A data set is written as any other spec: ``cifar-10``, or ``cifar-10:norm=imagenet,augment=no``. Its fields are its
options, and the data that it loads carries the whole spec as its name, so that a resumed run loads the same.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import numpy as np
import torch

from gossamer.core import specs
from gossamer.core.errors import require
from gossamer.core.random import Key, fold, permutation
from gossamer.core.random import key as new_key
from gossamer.tasks.data import image_sets as albums
from gossamer.tasks.data import leaf as owned
from gossamer.tasks.data import synthetic
from gossamer.tasks.data.partition import Index
from gossamer.tasks.data.samples import Data, Samples

TEST_SHARE = 0.2


class Source(Protocol):
    """Where a data set comes from. Its docstring's first line says what it is."""

    def load(self, data_dir: Path | None, clients: int, key: Key) -> Data:
        """The data, from files in ``data_dir``, or generated for ``clients`` clients from ``key``."""
        ...


def load(name: str, *, data_dir: Path | None = None, clients: int = 50, key: Key) -> Data:
    """The data set that a spec such as ``digits`` or ``cifar-10:norm=imagenet`` names.

    Files are looked for in ``data_dir``, else in the folder that the variable GOSSAMER_DATA names, else in ``data``.
    Generated sets make the data of ``clients`` clients from ``key``.
    """
    source = specs.parse(name, DATASETS, "data set")
    require((clients >= 1, f"clients must be >= 1, got {clients}"))
    return replace(source.load(data_dir, clients, key), name=specs.spec(source, DATASETS))


def hold_out(labels: Index, share: float, key: Key) -> tuple[Index, Index]:
    """Training and test indices, both ascending, with ``share`` of every class in the test set."""
    test = np.zeros(len(labels), dtype=bool)
    for label in np.unique(labels):
        members = np.flatnonzero(labels == label)
        order = permutation(fold(key, int(label)), len(members))
        test[members[order[: round(share * len(members))]]] = True
    return np.flatnonzero(~test), np.flatnonzero(test)


@dataclass(frozen=True)
class Digits:
    """1,797 handwritten digits of 8 x 8 pixels, 10 classes; comes with scikit-learn."""

    def load(self, data_dir: Path | None, clients: int, key: Key) -> Data:
        """The digits, a fifth of every class held out."""
        from sklearn.datasets import load_digits  # here, so that the core needs torch and numpy alone

        images, labels = load_digits(return_X_y=True)
        x = torch.from_numpy(images / 16).float().reshape(-1, 1, 8, 8)
        samples = Samples(x, torch.from_numpy(labels).long())
        # A constant key: the test set is part of the data set, the same in every run whatever its seed.
        train, test = hold_out(samples.labels, TEST_SHARE, fold(new_key(0), "digits", "test"))
        return Data("digits", samples.take(train), samples.take(test), 10, split="dirichlet:0.3", model="mlp")


@dataclass(frozen=True)
class TwoPopulations:
    """Generated: two halves of the clients label in opposite ways (PERM), labels balanced."""

    def load(self, data_dir: Path | None, clients: int, key: Key) -> Data:
        """The data of so many clients."""
        return _two_populations(clients, key, balanced=True)


@dataclass(frozen=True)
class TwoPopulationsLiteral:
    """Generated: as PERM states it, where one class may hold nearly all labels."""

    def load(self, data_dir: Path | None, clients: int, key: Key) -> Data:
        """The data of so many clients."""
        return _two_populations(clients, key, balanced=False)


def _two_populations(clients: int, key: Key, balanced: bool) -> Data:
    drawn = synthetic.two_populations(clients, fold(key, "two-populations"), balanced=balanced)
    samples = Samples(torch.from_numpy(drawn.x), torch.from_numpy(drawn.y), drawn.client)
    # A client's samples are independent draws, so its last fifth is as good a test set as any.
    test = np.arange(len(samples)) % synthetic.SAMPLES >= round((1 - TEST_SHARE) * synthetic.SAMPLES)
    train, held = samples.take(np.flatnonzero(~test)), samples.take(np.flatnonzero(test))
    return Data("two-populations", train, held, 2, split="natural", model="logistic")


DATASETS: dict[str, type[Source]] = {
    "cifar-10": albums.Cifar10,
    "cifar-100": albums.Cifar100,
    "digits": Digits,
    "emnist-letters": albums.EmnistLetters,
    "fashion-mnist": albums.FashionMnist,
    "femnist": owned.Femnist,
    "mnist": albums.Mnist,
    "shakespeare": owned.Shakespeare,
    "svhn": albums.Svhn,
    "two-populations": TwoPopulations,
    "two-populations-literal": TwoPopulationsLiteral,
}
