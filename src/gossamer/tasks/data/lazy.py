"""Samples that are read from a data set when they are needed, in worker processes.

Targets are held in memory; inputs are read batch by batch. Batches are read in the order in which they were announced
(``announce``), a few ahead of training. What is read ahead stays below the budget. A process that may not start others
(a worker of ``side-by-side``) reads its own batches.

Random transforms of a data set draw from torch's, NumPy's and Python's generators. All three are seeded for each batch,
so the same run reads the same inputs again.
"""

import os
import random
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from multiprocessing import current_process
from typing import Any, ClassVar, NamedTuple
from weakref import WeakSet

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Subset

from gossamer.core.errors import ConfigError
from gossamer.core.random import Key, fold, key, seeded
from gossamer.tasks.data import nests
from gossamer.tasks.data.nests import Nest
from gossamer.tasks.data.partition import Index
from gossamer.tasks.data.samples import AnySamples, Batch

AHEAD = 4
"""Maximum number of batches that each worker reads ahead."""

CHECKED = 16
"""Number of samples whose content is part of the digest."""

ANY = key(0)

READERS: "WeakSet[Reader]" = WeakSet()
INHERITED: "list[Reader]" = []
"""Readers of the parent process; a forked process keeps them, because only the parent may stop their workers."""

os.register_at_fork(after_in_child=lambda: INHERITED.extend(READERS))


class Request(NamedTuple):
    """A batch to read: the indices of its samples, and the key of random transforms."""

    rows: tuple[int, ...]
    key: Key


@dataclass(frozen=True, eq=False)
class LazySamples(AnySamples):
    """Samples of a data set that is larger than the memory budget; ``x`` is the map-style data set of the inputs.

    Args:
        budget: maximum size of the batches that are read ahead, in bytes
        workers: number of processes that read
        device: device of the batches
    """

    budget: int = 0
    workers: int = 0
    device: torch.device | str = "cpu"
    _readers: "dict[int, Reader]" = field(default_factory=dict)  # by process: a forked one has its own
    lazy: ClassVar[bool] = True

    def __repr__(self) -> str:
        """Return the number of samples; none is read."""
        return f"<LazySamples: {len(self):,}, read when needed, targets {list(self.y.shape[1:])}>"

    def take(self, index: Index) -> "LazySamples":
        """Return the samples at ``index``, in that order."""
        group = None if self.group is None else self.group[index]
        y = self.y[torch.from_numpy(index).to(self.y.device)]
        return replace(self, x=Subset(self.x, index.tolist()), y=y, group=group, _readers={})

    def to(self, device: torch.device | str) -> "LazySamples":
        """Return the samples with batches and targets on a device."""
        return replace(self, y=self.y.to(device), device=device, _readers={})

    def example(self, count: int) -> Batch:
        """Return the first samples; with a count of 0 the shapes of one sample."""
        x, y = self.read(torch.arange(min(max(count, 1), len(self))))
        return nests.take(x, slice(count)), y[:count]

    def read(self, rows: Any) -> Batch:
        """Return the samples at ``rows``, an index tensor or a slice."""
        at = torch.arange(len(self))[rows].tolist()
        return nests.move(_batch(self.x, Request(tuple(at), ANY)), self.device), self.y[rows]

    def inputs_in_order(self, size: int, index: Tensor | None = None) -> Iterator[Nest]:
        """Yield the inputs of some samples, or of all, in batches of ``size``, or of fewer if these fit the budget."""
        rows = np.arange(len(self)) if index is None else index.cpu().numpy()
        size = min(size, self.fitting) if len(rows) else size
        pieces = [rows[start : start + size] for start in range(0, len(rows), size)]
        for request in self.announce((piece, ANY) for piece in pieces):
            yield self.fetch(request)[0]

    def announce(self, batches: Iterable[tuple[np.ndarray, Key]]) -> list[Request]:
        """Start reading batches, given by sample indices and the key of random transforms, in this order."""
        requests = [Request(tuple(rows.tolist()), key) for rows, key in batches]
        if self._parallel and requests:
            if os.getpid() not in self._readers:
                self._readers[os.getpid()] = Reader(self.x, self._in_flight(requests[0]), self.workers)
            self._readers[os.getpid()].announce(requests)
        return requests

    def fetch(self, request: Request) -> Batch:
        """Return an announced batch."""
        reader = self._readers.get(os.getpid())
        x = _batch(self.x, request) if reader is None else reader.fetch(request)
        return nests.move(x, self.device), self.y[torch.tensor(request.rows, device=self.y.device)]

    @property
    def _parallel(self) -> bool:
        return self.workers > 0 and not current_process().daemon

    @cached_property
    def _sample_size(self) -> int:
        """Size of one input in bytes; all inputs have the same shapes."""
        return nests.nbytes(_batch(self.x, Request((0,), ANY)))

    @property
    def fitting(self) -> int:
        """Number of samples per batch such that each worker can read one batch ahead."""
        return max(1, self.budget // max(1, 2 * self.workers * self._sample_size))

    def _in_flight(self, request: Request) -> int:
        """Return how many batches like this one fit the budget."""
        size = len(request.rows) * self._sample_size
        if size > self.budget:
            raise ConfigError(
                f"a batch of {len(request.rows)} samples has {size:,} bytes, above memory={self.budget:,}: "
                f"raise memory to {size} or more, or use a smaller batch"
            )
        return int(self.budget // max(size, 1))

    def content(self) -> Iterator[np.ndarray]:
        """Yield the targets and some inputs, for a digest."""
        at = torch.linspace(0, len(self) - 1, min(CHECKED, len(self))).long()
        yield from (tensor.cpu().numpy() for tensor in nests.leaves(self.read(at)[0]).values())
        yield self.y.cpu().numpy()

    def close(self) -> None:
        """Stop the worker processes."""
        self._readers.clear()


class Reader:
    """Reads batches in worker processes, in the order in which they were announced.

    A ``DataLoader`` asks for the next batch before the last one is used. If none is announced, it gets an empty one.
    """

    def __init__(self, inputs: "Dataset[Nest]", in_flight: int, workers: int) -> None:
        workers = max(1, min(workers, in_flight))
        self._waiting: deque[Request] = deque()
        self._read: dict[Request, deque[Nest]] = {}
        self._pending: Counter[Request] = Counter()
        loader: DataLoader[Any] = DataLoader(
            _Batches(inputs),
            sampler=_requests(self._waiting),
            batch_size=None,
            collate_fn=_as_it_is,
            num_workers=workers,
            prefetch_factor=max(1, min(AHEAD, in_flight // workers)),
            worker_init_fn=_one_thread,
        )
        self._batches = iter(loader)
        READERS.add(self)

    def announce(self, requests: Sequence[Request]) -> None:
        """Queue requests."""
        self._waiting.extend(requests)
        self._pending.update(requests)

    def fetch(self, request: Request) -> Nest:
        """Return an announced batch; those that come before it in the queue are kept until they are fetched."""
        if not self._pending[request]:
            raise ValueError(f"the batch {request} was not announced")
        self._pending[request] -= 1
        while not self._read.get(request):
            found = next(self._batches)
            if found is not None:
                self._read.setdefault(found[0], deque()).append(found[1])
        ready = self._read[request]
        x = ready.popleft()
        if not ready:
            del self._read[request]
        return x


def _requests(waiting: deque[Request]) -> Iterator[Request]:
    while True:
        yield waiting.popleft() if waiting else Request((), ANY)


class _Batches(Dataset[Any]):
    """Maps a request to itself and its batch."""

    def __init__(self, inputs: "Dataset[Nest]") -> None:
        self.inputs = inputs

    def __getitem__(self, request: Request) -> tuple[Request, Nest] | None:
        return (request, _batch(self.inputs, request)) if request.rows else None


def _batch(inputs: "Dataset[Nest]", request: Request) -> Nest:
    """Read a batch, with all generators seeded."""
    with all_seeded(request.key):
        return nests.stack([inputs[row] for row in request.rows])


@contextmanager
def all_seeded(key: Key) -> Iterator[None]:
    """Seed torch's, NumPy's and Python's generators from a key, and restore them afterwards."""
    own, legacy = random.getstate(), np.random.get_state()
    with seeded(fold(key, "read")):
        random.seed(key.a)
        np.random.seed(key.b % 2**32)
        try:
            yield
        finally:
            random.setstate(own)
            np.random.set_state(legacy)


def _as_it_is(batch: Any) -> Any:
    return batch


def _one_thread(worker: int) -> None:
    torch.set_num_threads(1)
