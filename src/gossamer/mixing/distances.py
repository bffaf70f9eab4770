"""How far clients' gradients are from one another, as they stream in, without holding all of them in memory.

A gallery keeps each client's gradient: in memory up to a limit, beyond it in a temporary file. When all are there it
reads them a block of columns at a time and adds up the products of all pairs, in double precision. Clients are put in
order first, so that it does not matter who came first. With a :class:`~gossamer.mixing.Sketch` it keeps a few numbers
of each instead.

Where models are unequal, a client holds some entries of the gradient. Two clients are then compared over the entries
that both hold, and the sum is scaled by nothing: clients that share little have little to differ in. Two that share
nothing cannot be compared: they are infinitely far apart, so that neither learns from the other.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from gossamer.errors import PayloadError, require
from gossamer.mixing import pairs
from gossamer.mixing.sketch import Sketch
from gossamer.mixing.store import Array, Rows
from gossamer.wire import all_finite

LIMIT = 256 * 2**20
"""Bytes that are kept in memory."""


@dataclass
class Gallery:
    """The gradients of some clients, to be compared.

    sketch: what they are reduced by; ``None`` keeps them as they are, and distances are exact
    limit: bytes that are kept in memory

    >>> gallery = Gallery()
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
            total += pairs.products(block, block, self._masked)
        apart, squares, common = total
        again = pairs.close(apart.triu(1), squares.triu(1))
        if len(again):
            exact = torch.zeros(len(again), dtype=torch.float64)
            for block in self._blocks():
                exact += pairs.differences(block, block, again)
            apart[again[:, 0], again[:, 1]] = exact
        upper = apart.clamp(min=0).masked_fill(common == 0, torch.inf).triu(1)
        return sorted(self._clients), upper + upper.T

    def kept(self) -> tuple[list[int], Tensor]:
        """The clients in ascending order, and what :meth:`recall` takes of them; NaN for entries they do not hold."""
        order = [self._clients[client] for client in sorted(self._clients)]
        rows = np.zeros((0, 0)) if self._rows is None else self._rows.columns(0, self._rows.size)
        return sorted(self._clients), torch.from_numpy(rows[order])

    def vectors(self) -> tuple[list[int], Tensor]:
        """The clients in ascending order, and all that is kept of them at once, [clients, numbers], as float64."""
        require((not self._masked, "Gallery.vectors: clients hold unequal parts: there is only distances()"))
        return sorted(self._clients), self._columns(0, 0 if self._rows is None else self._rows.size)

    def _blocks(self) -> Iterator[Tensor]:
        """Some columns of all rows at a time, in the order of clients, with zero mean."""
        size = 0 if self._rows is None else self._rows.size
        step = max(1, pairs.ENTRIES // max(1, len(self._clients)))
        for start in range(0, size, step):
            yield pairs.centred(self._columns(start, min(start + step, size)), self._masked)

    def _columns(self, start: int, stop: int) -> Tensor:
        if self._rows is None:
            return torch.zeros(0, 0, dtype=torch.float64)
        order = torch.tensor([self._clients[client] for client in sorted(self._clients)])
        return torch.from_numpy(self._rows.columns(start, stop))[order].double()

    def _check(self, client: int, vector: Tensor, held: Tensor | None) -> None:
        where = f"Gallery.add: the gradient of client {client}"
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
                (self.sketch is None, "Gallery.add: a sketch cannot compare unequal parts: leave out sketch or held"),
                (held.shape == vector.shape, f"{where} needs one entry of held for each of its own"),
                (bool(((held == 0) | (held == 1)).all()), f"{where}: held must be 0 or 1"),
            )
