"""The partition of samples over clients: each client's training and test samples.

Clients are stored back to back in one array with offsets: four arrays instead of one list per client. A run stores its
split, because the draw of a split from a seed may change between releases.
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
    """Samples by client: client c trains on ``train_index[train_start[c]:train_start[c + 1]]``, in ascending order."""

    train_index: Index
    train_start: Index
    test_index: Index
    test_start: Index

    @property
    def clients(self) -> int:
        """Number of clients."""
        return len(self.train_start) - 1

    def train(self, client: int) -> Index:
        """Return the indices of a client's training samples."""
        return self.train_index[self.train_start[client] : self.train_start[client + 1]]

    def test(self, client: int) -> Index:
        """Return the indices of a client's test samples; test sets of different clients may overlap."""
        return self.test_index[self.test_start[client] : self.test_start[client + 1]]

    def sizes(self) -> Index:
        """Return the number of training samples of each client."""
        return np.diff(self.train_start)

    def owners(self) -> Index:
        """Return the client of each entry of ``train_index``."""
        return np.repeat(np.arange(self.clients), self.sizes())

    def unused(self, n_train: int) -> int:
        """Return how many of ``n_train`` training samples belong to no client."""
        return n_train - len(self.train_index)

    def counts(self, labels: Index, classes: int) -> Index:
        """Return the numbers of training samples by client and class, [clients, classes]."""
        cell = self.owners() * classes + labels[self.train_index]
        return np.bincount(cell, minlength=self.clients * classes).reshape(self.clients, classes)

    def hold_out(self, every: int) -> tuple["Split", "Split", Index]:
        """Hold out every n-th training sample of each client, for validation.

        Return the split without held-out samples, the same with each client's held-out samples as its test samples, and
        the indices of all held-out samples, ascending, which the second split counts. A sample that several clients
        share is held out for all of them.
        """
        chosen = np.unique(self.train_index[ranges(self.sizes()) % every == every - 1])
        held = np.isin(self.train_index, chosen)
        starts = [offsets(np.bincount(self.owners()[part], minlength=self.clients)) for part in (~held, held)]
        own = np.searchsorted(chosen, self.train_index[held])
        rest = Split(self.train_index[~held], starts[0], self.test_index, self.test_start)
        return rest, Split(rest.train_index, rest.train_start, own, starts[1]), chosen

    def pooled(self, n_test: int) -> "Split":
        """Return one client with all training and test samples: training without federation."""
        train = np.sort(self.train_index)
        return Split(train, np.array([0, len(train)]), np.arange(n_test), np.array([0, n_test]))

    @classmethod
    def alone(cls, client: int | None, clients: int, n_train: int, n_test: int) -> "Split":
        """Return a split with all samples at one client, or at none."""
        here = np.arange(clients) == (NOBODY if client is None else client)
        train, test = here * n_train, here * n_test
        return cls(np.arange(train.sum()), offsets(train), np.arange(test.sum()), offsets(test))

    def tensors(self) -> dict[str, Tensor]:
        """Return the split as tensors, for a file."""
        return {name: torch.from_numpy(np.ascontiguousarray(array)) for name, array in vars(self).items()}

    @classmethod
    def from_tensors(cls, stored: Mapping[str, Tensor]) -> "Split":
        """Read the tensors that ``tensors`` returned; refuse invalid ones."""
        names = ("train_index", "train_start", "test_index", "test_start")
        if set(stored) != set(names) or any(stored[n].dtype != torch.int64 or stored[n].dim() != 1 for n in names):
            raise RunError(f"the stored split is damaged: it must hold {', '.join(names)}, each a vector of int64")
        split = cls(*(stored[name].cpu().numpy() for name in names))
        for index, start in ((split.train_index, split.train_start), (split.test_index, split.test_start)):
            if not _fits(index, start) or len(start) != len(split.train_start):
                raise RunError("the stored split is damaged: its offsets do not fit its samples")
        return split

    def digest(self) -> str:
        """Return the SHA-256 of the four arrays."""
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
    """Return the start of each piece, and the end of the last one."""
    return np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(sizes, dtype=np.int64)])


def even(n: int, pieces: int) -> Index:
    """Return the sizes of ``pieces`` equal pieces of ``n`` items; the first ones have one more if necessary."""
    return n // pieces + (np.arange(pieces) < n % pieces).astype(np.int64)


def ranges(sizes: Index) -> Index:
    """Return 0, 1, ... up to each size, concatenated.

    >>> ranges(np.array([2, 0, 3]))
    array([0, 1, 0, 1, 2])
    """
    return np.arange(sizes.sum()) - np.repeat(offsets(sizes)[:-1], sizes)


def order_of(keys: Index) -> Index:
    """Return the stable argsort of small integers, such as clients or classes.

    Sorting key and index as one number is several times faster than NumPy's argsort for millions of samples.
    """
    n = max(len(keys), 1)
    return np.sort(keys * n + np.arange(len(keys))) % n


def grouped(owner: Index, clients: int) -> tuple[Index, Index]:
    """Return samples by owner, ascending within each, and their offsets; owner ``NOBODY`` excludes a sample."""
    order = order_of(owner)
    order = order[np.count_nonzero(owner == NOBODY) :]
    return order, offsets(np.bincount(owner[order], minlength=clients))
