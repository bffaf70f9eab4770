"""Squared distances between the gradients of clients, for gradients that do not fit into memory together.

``GradientTable`` stores one gradient per client, in memory up to a limit and beyond it in a temporary file (``Rows``).
With a ``Sketch`` it stores short vectors instead. Distances are computed in float64, one block of columns at a time.
Clients are sorted first, so the result does not depend on the order of arrival.

With unequal models, a client holds only some entries of the gradient. The other entries are NaN. A pair is compared
over the entries that both hold, without rescaling: clients with few common entries have little to differ in. Clients
without common entries have infinite distance, so neither learns from the other.

All pairs are one matrix product, by ``|x - y|^2 = |x|^2 + |y|^2 - 2 <x, y>``. With x and y zero at missing entries, and
0/1 masks m and k, it is ``x^2 k' + m y^2' - 2 x y'``. The formula cancels if two rows are much closer to each other
than to zero. The mean of all rows is therefore subtracted first, which changes no distance. Pairs that still come out
small relative to their squares are computed again, entry by entry. Everything after the product is done in place, a few
rows at a time (``block_rows``), so that few matrices of all pairs exist at once.

**Sketches.** Charikar, Chen and Farach-Colton, Finding Frequent Items in Data Streams, ICALP 2002,
https://doi.org/10.1007/3-540-45465-9_59. Short vectors have the same squared distances as long ones, in expectation:
each entry of a vector is added, with a random sign, to one of ``size`` numbers. Signs and indices are computed from a
random key, block by block, so no matrix is stored. All vectors must be reduced with the same key. The squared norm of a
sketch is an unbiased estimate of the squared norm of the vector x. Its variance is ``2 / size (|x|^4 - sum x_i^4)``, so
the relative standard error is at most sqrt(2 / size) for any vector. Sketches are linear, so the same holds for
distances. The rotation in ``gossamer.parts.codecs.rotation`` with some entries kept is an alternative for evenly spread
vectors. But it mixes blocks of 8192 entries only, and two models often differ in a single layer.
"""

import math
import shutil
import tempfile
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from gossamer.core.errors import PayloadError, require, wrong
from gossamer.core.random import Key, fold, words
from gossamer.core.random.streams import LOW
from gossamer.core.wire import all_finite

Array = npt.NDArray[Any]

CLOSE = 1e-4
"""A pair is computed again if its squared distance is below this fraction of the sum of its squares."""

ENTRIES = 2**20
"""Numbers per block: 8 MiB."""

BLOCK = 2**18
"""Numbers per block of rows of a matrix of all pairs: 2 MiB."""

LIMIT = 256 * 2**20
"""Bytes of gradients that are kept in memory."""

CHUNK = 2**20
"""Entries of a vector that are sketched at a time."""


def centred(x: Tensor, masked: bool) -> Tensor:
    """Return the rows minus their mean. ``masked`` allows NaN for missing entries, here and below."""
    return x - (x.nanmean(0) if masked else x.mean(0))


def products(x: Tensor, y: Tensor, masked: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Return squared distance, sum of squares and number of common entries for all pairs of rows.

    The results of disjoint blocks of columns add up. Without masks, the third one is a single number.
    """
    if not masked:
        inner = x @ y.T
        own = inner.diagonal().clone() if x is y else torch.linalg.vecdot(x, x)
        squares = own[:, None] + (own if x is y else torch.linalg.vecdot(y, y))
        return inner.mul_(-2).add_(squares), squares, torch.tensor(float(x.shape[1]))
    mine, theirs = (~x.isnan()).double(), (~y.isnan()).double()
    x, y = x.nan_to_num(0), y.nan_to_num(0)
    squares = x.square() @ theirs.T + mine @ y.square().T
    return squares - 2 * x @ y.T, squares, mine @ theirs.T


def block_rows(columns: int) -> int:
    """Return the number of rows of a block with at most ``BLOCK`` entries, at least one."""
    return max(1, BLOCK // max(1, columns))


def row_blocks(count: int) -> list[slice]:
    """Return slices of ``block_rows(count)`` rows each.

    >>> row_blocks(600)
    [slice(0, 436, None), slice(436, 600, None)]
    """
    step = block_rows(count)
    return [slice(start, min(start + step, count)) for start in range(0, count, step)]


def close(apart: Tensor, squares: Tensor) -> Tensor:
    """Return the indices [pairs, 2] of pairs that must be computed again, including those with overflow or NaN."""
    return (~(apart >= CLOSE * squares)).nonzero()


def differences(x: Tensor, y: Tensor, pairs: Tensor) -> Tensor:
    """Return the squared distances of some pairs of rows of ``x`` and ``y``, computed entry by entry."""
    blocks = torch.split(pairs, max(1, ENTRIES // max(1, x.shape[1])))
    return torch.cat([(x[block[:, 0]] - y[block[:, 1]]).square().nansum(1) for block in blocks])


def rows_apart(rows: Tensor, vectors: Tensor) -> Tensor:
    """Return the squared distances from some rows of ``vectors`` to all rows. The mean of all should be near zero."""
    own = vectors[rows]
    apart, squares, _ = products(own, vectors, masked=False)
    again = close(apart, squares)
    apart[again[:, 0], again[:, 1]] = differences(own, vectors, again)
    return apart.clamp(min=0)


def mirrored(upper: Tensor) -> Tensor:
    """Copy the entries above the diagonal below it, in place. The diagonal becomes 0.

    >>> mirrored(torch.tensor([[7.0, 1.0], [8.0, 9.0]]))
    tensor([[0., 1.],
            [1., 0.]])
    """
    for rows in row_blocks(len(upper)):
        upper[rows, : rows.start] = upper[: rows.start, rows].T
        corner = upper[rows, rows].triu(1)
        upper[rows, rows] = corner + corner.T
    return upper


@dataclass
class Rows:
    """Append-only matrix: rows in memory up to a limit, further rows in a temporary file.

    Args:
        size: number of columns
        dtype: data type of the entries
        limit: bytes that are kept in memory
    """

    size: int
    dtype: npt.DTypeLike
    limit: int
    _near: list[Array] = field(default_factory=list)
    _far: int = 0  # number of rows in the file, after those in memory
    _file: Path | None = None

    def __len__(self) -> int:
        return len(self._near) + self._far

    def append(self, row: Array) -> None:
        """Append a row."""
        if not self._far and (len(self._near) + 1) * row.nbytes <= self.limit:
            self._near.append(row.copy())
        else:
            with self._path().open("ab") as file:
                row.tofile(file)
            self._far += 1

    def columns(self, start: int, stop: int) -> Array:
        """Return some columns of all rows as a new array."""
        found = np.empty((len(self), stop - start), dtype=self.dtype)
        for row, near in zip(found, self._near, strict=False):
            row[:] = near[start:stop]
        if self._far:
            far = np.memmap(self._path(), dtype=self.dtype, mode="r", shape=(self._far, self.size))
            found[len(self._near) :] = far[:, start:stop]
        return found

    def _path(self) -> Path:
        if self._file is None:
            folder = tempfile.mkdtemp(prefix="gossamer-")
            weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
            self._file = Path(folder) / "rows"
        return self._file


@dataclass(frozen=True)
class Sketch:
    """A count sketch, the same for all clients.

    Args:
        size: length of a sketch
        key: random key of the signs and indices
    """

    size: int
    key: Key

    def __post_init__(self) -> None:
        require((0 < self.size <= 2**30, wrong(self, "size", "must be from 1 to 2**30")))

    @property
    def error(self) -> float:
        """The maximum relative standard error of a squared distance."""
        return math.sqrt(2 / self.size)

    def reduce(self, vector: Tensor) -> Tensor:
        """Return the sketch of a vector as float64. A vector of at most ``size`` entries is returned as it is."""
        if len(vector) <= self.size:
            return vector.to("cpu", torch.float64)
        # On the CPU, where the order of additions is deterministic. On a GPU it is not.
        total, start = torch.zeros(self.size, dtype=torch.float64), 0
        for piece in torch.split(vector, CHUNK):
            drawn = words(fold(self.key, "sketch"), len(piece), start=start)
            index = (drawn >> 32 & LOW) * self.size >> 32
            entries = piece.to("cpu", torch.float64)
            total.index_add_(0, index, torch.where(drawn & 1 == 1, -entries, entries))
            start += len(piece)
        return total


@dataclass
class GradientTable:
    """The gradients of clients, and the squared distances between them.

    Args:
        sketch: the sketch that reduces gradients; ``None`` stores full gradients, and distances are exact
        limit: bytes that are kept in memory

    >>> table = GradientTable()
    >>> table.add(7, torch.tensor([1.0, 0.0]))
    >>> table.add(3, torch.tensor([1.0, 2.0]))
    >>> table.distances()
    ([3, 7], tensor([[0., 4.],
            [4., 0.]], dtype=torch.float64))
    """

    sketch: Sketch | None = None
    limit: int = LIMIT
    _clients: dict[int, int] = field(default_factory=dict)  # row of each client
    _kind: tuple[int, torch.dtype] | None = None  # length and type of all vectors
    _masked: bool = False
    _rows: Rows | None = None

    def add(self, client: int, vector: Tensor, held: Tensor | None = None) -> None:
        """Store the gradient of a client. ``held`` is 1 at the entries of the model that the client holds, else 0."""
        self._check(client, vector, held)
        vector = vector.detach() if held is None else torch.where(held.bool(), vector.detach(), 0)
        if not all_finite(vector):
            raise PayloadError(f"the gradient of client {client} is not finite: leave the client out")
        kept = vector if self.sketch is None else self.sketch.reduce(vector)
        if held is not None:
            kept = torch.where(held.bool(), kept, torch.nan)
        row = (kept if kept.dtype == torch.float64 else kept.float()).cpu().numpy()
        self._kind = self._kind or (len(vector), vector.dtype)
        self._append(client, row)
        self._masked |= held is not None

    def _append(self, client: int, row: Array) -> None:
        self._rows = self._rows or Rows(len(row), row.dtype, self.limit)
        self._clients[client] = len(self._rows)
        self._rows.append(row)

    def recall(self, clients: Sequence[int], kept: Tensor) -> None:
        """Restore rows from ``kept`` of another table, one per client."""
        for client, row in zip(clients, kept.cpu().numpy(), strict=True):
            self._append(client, row)
        self._masked |= bool(kept.isnan().any())

    def distances(self) -> tuple[list[int], Tensor]:
        """Return the clients in ascending order, and their pairwise squared distances, [clients, clients].

        The matrix is symmetric and non-negative, with zeros on the diagonal.
        """
        count = len(self._clients)
        apart, squares, common = (torch.zeros(shape, dtype=torch.float64) for shape in self._shapes(count))
        for block in self._blocks():
            for total, part in zip((apart, squares, common), products(block, block, self._masked), strict=True):
                total += part
        for rows in row_blocks(count):
            again = close(apart[rows].triu(1 + rows.start), squares[rows].triu(1 + rows.start))
            again[:, 0] += rows.start
            if len(again):
                apart[again[:, 0], again[:, 1]] = self._again(again)
        del squares
        apart.clamp_(min=0)
        if self._masked:
            apart.masked_fill_(common == 0, torch.inf)
        return sorted(self._clients), mirrored(apart)

    def _shapes(self, count: int) -> tuple[tuple[int, ...], ...]:
        """Return the shapes of the results of ``products``."""
        return (count, count), (count, count), (count, count) if self._masked else ()

    def _again(self, pairs: Tensor) -> Tensor:
        """Return the squared distances of some pairs, computed entry by entry."""
        exact = torch.zeros(len(pairs), dtype=torch.float64)
        for block in self._blocks():
            exact += differences(block, block, pairs)
        return exact

    def kept(self) -> tuple[list[int], Tensor]:
        """Return the clients in ascending order, and their rows for ``recall``, with NaN at missing entries."""
        order = [self._clients[client] for client in sorted(self._clients)]
        rows = np.zeros((0, 0)) if self._rows is None else self._rows.columns(0, self._rows.size)
        return sorted(self._clients), torch.from_numpy(rows[order])

    def vectors(self) -> tuple[list[int], Tensor]:
        """Return the clients in ascending order, and their stored vectors, [clients, numbers], as float64."""
        require((not self._masked, "GradientTable.vectors: clients hold unequal parts: use distances()"))
        return sorted(self._clients), self._columns(0, 0 if self._rows is None else self._rows.size)

    def _blocks(self) -> Iterator[Tensor]:
        """Yield blocks of columns of all rows, in client order, with zero mean."""
        size = 0 if self._rows is None else self._rows.size
        step = max(1, ENTRIES // max(1, len(self._clients)))
        for start in range(0, size, step):
            yield centred(self._columns(start, min(start + step, size)), self._masked)

    def _columns(self, start: int, stop: int) -> Tensor:
        if self._rows is None:
            return torch.zeros(0, 0, dtype=torch.float64)
        order = torch.tensor([self._clients[client] for client in sorted(self._clients)])
        return torch.from_numpy(self._rows.columns(start, stop))[order].double()

    def _check(self, client: int, vector: Tensor, held: Tensor | None) -> None:
        where = f"GradientTable.add: the gradient of client {client}"
        kind = self._kind or (vector.numel(), vector.dtype)
        require(
            (client not in self._clients, f"{where} was added before: make a new table for each comparison"),
            (vector.dim() == 1, f"{where} must be a flat vector, got {vector.dim()} dimensions"),
            (vector.is_floating_point(), f"{where} must have a floating-point type, got {vector.dtype}"),
            (
                (vector.numel(), vector.dtype) == kind,
                f"{where} has {vector.numel()} entries of {vector.dtype}, expected {kind[0]} of {kind[1]}",
            ),
        )
        if held is not None:
            require(
                (
                    self.sketch is None,
                    "GradientTable.add: a sketch cannot compare unequal parts: omit sketch or held",
                ),
                (held.shape == vector.shape, f"{where}: held must have the shape of the gradient"),
                (bool(((held == 0) | (held == 1)).all()), f"{where}: held must be 0 or 1"),
            )
