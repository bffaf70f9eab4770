"""The basic types of the library.

Params     the tensors of a model, by name
Part       the entries of a model that one client holds in one round
Layout     names and shapes of the tensors behind a flat vector, which codecs work on
Payload    an encoded vector: arrays by name, which ``gossamer.core.wire`` turns into bytes
State      server or client state between rounds: a nest of tensors, stored without pickle
Clock      the round and the client of a call
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from gossamer.core.errors import ConfigError, listed

Params = dict[str, Tensor]
"""The tensors of a model, by name: parameters and buffers."""

Payload = dict[str, Tensor]
"""The arrays that a codec sends, by name: one-dimensional tensors of compact types."""

State = dict[str, Any]
"""A nest of dictionaries with tensors as leaves. ``{}`` is the empty state."""


class Clock(NamedTuple):
    """The time and the client of a call.

    Args:
        round: the current round, from 0
        rounds: the number of rounds of the run
        client: the client's number
    """

    round: int
    rounds: int
    client: int


class Flops(NamedTuple):
    """Floating-point operations.

    Args:
        done: all operations that are computed
        useful: those with a weight that the client holds
    """

    done: int
    useful: int

    def plus(self, spent: int) -> "Flops":
        """Return the sum with further operations, all of them useful.

        >>> Flops(10, 5).plus(2)
        Flops(done=12, useful=7)
        """
        return Flops(self.done + spent, self.useful + spent)


@dataclass(frozen=True)
class Layout:
    """Names and shapes of the tensors behind one flat vector, in name order.

    Args:
        shapes: name and shape of each tensor
        dtype: the type of the vector
        held: indices of the entries in the vector, for tensors that a client holds in part; other entries are zero
    """

    shapes: tuple[tuple[str, torch.Size], ...]
    dtype: torch.dtype = torch.float32
    held: Mapping[str, Tensor] = field(default_factory=dict, compare=False)

    @classmethod
    def of(cls, params: Mapping[str, Tensor], keep: Mapping[str, Tensor] | None = None) -> "Layout":
        """Return the layout of tensors of one floating-point type. ``keep`` masks the entries that are held."""
        dtypes = {tensor.dtype for tensor in params.values()} or {torch.float32}
        if len(dtypes) > 1:
            found = listed(map(str, dtypes))
            raise ConfigError(f"all tensors of a model must have one floating-point type, got {found}")
        held = {name: true_at(mask.reshape(-1) != 0) for name, mask in (keep or {}).items() if name in params}
        return cls(tuple((name, params[name].shape) for name in sorted(params)), dtypes.pop(), held)

    def only(self, names: Collection[str]) -> "Layout":
        """Return the layout of a subset of the tensors."""
        shapes = tuple(entry for entry in self.shapes if entry[0] in names)
        return Layout(shapes, self.dtype, {name: at for name, at in self.held.items() if name in names})

    @cached_property
    def counts(self) -> tuple[int, ...]:
        """The number of entries of each tensor in the vector."""
        return tuple(self._count(*entry) for entry in self.shapes)

    @cached_property
    def size(self) -> int:
        """The number of entries of the vector."""
        return sum(self.counts)

    def _count(self, name: str, shape: torch.Size) -> int:
        return len(self.held[name]) if name in self.held else shape.numel()

    def flatten(self, params: Mapping[str, Tensor]) -> Tensor:
        """Return the tensors of this layout as one new vector."""
        return torch.cat([self._entries(name, params[name].reshape(-1)) for name, _ in self.shapes])

    def _entries(self, name: str, flat: Tensor) -> Tensor:
        return flat[self.held[name].to(flat.device)] if name in self.held else flat

    def cut(self, vector: Tensor) -> Iterator[tuple[str, Tensor]]:
        """Yield the name of each tensor, and its piece of the vector as a view."""
        start = 0
        for name, shape in self.shapes:
            end = start + self._count(name, shape)
            yield name, vector[start:end]
            start = end

    def unflatten(self, vector: Tensor, fill: float = 0.0) -> Params:
        """Return the tensors behind a vector, as views of it.

        Tensors that are held in part are new, with ``fill`` at entries that are not in the vector.
        """
        shapes = dict(self.shapes)
        return {name: self._shaped(name, shapes[name], piece, fill) for name, piece in self.cut(vector)}

    def _shaped(self, name: str, shape: torch.Size, piece: Tensor, fill: float) -> Tensor:
        if name not in self.held:
            return piece.view(shape)
        whole = piece.new_full((shape.numel(),), fill)
        whole[self.held[name].to(piece.device)] = piece
        return whole.view(shape)


@dataclass(frozen=True, eq=False)
class Part:
    """The entries of the model that one client holds in one round. ``Part()`` is the whole model.

    A part is a slice of each tensor, and a mask inside the slice:

        Part(index={"fc.weight": (torch.tensor([0, 1]), None)})    the first two rows of a layer
        Part(keep={"fc.weight": mask})                             the entries where the mask is 1

    Args:
        index: for each tensor, the indices kept along its leading dimensions; none keeps a whole dimension
        keep: for each tensor, a 0/1 mask inside the slice; entries with 0 are zero and not trained
        count: for each tensor, a 0/1 mask inside the slice of the entries to aggregate, if it differs from keep
    """

    index: Mapping[str, tuple[Tensor | None, ...]] = field(default_factory=dict)
    keep: Mapping[str, Tensor] = field(default_factory=dict)
    count: Mapping[str, Tensor] = field(default_factory=dict)

    @property
    def whole(self) -> bool:
        """Whether this is the whole model."""
        return not (self.index or self.keep or self.count)

    def take(self, params: Mapping[str, Tensor]) -> Params:
        """Return the client's tensors: the slices of the model, zero where ``keep`` is 0."""
        if self.whole:
            return dict(params)
        held = {name: _slice(tensor, self.index.get(name, ())) for name, tensor in params.items()}
        return {name: tensor * self.keep[name] if name in self.keep else tensor for name, tensor in held.items()}

    def spread(self, change: Mapping[str, Tensor], like: Mapping[str, Tensor]) -> Params:
        """Return a client's change in the shape of the whole model, zero at entries that are not aggregated."""
        if self.whole:
            return dict(change)
        return {
            name: self._scattered(name, tensor * self._counts(name, tensor), like[name])
            for name, tensor in change.items()
        }

    def counting(self, rows: Iterable[tuple[str, int]], labels: Tensor, like: Mapping[str, Tensor]) -> "Part":
        """Return the part with only some labels aggregated.

        ``rows`` names tensors and their label dimension. ``labels`` has 1 for each label to aggregate.
        """
        count = dict(self.count)
        for name, dim in rows:
            index = self.index.get(name, ())
            kept = index[dim] if dim < len(index) else None
            shape = [1] * like[name].dim()
            shape[dim] = -1
            mine = (labels if kept is None else labels[kept]).to(like[name]).view(shape)
            count[name] = mine * self._counts(name, like[name])
        return replace(self, count=count)

    def layout(self, params: Mapping[str, Tensor]) -> Layout:
        """Return the layout of the client's entries. Entries with ``keep`` 0 are not in the vector."""
        return Layout.of(self.take(params), self.keep)

    def put(self, whole: Mapping[str, Tensor], held: Mapping[str, Tensor]) -> Params:
        """Return the tensors of the whole model with the entries replaced that the client holds."""
        if self.whole:
            return dict(held)
        return {name: self._put(name, tensor, held[name]) for name, tensor in whole.items()}

    def _put(self, name: str, whole: Tensor, held: Tensor) -> Tensor:
        index = self.index.get(name, ())
        kept = self.keep[name].bool() if name in self.keep else torch.ones_like(held, dtype=torch.bool)
        values = torch.where(kept, held, _slice(whole, index))
        if not index:
            return values
        full = whole.clone()
        full[_mesh(index, whole.shape, whole.device)] = values
        return full

    def coverage(self, like: Mapping[str, Tensor]) -> Params:
        """Return 1 for each entry of the whole model that is aggregated from this part, 0 elsewhere."""
        return self.spread(self.ones(like), like)

    def ones(self, like: Mapping[str, Tensor]) -> Params:
        """Return tensors of ones in the shapes of the slices."""
        return {name: torch.ones_like(_slice(tensor, self.index.get(name, ()))) for name, tensor in like.items()}

    def add(self, total: Mapping[str, Tensor], change: Mapping[str, Tensor], weight: float) -> None:
        """Add ``weight`` times a client's change to tensors of the whole model, in place."""
        for name, tensor in change.items():
            counted = tensor * self._counts(name, tensor)
            if name not in self.index:
                total[name].add_(counted, alpha=weight)
            else:
                at = _mesh(self.index[name], total[name].shape, tensor.device)
                total[name][at] += weight * counted  # indices are unique

    def _counts(self, name: str, tensor: Tensor) -> Tensor:
        return self.count.get(name, self.keep.get(name, tensor.new_ones(()))).to(tensor)

    def _scattered(self, name: str, tensor: Tensor, like: Tensor) -> Tensor:
        if name not in self.index:
            return tensor
        full = torch.zeros_like(like)
        full[_mesh(self.index[name], like.shape, like.device)] = tensor
        return full


def true_at(mask: Tensor) -> Tensor:
    """Return the indices of the true entries of a boolean vector. On a CPU, NumPy is several times faster."""
    return mask.nonzero().view(-1) if mask.is_cuda else torch.from_numpy(np.flatnonzero(mask.numpy()))


def _slice(tensor: Tensor, index: tuple[Tensor | None, ...]) -> Tensor:
    for dim, kept in enumerate(index):
        if kept is not None:
            tensor = tensor.index_select(dim, kept)
    return tensor


def _mesh(index: tuple[Tensor | None, ...], shape: torch.Size, device: torch.device) -> tuple[Tensor, ...]:
    """Return the indices of a slice as broadcastable index tensors, one per leading dimension."""
    ends = [torch.arange(n, device=device) if i is None else i for i, n in zip(index, shape, strict=False)]
    return tuple(i.view([-1] + [1] * (len(ends) - 1 - dim)) for dim, i in enumerate(ends))
