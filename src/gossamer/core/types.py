"""The basic types of the library.

Params     the tensors of a model, by name
Part       the entries of a model that one client holds in one round
Layout     names and shapes of the tensors behind a flat vector, which codecs work on
Payload    an encoded vector: arrays by name, which ``gossamer.core.wire`` turns into bytes
State      server or client state between rounds: a nest of tensors, stored without pickle
Clock      the round and the client of a call
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate, compress, pairwise
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
        seconds: the virtual time, for channels; 0 without a schedule
    """

    round: int
    rounds: int
    client: int
    seconds: float = 0.0


class Flops(NamedTuple):
    """Floating-point operations.

    Args:
        done: all operations that are computed
        useful: those with a weight that the client holds
        batch: the mean batch size of training; 0 if there is none
    """

    done: int
    useful: int
    batch: float = 0.0

    def plus(self, spent: int) -> "Flops":
        """Return the sum with further operations, all of them useful.

        >>> Flops(10, 5).plus(2)
        Flops(done=12, useful=7, batch=0.0)
        """
        return Flops(self.done + spent, self.useful + spent, self.batch)


@dataclass(frozen=True)
class Layout:
    """Names and shapes of the tensors behind one flat vector, in name order.

    Args:
        shapes: name and shape of each tensor
        dtype: the type of the vector
        held: indices of the vector's entries among all entries of the tensors; none if the vector has all of them
    """

    shapes: tuple[tuple[str, torch.Size], ...]
    dtype: torch.dtype = torch.float32
    held: Tensor | None = field(default=None, compare=False)

    @classmethod
    def of(cls, params: Mapping[str, Tensor], keep: Mapping[str, Tensor] | None = None) -> "Layout":
        """Return the layout of tensors of one floating-point type. ``keep`` masks the entries that are held."""
        dtypes = {tensor.dtype for tensor in params.values()} or {torch.float32}
        if len(dtypes) > 1:
            found = listed(map(str, dtypes))
            raise ConfigError(f"all tensors of a model must have one floating-point type, got {found}")
        shapes = tuple((name, params[name].shape) for name in sorted(params))
        masks = {name: mask for name, mask in (keep or {}).items() if name in params}
        return cls(shapes, dtypes.pop(), _held(shapes, masks) if masks else None)

    def only(self, names: Collection[str]) -> "Layout":
        """Return the layout of a subset of the tensors."""
        kept = [name in names for name, _ in self.shapes]
        shapes = tuple(compress(self.shapes, kept))
        if self.held is None or all(kept):
            return Layout(shapes, self.dtype, self.held)
        before = accumulate((0 if keep else shape.numel() for (_, shape), keep in zip(self.shapes, kept, strict=True)))
        pieces = zip(kept, self.held.split(self.counts), before, strict=True)
        held = [piece - left_out for keep, piece, left_out in pieces if keep]
        return Layout(shapes, self.dtype, torch.cat(held) if held else self.held[:0])

    @cached_property
    def counts(self) -> tuple[int, ...]:
        """The number of entries of each tensor in the vector."""
        sizes = [shape.numel() for _, shape in self.shapes]
        if self.held is None:
            return tuple(sizes)
        ends = torch.tensor(list(accumulate(sizes)), dtype=self.held.dtype).to(self.held.device)
        until = torch.searchsorted(self.held, ends).tolist()
        return tuple(end - start for start, end in pairwise([0, *until]))

    @cached_property
    def size(self) -> int:
        """The number of entries of the vector."""
        return sum(self.counts) if self.held is None else len(self.held)

    def flatten(self, params: Mapping[str, Tensor]) -> Tensor:
        """Return the tensors of this layout as one new vector, or those of a group, with K in front, as rows."""
        pieces = [params[name].reshape(*_group(params[name], shape), -1) for name, shape in self.shapes]
        whole = torch.cat(pieces, -1)
        return whole if self.held is None else whole[..., self.held.to(whole.device)]

    @cached_property
    def full(self) -> "Layout":
        """The layout of all entries of the tensors, whether the client holds them or not."""
        return self if self.held is None else Layout(self.shapes, self.dtype)

    def padded(self, params: Mapping[str, Tensor]) -> Tensor:
        """Return a new vector of all entries, which are zero in the tensors that are not given."""
        like = next(iter(params.values()))
        pieces = [
            params[name].reshape(-1) if name in params else like.new_zeros(n)
            for (name, _), n in zip(self.shapes, self.full.counts, strict=True)
        ]
        return torch.cat(pieces)

    def replaced(self, vector: Tensor, params: Mapping[str, Tensor]) -> Tensor:
        """Return a new vector of all entries, with other values of the tensors that are given."""
        pieces = zip(self.shapes, vector.split(self.full.counts), strict=True)
        return torch.cat([params[name].reshape(-1) if name in params else piece for (name, _), piece in pieces])

    def mask(self, names: Collection[str], device: torch.device | str) -> Tensor:
        """Return which of all entries belong to some of the tensors."""
        pieces = [torch.full((shape.numel(),), name in names) for name, shape in self.shapes]
        return torch.cat(pieces).to(device)

    def joined(self, params: Mapping[str, Tensor]) -> Tensor:
        """Return the tensors of this layout as one vector, which shares memory with those of ``tree.difference``."""
        pieces = [params[name] for name, _ in self.shapes]
        if self.held is not None or not _adjacent(pieces):
            return self.flatten(params)
        return pieces[0].as_strided((self.size,), (1,))

    def cut(self, vector: Tensor) -> Iterator[tuple[str, Tensor]]:
        """Yield the name of each tensor, and its piece of the vector, or of the rows of a matrix, as a view."""
        yield from zip((name for name, _ in self.shapes), vector.split(self.counts, -1), strict=True)

    def pick(self, vector: Tensor, names: Collection[str]) -> Tensor:
        """Return the entries of some tensors, as a new vector of the layout ``only(names)``."""
        return torch.cat([piece for name, piece in self.cut(vector) if name in names], -1)

    def spread(self, vector: Tensor, fill: float = 0.0) -> Tensor:
        """Return a vector with all entries of the tensors, with ``fill`` at those that are not in the given vector."""
        if self.held is None:
            return vector
        whole = vector.new_full((sum(shape.numel() for _, shape in self.shapes),), fill)
        whole[self.held.to(whole.device)] = vector
        return whole

    def unflatten(self, vector: Tensor, fill: float = 0.0) -> Params:
        """Return the tensors behind a vector, or behind the rows of a matrix, as views of it.

        Tensors that are held in part are new, with ``fill`` at entries that are not in the vector.
        """
        if self.held is None:
            shapes, group = dict(self.shapes), vector.shape[:-1]
            return {name: piece.view(*group, *shapes[name]) for name, piece in self.cut(vector)}
        starts = accumulate((shape.numel() for _, shape in self.shapes), initial=0)
        pieces = zip(self.shapes, vector.split(self.counts, -1), self.held.split(self.counts), starts, strict=False)
        return {name: _filled(shape, piece, held, start, fill) for (name, shape), piece, held, start in pieces}


def _filled(shape: torch.Size, piece: Tensor, held: Tensor, start: int, fill: float) -> Tensor:
    """Return one tensor from its entries. ``held`` has their indices, counted from ``start``."""
    if piece.shape[-1] == shape.numel():
        return piece.view(*piece.shape[:-1], *shape)
    whole = piece.new_full((*piece.shape[:-1], shape.numel()), fill)
    whole[..., held.to(piece.device) - start] = piece
    return whole.view(*piece.shape[:-1], *shape)


def _group(tensor: Tensor, shape: torch.Size) -> torch.Size:
    """Return the dimensions of a tensor in front of those of a layout: none, or the number of clients of a group."""
    return tensor.shape[: tensor.dim() - len(shape)]


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

    @property
    def masked(self) -> bool:
        """Whether tensors are not sliced, and all entries that the client holds are aggregated."""
        return not (self.index or self.count)

    def take(self, params: Mapping[str, Tensor]) -> Params:
        """Return the client's tensors: the slices of the model, zero where ``keep`` is 0."""
        if self.whole:
            return dict(params)
        held = self._sliced(params)
        return {name: tensor * self.keep[name] if name in self.keep else tensor for name, tensor in held.items()}

    def _sliced(self, params: Mapping[str, Tensor]) -> Params:
        return {name: _slice(tensor, self.index.get(name, ())) for name, tensor in params.items()}

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
        return Layout.of(self._sliced(params), self.keep)

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
        return {name: torch.ones_like(tensor) for name, tensor in self._sliced(like).items()}

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


def _adjacent(tensors: Sequence[Tensor]) -> bool:
    """Return whether tensors of one type lie in memory one after the other, without gaps."""
    same = len({tensor.untyped_storage().data_ptr() for tensor in tensors}) == 1
    ends = [tensor.storage_offset() + tensor.numel() for tensor in tensors]
    return (
        same
        and all(tensor.is_contiguous() for tensor in tensors)
        and ends[:-1] == [tensor.storage_offset() for tensor in tensors[1:]]
    )


def _held(shapes: Iterable[tuple[str, torch.Size]], masks: Mapping[str, Tensor]) -> Tensor:
    """Return the indices of held entries among all entries: found at once, because a GPU is waited for each time."""
    device = next(iter(masks.values())).device
    ones = torch.ones(max(shape.numel() for _, shape in shapes), dtype=torch.bool, device=device)
    pieces = [masks[name].reshape(-1) != 0 if name in masks else ones[: shape.numel()] for name, shape in shapes]
    return true_at(torch.cat(pieces))


def fits(name: str, pattern: str) -> bool:
    """Return whether the name of a tensor matches a pattern, in which ``*`` matches any text.

    It uses plain string operations, which ``torch.compile`` can trace.

    >>> fits("block.norm.weight", "*norm*"), fits("embedding.weight", "embedding")
    (True, False)
    """
    head, *tail = pattern.split("*")
    if not tail:
        return name == head
    if not name.startswith(head) or len(name) < len(head) + len(tail[-1]) or not name.endswith(tail[-1]):
        return False
    middle = name[len(head) : len(name) - len(tail[-1])]
    for piece in tail[:-1]:
        found = middle.find(piece)
        if found < 0:
            return False
        middle = middle[found + len(piece) :]
    return True


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
