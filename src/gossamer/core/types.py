"""The vocabulary: the handful of types that every other file speaks in.

A model is ``Params``, every tensor of it by name. What a client holds of it in one round is a ``Part``. What a codec
makes of a client's change is a ``Payload``, which the wire turns into bytes. Whatever must be remembered from one
round to the next, on either side, is a ``State``: a nest of dictionaries of tensors, so that it can be stored without
pickling. A ``Clock`` tells a part of a method when and where it is being called.
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
"""Every tensor of a model, by name: parameters and buffers."""

Payload = dict[str, Tensor]
"""What a codec sends: flat tensors of tight types, by name."""

State = dict[str, Any]
"""A nest of dictionaries with tensors at its leaves; ``{}`` when there is nothing to remember."""


class Clock(NamedTuple):
    """When and where: the round (from 0), how many rounds the run has, and which client."""

    round: int
    rounds: int
    client: int


class Flops(NamedTuple):
    """Floating-point operations: all that are done, and those among them that have a weight to them which is held."""

    done: int
    useful: int


@dataclass(frozen=True)
class Layout:
    """Names and shapes of the tensors behind one flat vector, in name order.

    Codecs work on vectors; the layout tells those that care where one tensor ends and the next begins. Of a tensor that
    a client holds in part, the vector has only the entries at the positions ``held``: others are zero.
    """

    shapes: tuple[tuple[str, torch.Size], ...]
    dtype: torch.dtype = torch.float32
    held: Mapping[str, Tensor] = field(default_factory=dict, compare=False)

    @classmethod
    def of(cls, params: Mapping[str, Tensor], keep: Mapping[str, Tensor] | None = None) -> "Layout":
        """The layout of ``params``, whose tensors are all of one floating-point type; ``keep`` marks what is held."""
        dtypes = {tensor.dtype for tensor in params.values()} or {torch.float32}
        if len(dtypes) > 1:
            found = listed(map(str, dtypes))
            raise ConfigError(f"a model that travels must be of one floating-point type, got {found}")
        held = {name: true_at(mask.reshape(-1) != 0) for name, mask in (keep or {}).items() if name in params}
        return cls(tuple((name, params[name].shape) for name in sorted(params)), dtypes.pop(), held)

    def only(self, names: Collection[str]) -> "Layout":
        """The layout of some of the tensors."""
        shapes = tuple(entry for entry in self.shapes if entry[0] in names)
        return Layout(shapes, self.dtype, {name: at for name, at in self.held.items() if name in names})

    @cached_property
    def size(self) -> int:
        """How many entries the vector has."""
        return sum(self._count(*entry) for entry in self.shapes)

    def _count(self, name: str, shape: torch.Size) -> int:
        return len(self.held[name]) if name in self.held else shape.numel()

    def flatten(self, params: Mapping[str, Tensor]) -> Tensor:
        """The tensors of this layout as one new vector."""
        return torch.cat([self._entries(name, params[name].reshape(-1)) for name, _ in self.shapes])

    def _entries(self, name: str, flat: Tensor) -> Tensor:
        return flat[self.held[name].to(flat.device)] if name in self.held else flat

    def cut(self, vector: Tensor) -> Iterator[tuple[str, Tensor]]:
        """Each tensor's name and its entries, as a piece of the vector."""
        start = 0
        for name, shape in self.shapes:
            end = start + self._count(name, shape)
            yield name, vector[start:end]
            start = end

    def unflatten(self, vector: Tensor, fill: float = 0.0) -> Params:
        """The tensors behind a vector: views of it, or (held in part) new ones, ``fill`` wherever it has no entry."""
        shapes = dict(self.shapes)
        return {name: self._laid(name, shapes[name], piece, fill) for name, piece in self.cut(vector)}

    def _laid(self, name: str, shape: torch.Size, piece: Tensor, fill: float) -> Tensor:
        if name not in self.held:
            return piece.view(shape)
        whole = piece.new_full((shape.numel(),), fill)
        whole[self.held[name].to(piece.device)] = piece
        return whole.view(shape)


@dataclass(frozen=True, eq=False)
class Part:
    """The entries of the model that one client holds in one round; ``Part()`` is all of them.

    Args:
        index: positions kept along each leading dimension of a tensor, ``None`` for a whole dimension
        keep: 0/1 inside the slice, what is trained; entries with 0 are zero for the client
        count: 0/1 inside the slice (or what broadcasts to it), what counts in aggregation, where that is not ``keep``
    """

    index: Mapping[str, tuple[Tensor | None, ...]] = field(default_factory=dict)
    keep: Mapping[str, Tensor] = field(default_factory=dict)
    count: Mapping[str, Tensor] = field(default_factory=dict)

    @property
    def whole(self) -> bool:
        """Whether this is the whole model."""
        return not (self.index or self.keep or self.count)

    def take(self, params: Mapping[str, Tensor]) -> Params:
        """What the client gets: the slices, zero where ``keep`` is zero."""
        if self.whole:
            return dict(params)
        held = {name: _slice(tensor, self.index.get(name, ())) for name, tensor in params.items()}
        return {name: tensor * self.keep[name] if name in self.keep else tensor for name, tensor in held.items()}

    def spread(self, change: Mapping[str, Tensor], like: Mapping[str, Tensor]) -> Params:
        """A client's change laid out over the whole model: zero wherever it does not count."""
        if self.whole:
            return dict(change)
        return {
            name: self._place(name, tensor * self._counts(name, tensor), like[name]) for name, tensor in change.items()
        }

    def counting(self, rows: Iterable[tuple[str, int]], labels: Tensor, like: Mapping[str, Tensor]) -> "Part":
        """The same part, of which in the tensors and dimensions named only entries of labels with 1 count."""
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
        """How the client's entries lie in a vector: those that it does not train are not in it."""
        return Layout.of(self.take(params), self.keep)

    def put(self, whole: Mapping[str, Tensor], held: Mapping[str, Tensor]) -> Params:
        """Tensors of the whole model, with those entries replaced that the client holds."""
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
        """1 where this part counts in aggregation, 0 elsewhere, over the whole model."""
        return self.spread(self.ones(like), like)

    def ones(self, like: Mapping[str, Tensor]) -> Params:
        """1 for each entry of the slices."""
        return {name: torch.ones_like(_slice(tensor, self.index.get(name, ()))) for name, tensor in like.items()}

    def add(self, total: Mapping[str, Tensor], change: Mapping[str, Tensor], weight: float) -> None:
        """Add a client's change, times a weight, where it counts, to tensors of the whole model."""
        for name, tensor in change.items():
            counted = tensor * self._counts(name, tensor)
            if name not in self.index:
                total[name].add_(counted, alpha=weight)
            else:
                at = _mesh(self.index[name], total[name].shape, tensor.device)
                total[name][at] += weight * counted  # no entry is named twice

    def _counts(self, name: str, tensor: Tensor) -> Tensor:
        return self.count.get(name, self.keep.get(name, tensor.new_ones(()))).to(tensor)

    def _place(self, name: str, tensor: Tensor, like: Tensor) -> Tensor:
        if name not in self.index:
            return tensor
        full = torch.zeros_like(like)
        full[_mesh(self.index[name], like.shape, like.device)] = tensor
        return full


def true_at(mask: Tensor) -> Tensor:
    """Where a vector of booleans is true; NumPy finds that several times faster than torch."""
    return mask.nonzero().view(-1) if mask.is_cuda else torch.from_numpy(np.flatnonzero(mask.numpy()))


def _slice(tensor: Tensor, index: tuple[Tensor | None, ...]) -> Tensor:
    for dim, positions in enumerate(index):
        if positions is not None:
            tensor = tensor.index_select(dim, positions)
    return tensor


def _mesh(index: tuple[Tensor | None, ...], shape: torch.Size, device: torch.device) -> tuple[Tensor, ...]:
    """The positions of a slice as broadcastable index tensors, one for each dimension named."""
    ends = [torch.arange(n, device=device) if i is None else i for i, n in zip(index, shape, strict=False)]
    return tuple(i.view([-1] + [1] * (len(ends) - 1 - dim)) for dim, i in enumerate(ends))
