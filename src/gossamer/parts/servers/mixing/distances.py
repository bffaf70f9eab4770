"""How far clients' gradients are from one another, as they stream in, without holding all of them in memory.

A gallery keeps each client's gradient: in memory up to a limit, beyond it in a temporary file. When all are there it
reads them a block of columns at a time and adds up the products of all pairs, in double precision. Clients are put in
order first, so that it does not matter who came first. With a ``Sketch`` it keeps a
few numbers of each instead.

Where models are unequal, a client holds some entries of the gradient. Two clients are then compared over the entries
that both hold, and the sum is scaled by nothing: clients that share little have little to differ in. Two that share
nothing cannot be compared: they are infinitely far apart, so that neither learns from the other.

Squared distances between rows, as accurate for rows that are close as for those far apart.

By ``|x - y|^2 = |x|^2 + |y|^2 - 2 <x, y>`` all pairs are one product of matrices, but what is left of a difference has
few right digits where two rows are much closer to each other than to zero. Two things help: the mean of all rows is
taken off first, which changes no distance; and pairs that come out small beside what they are the difference of are
done again, entry by entry.

An entry that a row does not have is NaN, and a pair is compared over the entries that both have. With x and y zero
where they have none, and 0/1 masks m and k, that is ``x^2 k' + m y^2' - 2 x y'``.

Rows of numbers that are together larger than memory: read back a block of columns at a time.
"""

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

from gossamer.core.errors import PayloadError, require
from gossamer.core.wire import all_finite
from gossamer.parts.servers.mixing.sketch import Sketch

CLOSE = 1e-4
"""Pairs are done again that come out below this part of the squares which they are the difference of."""

ENTRIES = 2**20
"""How many numbers a block has: 8 MiB."""


def centred(x: Tensor, masked: bool) -> Tensor:
    """The rows less the mean of those that have each entry. Without ``masked`` no entry is NaN, here and below."""
    return x - (x.nanmean(0) if masked else x.mean(0))


def products(x: Tensor, y: Tensor, masked: bool) -> Tensor:
    """For all pairs of a row of ``x`` and one of ``y``: squared distance, squares, common entries, [3, rows, rows].

    Those of some columns and of the others sum to those of all.
    """
    if not masked:
        inner = x @ y.T
        own = inner.diagonal() if x is y else torch.linalg.vecdot(x, x)
        squares = own[:, None] + (own if x is y else torch.linalg.vecdot(y, y))
        return torch.stack((squares - 2 * inner, squares, torch.full_like(squares, x.shape[1])))
    mine, theirs = (~x.isnan()).double(), (~y.isnan()).double()
    x, y = x.nan_to_num(0), y.nan_to_num(0)
    squares = x.square() @ theirs.T + mine @ y.square().T
    return torch.stack((squares - 2 * x @ y.T, squares, mine @ theirs.T))


def close(apart: Tensor, squares: Tensor) -> Tensor:
    """Positions [pairs, 2] of pairs that must be done again; those whose squares have no form as a float are, too."""
    return (~(apart >= CLOSE * squares)).nonzero()


def differences(x: Tensor, y: Tensor, pairs: Tensor) -> Tensor:
    """The squared distance of some pairs of a row of ``x`` and one of ``y``, entry by entry, a block at a time."""
    blocks = torch.split(pairs, max(1, ENTRIES // max(1, x.shape[1])))
    return torch.cat([(x[block[:, 0]] - y[block[:, 1]]).square().nansum(1) for block in blocks])


Array = npt.NDArray[Any]


@dataclass
class Rows:
    """Rows of one length and type, in the order in which they came: in memory, beyond the limit in a temporary file.

    Args:
        size: how many numbers a row has
        dtype: of which type they are
        limit: bytes that are kept in memory
    """

    size: int
    dtype: npt.DTypeLike
    limit: int
    _near: list[Array] = field(default_factory=list)
    _far: int = 0  # how many are in the file, all of them after the near ones
    _file: Path | None = None

    def __len__(self) -> int:
        return len(self._near) + self._far

    def append(self, row: Array) -> None:
        """Keep one more row."""
        if not self._far and (len(self._near) + 1) * row.nbytes <= self.limit:
            self._near.append(row.copy())
        else:
            with self._place().open("ab") as file:
                row.tofile(file)
            self._far += 1

    def columns(self, start: int, stop: int) -> Array:
        """Some columns of all rows, as a new array."""
        found = np.empty((len(self), stop - start), dtype=self.dtype)
        for row, near in zip(found, self._near, strict=False):
            row[:] = near[start:stop]
        if self._far:
            far = np.memmap(self._place(), dtype=self.dtype, mode="r", shape=(self._far, self.size))
            found[len(self._near) :] = far[:, start:stop]
        return found

    def _place(self) -> Path:
        if self._file is None:
            folder = tempfile.mkdtemp(prefix="gossamer-")
            weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
            self._file = Path(folder) / "rows"
        return self._file


LIMIT = 256 * 2**20
"""Bytes that are kept in memory."""


@dataclass
class GradientTable:
    """The gradients of some clients, to be compared.

    Args:
        sketch: what they are reduced by; ``None`` keeps them as they are, and distances are exact
        limit: bytes that are kept in memory

    >>> gallery = GradientTable()
    >>> gallery.add(7, torch.tensor([1.0, 0.0]))
    >>> gallery.add(3, torch.tensor([1.0, 2.0]))
    >>> gallery.distances()
    ([3, 7], tensor([[0., 4.],
            [4., 0.]], dtype=torch.float64))
    """

    sketch: Sketch | None = None
    limit: int = LIMIT
    _clients: dict[int, int] = field(default_factory=dict)  # the number of each one's row
    _kind: tuple[int, torch.dtype] | None = None  # of all vectors: how long and of which type
    _masked: bool = False
    _rows: Rows | None = None

    def add(self, client: int, vector: Tensor, held: Tensor | None = None) -> None:
        """Keep a client's gradient; ``held`` has 1 where the client holds an entry of the model, and 0 elsewhere."""
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
        """Take up what another gallery has kept: of each client a row."""
        for client, row in zip(clients, kept.cpu().numpy(), strict=True):
            self._append(client, row)
        self._masked |= bool(kept.isnan().any())

    def distances(self) -> tuple[list[int], Tensor]:
        """The clients in ascending order, and the squared distance of each two of them, [clients, clients].

        It is symmetric, never negative, and exactly 0 from a client to itself.
        """
        total = torch.zeros(3, len(self._clients), len(self._clients), dtype=torch.float64)
        for block in self._blocks():
            total += products(block, block, self._masked)
        apart, squares, common = total
        again = close(apart.triu(1), squares.triu(1))
        if len(again):
            exact = torch.zeros(len(again), dtype=torch.float64)
            for block in self._blocks():
                exact += differences(block, block, again)
            apart[again[:, 0], again[:, 1]] = exact
        upper = apart.clamp(min=0).masked_fill(common == 0, torch.inf).triu(1)
        return sorted(self._clients), upper + upper.T

    def kept(self) -> tuple[list[int], Tensor]:
        """The clients in ascending order, and what ``recall`` takes of them; NaN for entries they do not hold."""
        order = [self._clients[client] for client in sorted(self._clients)]
        rows = np.zeros((0, 0)) if self._rows is None else self._rows.columns(0, self._rows.size)
        return sorted(self._clients), torch.from_numpy(rows[order])

    def vectors(self) -> tuple[list[int], Tensor]:
        """The clients in ascending order, and all that is kept of them at once, [clients, numbers], as float64."""
        require((not self._masked, "GradientTable.vectors: clients hold unequal parts: there is only distances()"))
        return sorted(self._clients), self._columns(0, 0 if self._rows is None else self._rows.size)

    def _blocks(self) -> Iterator[Tensor]:
        """Some columns of all rows at a time, in the order of clients, with zero mean."""
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
            (client not in self._clients, f"{where} was added before: make a new gallery for each comparison"),
            (vector.dim() == 1, f"{where} must be a flat vector, got {vector.dim()} dimensions"),
            (vector.is_floating_point(), f"{where} must be of a floating-point type, got {vector.dtype}"),
            (
                (vector.numel(), vector.dtype) == kind,
                f"{where} has {vector.numel()} entries of {vector.dtype}, others {kind[0]} of {kind[1]}",
            ),
        )
        if held is not None:
            require(
                (
                    self.sketch is None,
                    "GradientTable.add: a sketch cannot compare unequal parts: leave out sketch or held",
                ),
                (held.shape == vector.shape, f"{where} needs one entry of held for each of its own"),
                (bool(((held == 0) | (held == 1)).all()), f"{where}: held must be 0 or 1"),
            )
