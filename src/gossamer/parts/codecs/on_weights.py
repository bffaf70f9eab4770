"""Apply a codec to some tensors of a model, together or one by one. The others are sent dense in the same message.

Norms, biases and running statistics are small and sensitive to errors, so most methods compress only the weight
matrices. For codecs that send a scale, it matters whether they see one long vector or each tensor separately.

Tensors that training does not change, such as the weights below a low-rank adapter, are not sent: their change is zero.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import torch
from torch import Tensor

from gossamer.core import tree
from gossamer.core.codec import (
    Codec,
    CodecMemory,
    IntegerSums,
    Kept,
    MeasuredCodec,
    OwnDraws,
    OwnFold,
    Replayable,
    SideInformation,
    StraightThrough,
    Wrapping,
    folds_decoded,
    informed,
    joined_segments,
    memory_of,
    of_client,
    replay_of,
    sum_limit,
    sum_segments,
    sums_of,
    surrogate_of,
    unsummable,
)
from gossamer.core.errors import require, wrong
from gossamer.core.exchange import Context
from gossamer.core.privacy import PrivatePart
from gossamer.core.random import Key, fold
from gossamer.core.secure import SumSegment
from gossamer.core.types import Layout, Params, Payload, State
from gossamer.core.untrusted import check_names, under
from gossamer.parts.codecs.dense import Dense
from gossamer.parts.codecs.names import fits

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


@dataclass(frozen=True)
class OnWeights(
    CodecMemory, IntegerSums, OwnDraws, OwnFold, StraightThrough, SideInformation, MeasuredCodec, Replayable, Wrapping
):
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
            (not (self.per_tensor and isinstance(self.codec, PrivatePart)), wrong(self, "per_tensor", apart)),
        )

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
    def retains(self) -> Kept:
        """Delegate to the codec of the selected tensors."""
        return memory_of(self.codec).retains

    @property
    def others(self) -> Codec:
        """The codec of the remaining tensors, with the same compensation for lost messages."""
        return memory_of(self.codec).companion(self.other)

    def bind(self, context: Context) -> "OnWeights":
        """Bind both codecs. Where changes are sent, tensors that training does not change are left out."""
        constant = context.network.constant if context.exchange.send == "change" else ()
        return self._leaving(frozenset(constant), self.codec.bind(context), self.other.bind(context))

    def with_side_information(self, start: Params) -> "OnWeights":
        """Give both codecs the tensors that both sides know."""
        return self._with(informed(self.codec, start), informed(self.other, start))

    def of_client(self, client: int) -> "OnWeights":
        """Give both codecs the sender's number."""
        return self._with(of_client(self.codec, client), of_client(self.other, client))

    def _with(self, codec: Codec, other: Codec) -> "OnWeights":
        same = codec is self.codec and other is self.other
        return self if same else self._leaving(self.constant, codec, other)

    def _leaving(self, constant: frozenset[str], codec: Codec, other: Codec) -> "OnWeights":
        """Return a copy with other codecs that does not send the given tensors."""
        made = replace(self, codec=codec, other=other)
        object.__setattr__(made, "constant", constant)  # the dataclass is frozen, but not in use yet
        return made

    def chosen(self, name: str, dimensions: int) -> bool:
        """Return whether a tensor is selected."""
        return dimensions >= self.min_dim and not any(fits(name, pattern) for pattern in self.exclude)

    def pieces(self, layout: Layout) -> list[TensorGroup]:
        """Return the groups of tensors that are encoded together."""
        inside = [name for name, shape in layout.shapes if self.chosen(name, len(shape))]
        inside = [name for name in inside if name not in self.constant]
        outside = [name for name, _ in layout.shapes if name not in {*inside, *self.constant}]
        groups = [[name] for name in inside] if self.per_tensor else [inside] if inside else []
        selected = [
            TensorGroup(f"{number}." if self.per_tensor else "", self.codec, layout.only(group))
            for number, group in enumerate(groups)
        ]
        return selected + ([TensorGroup(REST, self.others, layout.only(outside))] if outside else [])

    def init(self, layout: Layout) -> State:
        """Return the first state of each codec for its tensors."""
        kept = {f"of {piece.prefix}": memory_of(piece.codec).init(piece.layout) for piece in self.pieces(layout)}
        return {name: state for name, state in kept.items() if state}

    def encode(self, x: Tensor, layout: Layout, key: Key) -> Payload:
        """Return the payloads of all groups as one payload."""
        payload, _ = self.encode_with(x, layout, self.init(layout), key)
        return payload

    def encode_with(self, x: Tensor, layout: Layout, state: State, key: Key) -> tuple[Payload, State]:
        """Return the payloads of all groups as one payload, and the new state of each codec."""
        payload: Payload = {}
        kept: State = {}
        tensors = layout.unflatten(x)
        for prefix, codec, own in self.pieces(layout):
            memory = memory_of(codec)
            before = state.get(f"of {prefix}") or memory.init(own)
            part, after = memory.encode_with(own.flatten(tensors), own, before, fold(key, "piece", prefix))
            payload |= {prefix + name: array for name, array in part.items()}
            kept |= {f"of {prefix}": after} if after else {}
        return payload, kept

    def skipped_state(self, state: State) -> State:
        """Delegate to each codec."""
        return {name: self._of(name).skipped_state(inner) for name, inner in state.items()}

    def settle(self, state: State, delivered: bool) -> State:
        """Delegate to each codec."""
        return {name: self._of(name).settle(inner, delivered) for name, inner in state.items()}

    def _of(self, name: str) -> CodecMemory:
        """Return the codec of the group whose state has this name."""
        return memory_of(self.others if name == f"of {REST}" else self.codec)

    def decode(self, payload: Payload, layout: Layout, key: Key) -> Tensor:
        """Decode each group from its part of the payload."""
        tensors = self._unsent(layout, tree.device(payload) if payload else torch.device("cpu"))
        for piece, part, own in self._parts(payload, layout, key):
            tensors |= piece.layout.unflatten(piece.codec.decode(part, piece.layout, own))
        return layout.flatten(tensors)

    def _unsent(self, layout: Layout, device: torch.device) -> Params:
        """Return zeros for the tensors that are not sent."""
        shapes = {name: shape for name, shape in layout.shapes if name in self.constant}
        return {name: torch.zeros(shape, dtype=layout.dtype, device=device) for name, shape in shapes.items()}

    def fold(self, acc: Tensor, payload: Payload, layout: Layout, key: Key, weight: float) -> None:
        """Let each codec add to the tensors of its group. All payloads are checked before anything is added."""
        checked = [
            (piece.layout, piece.codec.fold_into(part, piece.layout, own, weight, acc))
            for piece, part, own in self._parts(payload, layout, key)
        ]
        entries = dict(layout.cut(acc))
        for mine, add in checked:
            add([entries[name] for name, _ in mine.shapes])

    @property
    def folds_decoded(self) -> bool:
        """Whether both codecs do. Dense values are multiplied before they are added, as all groups are."""
        return folds_decoded(self.codec) and (folds_decoded(self.other) or type(self.other) is Dense)

    def sum_size(self, layout: Layout) -> int:
        """Return the total size over all groups."""
        return sum(sums_of(piece.codec).sum_size(piece.layout) for piece in self.pieces(layout))

    def sum_limit(self, layout: Layout) -> int:
        """Return the largest limit of the groups; 0 if the numbers of one are not whole."""
        limits = [sum_limit(piece.codec, piece.layout) for piece in self.pieces(layout)]
        return max(limits, default=0) if all(limits) else 0

    def sum_segments(self, layout: Layout) -> tuple[SumSegment, ...]:
        """Return the segments of all groups; nothing if the numbers of one are not whole."""
        found = [sum_segments(piece.codec, piece.layout) for piece in self.pieces(layout)]
        return joined_segments(segment for group in found for segment in group) if all(found) else ()

    def unsummable(self) -> str:
        """Return the reason of either codec."""
        rest = unsummable(self.other)
        return unsummable(self.codec) or (f"biases, norms and statistics: {rest}" if rest else "")

    def to_sum(self, payload: Payload, layout: Layout, key: Key) -> Tensor:
        """Return the vectors of all groups as one vector."""
        parts = list(self._parts(payload, layout, key))
        return torch.cat([sums_of(piece.codec).to_sum(part, piece.layout, own) for piece, part, own in reversed(parts)])

    def from_sum(self, mean: Tensor, layout: Layout, key: Key) -> Tensor:
        """Decode each group from its piece of the mean."""
        pieces, tensors = self.pieces(layout), self._unsent(layout, mean.device)
        sizes = [sums_of(piece.codec).sum_size(piece.layout) for piece in pieces]
        for piece, own in zip(pieces, torch.split(mean, sizes), strict=True):
            vector = sums_of(piece.codec).from_sum(own, piece.layout, fold(key, "piece", piece.prefix))
            tensors |= piece.layout.unflatten(vector)
        return layout.flatten(tensors)

    def _parts(self, payload: Payload, layout: Layout, key: Key) -> Iterator[tuple[TensorGroup, Payload, Key]]:
        """Yield each group with its arrays and its key, the last group first. Refuse arrays of no group."""
        left = set(payload)
        for piece in reversed(self.pieces(layout)):  # the prefix of the first group may be empty, which matches all
            mine = {name for name in left if name.startswith(piece.prefix)}
            left -= mine
            yield piece, under(payload, piece.prefix, mine), fold(key, "piece", piece.prefix)
        check_names(left, ())

    def unreplayable(self) -> str:
        """Return the reason of either codec."""
        return replay_of(self.codec).unreplayable() or replay_of(self.other).unreplayable()

    def replayed(self, payload: Payload, layout: Layout) -> tuple[Payload, Layout]:
        """Return the arrays of the selected tensors, and what the other codec returns for its arrays."""
        rest = next((piece for piece in self.pieces(layout) if piece.prefix == "rest."), None)
        if rest is None:
            return payload, layout
        inside = {name: array for name, array in payload.items() if not name.startswith(rest.prefix)}
        outside = {name.removeprefix(rest.prefix): payload[name] for name in payload.keys() - inside.keys()}
        more, kept = replay_of(rest.codec).replayed(outside, rest.layout)
        names = {name for name, _ in layout.shapes} - {name for name, _ in rest.layout.shapes}
        names |= {name for name, _ in kept.shapes}
        return inside | {rest.prefix + name: array for name, array in more.items()}, layout.only(names)

    def surrogate_context(self, layout: Layout, steps: int, key: Key, device: torch.device) -> State:
        """Return the surrogate contexts of all groups that have one."""
        found = {
            piece.prefix: surrogate_of(piece.codec).surrogate_context(
                piece.layout, steps, fold(key, "piece", piece.prefix), device
            )
            for piece in self.pieces(layout)
        }
        return {self._group(prefix, layout): context for prefix, context in found.items() if context}

    def surrogate(self, change: Params, context: State, step_index: Tensor) -> Params:
        """Return the surrogates of the tensors of each group."""
        found: Params = {}
        for name, inner in context.items():
            tensors, codec = self._tensors(name, change), self.others if name == REST else self.codec
            found |= surrogate_of(codec).surrogate(tensors, inner, step_index)
        return found

    def _group(self, prefix: str, layout: Layout) -> str:
        """Return the name of a group's surrogate context: its tensor, if it has only one by definition."""
        if prefix == REST or not self.per_tensor:
            return prefix
        return next(piece.layout.shapes[0][0] for piece in self.pieces(layout) if piece.prefix == prefix)

    def _tensors(self, group: str, change: Params) -> Params:
        """Return the tensors of the group with this name."""
        if self.per_tensor and group != REST:
            return {group: change[group]} if group in change else {}
        wanted = group != REST
        return {name: tensor for name, tensor in change.items() if self.chosen(name, tensor.dim()) == wanted}

    @property
    def figure_names(self) -> tuple[str, ...]:
        """The metrics of both codecs."""
        return tuple(dict.fromkeys(name for codec in self._measured for name in codec.figure_names))

    @property
    def _measured(self) -> list[MeasuredCodec]:
        return [codec for codec in (self.codec, self.others) if isinstance(codec, MeasuredCodec)]

    def figures(self, x: Tensor, layout: Layout, key: Key) -> dict[str, float]:
        """Return the means of the groups' metrics over their entries."""
        tensors, found = layout.unflatten(x), list[tuple[int, dict[str, float]]]()
        for prefix, codec, own in self.pieces(layout):
            if isinstance(codec, MeasuredCodec):
                figures = codec.figures(own.flatten(tensors), own, fold(key, "piece", prefix))
                found.append((own.size, figures))
        return {name: _mean([(size, own[name]) for size, own in found if name in own]) for name in self.figure_names}

    def warning(self, figures: Mapping[str, float]) -> str | None:
        """Return the first warning of the codecs."""
        found = (codec.warning(figures) for codec in self._measured if codec.figure_names)
        return next((text for text in found if text is not None), None)


def _mean(values: list[tuple[int, float]]) -> float:
    """Return the mean of values with weights; 0 without entries."""
    total = sum(size for size, _ in values)
    return sum(size * value for size, value in values) / total if total else 0.0
