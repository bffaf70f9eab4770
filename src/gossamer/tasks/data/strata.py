"""Strata: the groups by which a split is drawn and shown: classes or, for numbers, quantiles of the target."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from torch import Tensor

from gossamer.core.errors import require
from gossamer.tasks.data.partition import Index
from gossamer.tasks.data.samples import Data

MOST = 10
"""The largest number of quantiles."""

LEAST = 10
"""The number of test samples per quantile, at least."""


class Strata(NamedTuple):
    """The stratum of each sample.

    Args:
        train: strata of the training samples
        test: strata of the test samples
        number: number of strata
        name: what a stratum is
    """

    train: Index
    test: Index
    number: int
    name: str


def strata(data: Data, column: int = 0) -> Strata:
    """Return the classes of samples or, where targets are no classes, the quantiles of one number of the target.

    Quantiles are those of the training samples: each holds an equal part of them if no two are equal.
    """
    if data.classes:
        return Strata(data.train.labels, data.test.labels, data.classes, "class")
    train, test = numbers(data.train.y, column), numbers(data.test.y, column)
    parts = max(1, min(MOST, len(test) // LEAST)) if len(test) else MOST
    edges = np.quantile(train, np.arange(1, parts) / parts, method="inverted_cdf") if len(train) else np.empty(0)
    found = [np.searchsorted(edges, values).astype(np.int64) for values in (train, test)]
    return Strata(found[0], found[1], parts, "quantile of the target")


def ranks(data: Data, column: int) -> Index:
    """Return the rank of each training sample by one number of its target; equal targets have equal ranks."""
    rank: Index = np.unique(numbers(data.train.y, column), return_inverse=True)[1].astype(np.int64)
    return rank


def numbers(targets: Tensor, column: int) -> npt.NDArray[np.float64]:
    """Return one number of each target."""
    rows = targets.reshape(len(targets), targets.shape[1:].numel())
    require((0 <= column < rows.shape[1], f"column must be from 0 to {rows.shape[1] - 1}, got {column}"))
    values: npt.NDArray[np.float64] = rows[:, column].cpu().double().numpy()
    return values
