"""Small tables of scikit-learn: regression, binary classification, and several targets per sample.

A fifth of the samples is the test set, whatever the run's seed. Features have mean 0 and standard deviation 1 over the
training samples. So have targets that are numbers: an RMSE of 1 is that of predicting the mean.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from gossamer.core.extras import need
from gossamer.core.random import Key, fold, permutation
from gossamer.core.random import key as new_key
from gossamer.tasks.data.partition import Index
from gossamer.tasks.data.samples import Data, Samples

TEST_SHARE = 0.2
"""Fraction of the samples that is the test set of a data set without one."""

Table = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Diabetes:
    """Diabetes progression after a year, of 442 patients with 10 measurements: regression; part of scikit-learn."""

    def load(self, data_dir: Path | None, clients: int, key: Key) -> Data:
        """Load the patients; a fifth of them is the test set."""
        return _numbers("diabetes", "load_diabetes", split="quantile:2", model="linear")


@dataclass(frozen=True)
class Linnerud:
    """Weight, waist and pulse of 20 people by three exercises: three numbers per sample; part of scikit-learn."""

    def load(self, data_dir: Path | None, clients: int, key: Key) -> Data:
        """Load the people; a fifth of them is the test set."""
        return _numbers("linnerud", "load_linnerud", split="iid", model="linear")


@dataclass(frozen=True)
class BreastCancer:
    """Malignant or benign, 569 tumours with 30 measurements: binary, one logit; part of scikit-learn."""

    def load(self, data_dir: Path | None, clients: int, key: Key) -> Data:
        """Load the tumours; a fifth of them is the test set."""
        x, y = _read("load_breast_cancer")
        train, test = _parts("breast-cancer", len(x))
        features, labels = _floats(_standard(x, train)), torch.from_numpy(y).long()
        samples, metrics = Samples(features, labels), ("accuracy", "auroc")
        both = samples.take(train), samples.take(test)
        return Data("breast-cancer", *both, 2, split="dirichlet:0.3", model="linear", loss="bce", metrics=metrics)


def _numbers(name: str, loader: str, split: str, model: str) -> Data:
    """Return a table whose targets are numbers."""
    x, y = _read(loader)
    train, test = _parts(name, len(x))
    samples = Samples(_floats(_standard(x, train)), _floats(_standard(y, train)))
    return Data(name, samples.take(train), samples.take(test), 0, split, model, loss="mse")


def _read(loader: str) -> tuple[Table, Any]:
    need("sklearn")
    from sklearn import datasets

    read: Callable[..., tuple[Table, Any]] = getattr(datasets, loader)
    return read(return_X_y=True)


def _parts(name: str, n: int) -> tuple[Index, Index]:
    """Return training and test indices, ascending; the key is constant, so that the test set is part of the data."""
    order = permutation(fold(new_key(0), name, "test"), n)
    held = round(TEST_SHARE * n)
    return np.sort(order[held:]), np.sort(order[:held])


def _standard(table: Table, train: Index) -> Table:
    """Return columns with mean 0 and standard deviation 1 over the training samples."""
    standard: Table = (table - table[train].mean(axis=0)) / table[train].std(axis=0)
    return standard


def _floats(table: Table) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(table)).float()
