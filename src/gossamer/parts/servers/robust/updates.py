"""The updates of a round, as rules see them: vectors over the whole model that are decoded on demand.

The messages of a round wait as bytes until the last one has arrived. ``Received`` decodes them, and keeps the decoded
vectors only if together they are small: at most ``ENTRIES`` entries, or ``MODELS`` times the model. Otherwise each use
decodes again, so that the memory does not grow with the number of clients:

    mean, distances     one vector at a time: O(model); every use decodes each message once
    chunks              all clients for a range of entries. A codec decodes whole vectors only, so every chunk decodes
                        each message once: n updates are decoded n / MODELS times at most

A client with a part of the model has no opinion on other entries. ``held`` marks its entries. Its norm is scaled by the
square root of (entries of the model / entries that it holds), so that norms of parts of different sizes compare.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from gossamer.core import tree
from gossamer.core.exchange import Arrival
from gossamer.core.types import Layout, Params
from gossamer.parts.servers.mean import whole_vector

ENTRIES = 2**25
"""Decoded entries that are held at once, however small the model is: 128 MiB of float32."""

BLOCK = 2**20
"""Values that a rule works on at once."""

MODELS = 4
"""Decoded entries that are held at once, in units of the model's size."""


class Chunk(NamedTuple):
    """A range of entries of all updates.

    Args:
        at: the range
        rows: the entries of each update, zero where it does not hold them
        held: where an update holds an entry; none if all hold all
    """

    at: slice
    rows: Tensor
    held: Tensor | None


class Updates(ABC):
    """The updates of a round.

    Args:
        count: the number of updates
        size: the number of entries of the model
        partial: whether some client holds a part of the model
        small: whether decoded vectors are kept, so that using them again costs nothing
        like: a tensor with the type and the device of the vectors
    """

    count: int
    size: int
    partial: bool
    small: bool
    like: Tensor

    @abstractmethod
    def vector(self, index: int) -> Tensor:
        """Return one update over the whole model, zero at entries that it does not hold. It must not be modified."""

    @abstractmethod
    def held(self, index: int) -> Tensor | None:
        """Return where one update holds an entry; none if it holds all."""

    @property
    @abstractmethod
    def weights(self) -> Tensor:
        """The weights of the updates, in float64. Their sum is 1."""

    @property
    def equal_weights(self) -> Tensor:
        """Equal weights, whose sum is 1."""
        return torch.full((self.count,), 1 / self.count, dtype=torch.float64)

    @cached_property
    def scales(self) -> list[float]:
        """The factor of each update's norm, by the number of entries that it holds."""
        held = [self.held(index) for index in range(self.count)] if self.partial else [None] * self.count
        entries = [self.size if each is None else int(each.sum()) for each in held]
        return [math.sqrt(self.size / max(1, number)) for number in entries]

    def norms(self) -> Tensor:
        """Return the norm of each update, in float64."""
        return self.distances(self.like.new_zeros(1))

    def distances(self, center: Tensor) -> Tensor:
        """Return the distance of each update from a vector, over the entries that it holds, in float64."""
        return torch.tensor([self._distance(index, center) for index in range(self.count)], dtype=torch.float64)

    def _distance(self, index: int, center: Tensor) -> float:
        far, held = self.vector(index) - center, self.held(index)
        return length(far if held is None else far * held) * self.scales[index]

    def mean(self, weights: Tensor, factors: Tensor | None = None, center: Tensor | None = None) -> Tensor:
        """Return the weighted mean of the updates, per entry over those that hold it; 0 if none does.

        With factors a and a center c, the mean is that of c + a (x - c), relative to c.
        """
        total, cover = self.like.new_zeros(self.size), self.like.new_zeros(self.size if self.partial else 1)
        for index, weight in enumerate(weights.tolist()):
            if weight == 0:
                continue
            factor, held = 1.0 if factors is None else float(factors[index]), self.held(index)
            if factor > 0:  # an infinite distance has the factor 0
                away = self.vector(index) if center is None else self.vector(index) - center
                total.add_((away if held is None else away * held) * (factor * weight))
            cover.add_(weight if held is None else held.to(cover) * weight)
        return total / torch.where(cover > 0, cover, 1)

    def share(self, weights: Tensor) -> Tensor:
        """Return the weight of each entry's holders."""
        total = self.like.new_zeros(self.size)
        for index, weight in enumerate(weights.tolist()):
            held = self.held(index)
            total.add_(weight if held is None else held.to(total) * weight)
        return total

    def holders(self) -> Tensor:
        """Return the number of updates that hold each entry."""
        counts = torch.zeros(self.size, dtype=torch.int64, device=self.like.device)
        for index in range(self.count):
            held = self.held(index)
            counts.add_(1 if held is None else held)
        return counts

    def chunks(self) -> Iterator[Chunk]:
        """Yield all updates, a range of entries at a time. The next chunk replaces the rows of the last one."""
        most = BLOCK if self.small else max(ENTRIES, MODELS * self.size)
        width = min(self.size, max(1, most // self.count))
        room = self.like.new_empty(self.count * width)  # of one chunk after the other
        for start in range(0, self.size, width):
            at = slice(start, min(start + width, self.size))
            rows = room[: self.count * (at.stop - start)].view(self.count, -1)
            held = torch.ones(rows.shape, dtype=torch.bool, device=rows.device) if self.partial else None
            for index in range(self.count):
                rows[index] = self.vector(index)[at]
                mine = self.held(index)
                if held is not None and mine is not None:
                    held[index] = mine[at]
            yield Chunk(at, rows, held)


def blocks(chunk: Chunk) -> Iterator[tuple[Tensor, Tensor | None]]:
    """Yield the rows and the holders of a chunk, ``BLOCK`` values at a time: it bounds the memory of what follows."""
    width = max(1, BLOCK // len(chunk.rows))
    pieces = chunk.rows.split(width, 1)
    yield from zip(pieces, [None] * len(pieces) if chunk.held is None else chunk.held.split(width, 1), strict=True)


class Kept(NamedTuple):
    """An update that waits for the others.

    Args:
        arrival: the update, encoded
        norm: its norm, over the entries that are aggregated
        weight: its weight
    """

    arrival: Arrival
    norm: float
    weight: float


class Received(Updates):
    """The updates of a round, as they were received."""

    def __init__(self, kept: Sequence[Kept], model: Params) -> None:
        self.kept, self.model, self.layout = kept, model, Layout.of(model)
        self.count, self.size = len(kept), self.layout.size
        self.partial = not all(each.arrival.part.whole for each in kept)
        self.like = torch.empty(0, dtype=self.layout.dtype, device=tree.device(model))
        self.small = self.count * self.size <= max(ENTRIES, MODELS * self.size)
        self.decoded: dict[int, Tensor] = {}
        self.masks: dict[int, Tensor | None] = {}

    def vector(self, index: int) -> Tensor:
        """Decode one update, or return it as it was decoded before."""
        if index not in self.decoded:
            vector = whole_vector(self.kept[index].arrival, self.model, self.layout)
            if not self.small:
                return vector
            self.decoded[index] = vector
        return self.decoded[index]

    def held(self, index: int) -> Tensor | None:
        """Return where the client of an update holds entries that are aggregated."""
        if index not in self.masks:
            part = self.kept[index].arrival.part
            mask = None if part.whole else self.layout.flatten(part.coverage(self.model)) != 0
            if not self.small:
                return mask
            self.masks[index] = mask
        return self.masks[index]

    @cached_property
    def weights(self) -> Tensor:
        """The weights of the clients, divided by their sum."""
        weights = torch.tensor([each.weight for each in self.kept], dtype=torch.float64)
        return weights / weights.sum()

    def norms(self) -> Tensor:
        """Return the norms, which were computed on arrival."""
        norms = [each.norm * scale for each, scale in zip(self.kept, self.scales, strict=True)]
        return torch.tensor(norms, dtype=torch.float64)


def length(vector: Tensor) -> float:
    """Return the Euclidean norm, computed in float64."""
    return float(torch.linalg.vector_norm(vector, dtype=torch.float64))
