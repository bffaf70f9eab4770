"""Apply a codec to some tensors of a model, together or one by one. The others are sent dense in the same message.

Norms, biases and running statistics are small and sensitive to errors, so most methods compress only the weight
matrices. For codecs that send a scale, it matters whether they see one long vector or each tensor separately.

Tensors that training does not change, such as the weights below a low-rank adapter, are not sent: their change is zero.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import groupby
from typing import NamedTuple

import torch
from torch import Tensor

from gossamer.core import tree
from gossamer.core.codec import Codec, Coding, Kept, row_by_row, rows_of
from gossamer.core.errors import require, wrong
from gossamer.core.exchange import Context
from gossamer.core.secure import SumSegment
from gossamer.core.types import Layout, Params, Payload, State, fits
from gossamer.core.untrusted import check_names, under
from gossamer.parts.codecs.dense import Dense

REST = "rest."
"""The prefix of the array names of the remaining tensors."""


class TensorGroup(NamedTuple):
    """Tensors of the model that one codec encodes together.

    Args:
        prefix: the prefix of their array names in the payload
        codec: the codec
        layout: names and shapes of the tensors
    """

    prefix: str
    codec: Codec
    layout: Layout

    def coding(self, ctx: Coding) -> Coding:
        """Return what both sides know of these tensors; each group has a key of its own."""
        return ctx.of(self.layout, "piece", self.prefix)


@dataclass(frozen=True)
class OnWeights(Codec):
    """Applies a codec to the weight matrices of a model, and another codec to the remaining tensors.

    Args:
        codec: the codec of the selected tensors
        per_tensor: encode each tensor separately, with its own scale and key, instead of all as one vector
        min_dim: the minimum number of dimensions of a selected tensor: 2 leaves out norms and biases, 0 nothing
        exclude: names of other tensors that are not selected; * matches any text
        other: the codec of the remaining tensors; it compensates for lost messages if the first codec does
    """

    codec: Codec
    per_tensor: bool = False
    min_dim: int = 2
    exclude: tuple[str, ...] = ()
    other: Codec = Dense()
    constant: frozenset[str] = field(default=frozenset(), init=False, repr=False)
    """The names of the tensors that are not sent, from the network."""

    def __post_init__(self) -> None:
        apart = "must be false with a private codec, which would add one guarantee per tensor"
        require(
            (self.min_dim >= 0, wrong(self, "min_dim", "must be at least 0")),
            (not (self.per_tensor and self.codec.private), wrong(self, "per_tensor", apart)),
        )

    def bind(self, context: Context) -> "OnWeights":
        """Bind both codecs. Where changes are sent, tensors that training does not change are left out."""
        constant = frozenset(context.network.constant if context.exchange.send == "change" else ())
        return self.filled(codec=self.codec.bind(context), other=self.other.bind(context), constant=constant)

    @property
    def exact(self) -> bool:
        """Whether both codecs are exact."""
        return self.codec.exact and self.other.exact

    @property
    def unbiased(self) -> bool:
        """Whether both codecs are unbiased."""
        return self.codec.unbiased and self.other.unbiased

    @property
    def common(self) -> bool:
        """Whether one of the codecs needs a common key."""
        return self.codec.common or self.other.common

    @property
    def wrapped(self) -> tuple[Codec, ...]:
        """The codec of the selected tensors, and that of the others unless all tensors are selected."""
        return (self.codec, self.other) if self.min_dim > 0 or self.exclude else (self.codec,)

    @property
    def others(self) -> Codec:
        """The codec of the remaining tensors, with the same compensation for lost messages."""
        return self.codec.companion(self.other)

    def chosen(self, name: str, dimensions: int) -> bool:
        """Return whether a tensor is selected."""
        return dimensions >= self.min_dim and not any(fits(name, pattern) for pattern in self.exclude)

    def pieces(self, layout: Layout) -> list[TensorGroup]:
        """Return the groups of tensors that are encoded together."""
        sent = [(name, self.chosen(name, len(shape))) for name, shape in layout.shapes if name not in self.constant]
        inside, outside = ([name for name, chosen in sent if chosen is wanted] for wanted in (True, False))
        groups = [[name] for name in inside] if self.per_tensor else [inside] if inside else []
        selected = [
            TensorGroup(f"{number}." if self.per_tensor else "", self.codec, layout.only(group))
            for number, group in enumerate(groups)
        ]
        return selected + ([TensorGroup(REST, self.others, layout.only(outside))] if outside else [])

    # Client side.

    def encode(self, x: Tensor, ctx: Coding) -> Payload:
        """Return the payloads of all groups as one payload."""
        payload, _ = self.encode_with(x, self.init(ctx.layout), ctx)
        return payload

    @property
    def retains(self) -> Kept:
        """Delegate to the codec of the selected tensors."""
        return self.codec.retains

    def init(self, layout: Layout) -> State:
        """Return the first state of each codec for its tensors."""
        kept = {f"of {piece.prefix}": piece.codec.init(piece.layout) for piece in self.pieces(layout)}
        return {name: state for name, state in kept.items() if state}

    def encode_with(self, x: Tensor, memory: State, ctx: Coding) -> tuple[Payload, State]:
        """Return the payloads of all groups as one payload, and the new state of each codec."""
        parts: dict[str, Payload] = {}
        kept: State = {}
        entries = dict(ctx.layout.cut(x))
        for piece in self.pieces(ctx.layout):
            before = memory.get(f"of {piece.prefix}") or piece.codec.init(piece.layout)
            vector = _vector(entries, piece.layout)
            parts[piece.prefix], after = piece.codec.encode_with(vector, before, piece.coding(ctx))
            kept |= {f"of {piece.prefix}": after} if after else {}
        return joined(parts), kept

    def skipped(self, memory: State) -> State:
        """Delegate to each codec."""
        return {name: self._of(name).skipped(inner) for name, inner in memory.items()}

    def settle(self, memory: State, delivered: bool) -> State:
        """Delegate to each codec."""
        return {name: self._of(name).settle(inner, delivered) for name, inner in memory.items()}

    def _of(self, name: str) -> Codec:
        """Return the codec of the group whose state has this name."""
        return self.others if name == f"of {REST}" else self.codec

    @property
    def figure_names(self) -> tuple[str, ...]:
        """The metrics of both codecs."""
        return tuple(dict.fromkeys((*self.codec.figure_names, *self.others.figure_names)))

    def figures(self, x: Tensor, ctx: Coding) -> dict[str, float]:
        """Return the means of the groups' metrics over their entries."""
        entries, sums, sizes = dict(ctx.layout.cut(x)), dict.fromkeys(self.figure_names, 0.0), dict[str, int]()
        for piece in self.pieces(ctx.layout) if sums else ():
            for name, value in piece.codec.figures(_vector(entries, piece.layout), piece.coding(ctx)).items():
                sums[name] += piece.layout.size * value
                sizes[name] = sizes.get(name, 0) + piece.layout.size
        return {name: total / sizes[name] if sizes.get(name) else 0.0 for name, total in sums.items()}

    def warning(self, figures: Mapping[str, float]) -> str | None:
        """Return the first warning of the codecs."""
        found = (codec.warning(figures) for codec in (self.codec, self.others) if codec.figure_names)
        return next((text for text in found if text is not None), None)

    # Server side.

    def decode(self, payload: Payload, ctx: Coding) -> Tensor:
        """Decode each group from its part of the payload."""
        if isinstance(payload, list):  # lengths differ
            return row_by_row(self.decode, payload, ctx)
        found = self._unsent(ctx.layout, tree.device(payload) if payload else torch.device("cpu"))
        for piece, part, own in self._parts(payload, ctx):
            found |= piece.layout.cut(piece.codec.decode(part, own))
        return _vector(found, ctx.layout)

    def _parts(self, payload: Payload, ctx: Coding) -> Iterator[tuple[TensorGroup, Payload, Coding]]:
        """Yield each group with its arrays, the last group first. Refuse arrays of no group."""
        left = set(payload)
        for piece in reversed(self.pieces(ctx.layout)):  # the prefix of the first group may be empty, which matches all
            mine = {name for name in left if name.startswith(piece.prefix)}
            left -= mine
            yield piece, under(payload, piece.prefix, mine), piece.coding(ctx)
        check_names(left, ())

    def _unsent(self, layout: Layout, device: torch.device) -> dict[str, Tensor]:
        """Return zeros for the tensors that are not sent."""
        counts = {name: count for (name, _), count in zip(layout.shapes, layout.counts, strict=True)}
        made = {name: count for name, count in counts.items() if name in self.constant}
        return {name: torch.zeros(count, dtype=layout.dtype, device=device) for name, count in made.items()}

    def fold(self, acc: Tensor, payload: Payload, ctx: Coding, weight: float) -> None:
        """Let each codec add to the tensors of its group. All payloads are checked before anything is added."""
        checked = [
            (piece.layout, piece.codec.fold_into(part, own, weight, acc))
            for piece, part, own in self._parts(payload, ctx)
        ]
        entries = dict(ctx.layout.cut(acc))
        for mine, add in checked:
            add([entries[name] for name, _ in mine.shapes])

    @property
    def folds_decoded(self) -> bool:
        """Whether both codecs do. Dense values are multiplied before they are added, as all groups are."""
        return self.codec.folds_decoded and (self.other.folds_decoded or type(self.other) is Dense)

    def sum_size(self, layout: Layout) -> int:
        """Return the total size over all groups."""
        return sum(piece.codec.sum_size(piece.layout) for piece in self.pieces(layout))

    def sum_segments(self, layout: Layout) -> tuple[SumSegment, ...]:
        """Return the segments of all groups; nothing if the numbers of one are not whole."""
        found = [piece.codec.sum_segments(piece.layout) for piece in self.pieces(layout)]
        alike = groupby((segment for group in found for segment in group), key=lambda segment: segment.limit)
        joined = tuple(SumSegment(sum(segment.size for segment in group), limit) for limit, group in alike)
        return joined if all(found) else ()

    def unsummable(self) -> str:
        """Return the reason of either codec."""
        rest = self.other.unsummable()
        return self.codec.unsummable() or (f"biases, norms and statistics: {rest}" if rest else "")

    def to_sum(self, payload: Payload, ctx: Coding) -> Tensor:
        """Return the vectors of all groups as one vector."""
        if isinstance(payload, list):
            return row_by_row(self.to_sum, payload, ctx)
        found = [piece.codec.to_sum(part, own) for piece, part, own in self._parts(payload, ctx)]
        return torch.cat(found[::-1], -1)

    def from_sum(self, mean: Tensor, ctx: Coding) -> Tensor:
        """Decode each group from its piece of the mean."""
        pieces, found = self.pieces(ctx.layout), self._unsent(ctx.layout, mean.device)
        sizes = [piece.codec.sum_size(piece.layout) for piece in pieces]
        for piece, own in zip(pieces, mean.split(sizes, -1), strict=True):
            found |= piece.layout.cut(piece.codec.from_sum(own, piece.coding(ctx)))
        return _vector(found, ctx.layout)

    def unreplayable(self) -> str:
        """Return the reason of either codec."""
        return self.codec.unreplayable() or self.other.unreplayable()

    def replayed(self, payload: Payload, layout: Layout) -> tuple[Payload, Layout]:
        """Return the arrays of the selected tensors, and what the other codec returns for its arrays."""
        rest = next((piece for piece in self.pieces(layout) if piece.prefix == REST), None)
        if rest is None:
            return payload, layout
        inside = {name: array for name, array in payload.items() if not name.startswith(rest.prefix)}
        outside = {name.removeprefix(rest.prefix): payload[name] for name in payload.keys() - inside.keys()}
        more, kept = rest.codec.replayed(outside, rest.layout)
        names = {name for name, _ in layout.shapes} - {name for name, _ in rest.layout.shapes}
        names |= {name for name, _ in kept.shapes}
        return inside | {rest.prefix + name: array for name, array in more.items()}, layout.only(names)

    # Training. The context of a group has the name of its tensor if each tensor is encoded separately, so that clients
    # with different parts of the model have contexts of the same form.

    def surrogate_context(self, ctx: Coding, steps: int, device: torch.device) -> State:
        """Return the surrogate contexts of all groups that have one."""
        found: State = {}
        for piece in self.pieces(ctx.layout):
            if inner := piece.codec.surrogate_context(piece.coding(ctx), steps, device):
                alone = self.per_tensor and piece.prefix != REST
                found[piece.layout.shapes[0][0] if alone else piece.prefix] = inner
        return found

    def surrogate(self, change: Params, context: State, step_index: Tensor) -> Params:
        """Return the surrogates of the tensors of each group."""
        found: Params = {}
        for group, inner in context.items():
            codec, selected = (self.others, False) if group == REST else (self.codec, True)
            tensors = {name: t for name, t in change.items() if self.chosen(name, t.dim()) == selected}
            if self.per_tensor and selected:
                tensors = {group: change[group]} if group in change else {}
            found |= codec.surrogate(tensors, inner, step_index)
        return found


def joined(parts: Mapping[str, Payload]) -> Payload:
    """Return payloads as one, with the prefixes of their arrays; of a group a list, if one of them is."""
    count = next((len(part) for part in parts.values() if isinstance(part, list)), None)
    if count is None:
        return {prefix + name: array for prefix, part in parts.items() for name, array in part.items()}
    each = {prefix: rows_of(part) or [part] * count for prefix, part in parts.items()}
    return [  # type: ignore[return-value]
        joined({prefix: rows[row] for prefix, rows in each.items()}) for row in range(count)
    ]


def _vector(entries: Mapping[str, Tensor], layout: Layout) -> Tensor:
    """Return the entries of a layout's tensors as one vector."""
    pieces = [entries[name] for name, _ in layout.shapes]
    if len({piece.dim() for piece in pieces}) > 1:  # all rows have the same entries that are not sent
        rows = next(len(piece) for piece in pieces if piece.dim() > 1)
        pieces = [piece.expand(rows, -1) for piece in pieces]
    return torch.cat(pieces, -1)
