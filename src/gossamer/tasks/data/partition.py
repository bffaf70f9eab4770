"""A split as a value: which samples each client trains on, and which it is tested on.

Clients are kept back to back in one array with offsets, so that a hundred thousand of them are four arrays and not a
hundred thousand lists. A split is stored with the run that uses it: the way from a seed to a split may change between
releases, the split of a run may not.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from gossamer.core.errors import RunError

Index = npt.NDArray[np.int64]

NOBODY = -1


@dataclass(frozen=True, eq=False)
class Split:
    """Samples by client: client c trains on ``train_index[train_start[c]:train_start[c + 1]]``, ascending."""

    train_index: Index
    train_start: Index
    test_index: Index
    test_start: Index

    @property
    def clients(self) -> int:
        """How many clients there are."""
        return len(self.train_start) - 1

    def train(self, client: int) -> Index:
        """Training samples of one client."""
        return self.train_index[self.train_start[client] : self.train_start[client + 1]]

    def test(self, client: int) -> Index:
        """Test samples of one client; those of different clients may overlap."""
        return self.test_index[self.test_start[client] : self.test_start[client + 1]]

    def sizes(self) -> Index:
        """Training samples a client, for all clients."""
        return np.diff(self.train_start)

    def owners(self) -> Index:
        """The client of each entry of ``train_index``."""
        return np.repeat(np.arange(self.clients), self.sizes())

    def unused(self, n_train: int) -> int:
        """How many of ``n_train`` training samples no client holds."""
        return n_train - len(self.train_index)

    def counts(self, labels: Index, classes: int) -> Index:
        """Training samples by client and class, [clients, classes]."""
        cell = self.owners() * classes + labels[self.train_index]
        return np.bincount(cell, minlength=self.clients * classes).reshape(self.clients, classes)

    def pooled(self, n_test: int) -> "Split":
        """One client that holds what all of them hold and is tested on everything: training without federation."""
        train = np.sort(self.train_index)
        return Split(train, np.array([0, len(train)]), np.arange(n_test), np.array([0, n_test]))

    @classmethod
    def alone(cls, client: int | None, clients: int, n_train: int, n_test: int) -> "Split":
        """All samples at one of so many clients, or at none of them."""
        here = np.arange(clients) == (NOBODY if client is None else client)
        train, test = here * n_train, here * n_test
        return cls(np.arange(train.sum()), offsets(train), np.arange(test.sum()), offsets(test))

    def tensors(self) -> dict[str, Tensor]:
        """The split as tensors, to be stored."""
        return {name: torch.from_numpy(np.ascontiguousarray(array)) for name, array in vars(self).items()}

    @classmethod
    def from_tensors(cls, stored: Mapping[str, Tensor]) -> "Split":
        """Read what ``tensors`` wrote; what is no split is refused."""
        names = ("train_index", "train_start", "test_index", "test_start")
        if set(stored) != set(names) or any(stored[n].dtype != torch.int64 or stored[n].dim() != 1 for n in names):
            raise RunError(f"the stored split is damaged: it must hold {', '.join(names)}, each a row of int64")
        split = cls(*(stored[name].cpu().numpy() for name in names))
        for index, start in ((split.train_index, split.train_start), (split.test_index, split.test_start)):
            if not _fits(index, start) or len(start) != len(split.train_start):
                raise RunError("the stored split is damaged: its offsets do not fit its samples")
        return split

    def digest(self) -> str:
        """SHA-256 of the four arrays."""
        total = hashlib.sha256()
        for array in vars(self).values():
            total.update(len(array).to_bytes(8, "little"))
            total.update(np.ascontiguousarray(array, dtype="<i8").data)
        return total.hexdigest()

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Split):
            return NotImplemented
        return all(np.array_equal(mine, vars(other)[name]) for name, mine in vars(self).items())

    def __hash__(self) -> int:
        return hash(self.digest())


def _fits(index: Index, start: Index) -> bool:
    if len(start) < 2 or start[0] != 0 or start[-1] != len(index) or bool((np.diff(start) < 0).any()):
        return False
    return len(index) == 0 or int(index.min()) >= 0


def offsets(sizes: Index) -> Index:
    """Where each of a row of pieces begins, and where the last one ends."""
    return np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(sizes, dtype=np.int64)])


def even(n: int, pieces: int) -> Index:
    """Sizes of ``n`` things in ``pieces`` equal pieces; the first have one more where it does not divide."""
    return n // pieces + (np.arange(pieces) < n % pieces).astype(np.int64)


def ranges(sizes: Index) -> Index:
    """0, 1, ... up to each size, one after another.

    >>> ranges(np.array([2, 0, 3]))
    array([0, 1, 0, 1, 2])
    """
    return np.arange(sizes.sum()) - np.repeat(offsets(sizes)[:-1], sizes)


def order_of(keys: Index) -> Index:
    """The stable argsort of small whole numbers, such as clients or classes.

    Sorting key and place as one number is several times as fast as NumPy's argsort on millions of samples.
    """
    n = max(len(keys), 1)
    return np.sort(keys * n + np.arange(len(keys))) % n


def grouped(owner: Index, clients: int) -> tuple[Index, Index]:
    """Samples by owner, ascending within each, and their offsets; owner ``NOBODY`` leaves a sample out."""
    order = order_of(owner)
    order = order[np.count_nonzero(owner == NOBODY) :]
    return order, offsets(np.bincount(owner[order], minlength=clients))
