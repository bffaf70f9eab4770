"""A codec over some of a model's tensors, all together or one by one; the rest goes dense in the same message.

Norms, biases and running statistics are few and touchy, so most methods compress the weight matrices alone. Whether a
codec sees these as one long vector or each by itself matters to those that send a scale.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from gossamer.core.codec import Codec, CodecMemory, Kept, StraightThrough, Summing, memory_of, sums_of, surrogate_of
from gossamer.core.errors import PayloadError, require, wrong
from gossamer.core.random import Key, fold
from gossamer.core.types import Layout, Params, Payload, State
from gossamer.parts.codecs.dense import Dense
from gossamer.parts.codecs.names import fits


class TensorGroup(NamedTuple):
    """Some tensors of the model that go through one codec: what their arrays' names begin with, and where they lie."""

    prefix: str
    codec: Codec
    layout: Layout


@dataclass(frozen=True)
class OnWeights(CodecMemory, Summing, StraightThrough):
    """Takes a codec to a whole model.

    Args:
        codec: what the chosen tensors go through
        per_tensor: one tensor at a time, with a scale and a key of its own, rather than all as one vector
        min_dim: how many dimensions a tensor must have to be chosen: 2 leaves out norms and biases, 0 nothing
        exclude: names of further tensors that are not chosen; * stands for anything
        other: what the others go through; where the codec makes up for lost messages, so does this
    """

    codec: Codec
    per_tensor: bool = False
    min_dim: int = 2
    exclude: tuple[str, ...] = ()
    other: Codec = Dense()

    def __post_init__(self) -> None:
        require((self.min_dim >= 0, wrong(self, "min_dim", "must be at least 0")))

    @property
    def exact(self) -> bool:
        """Where both codecs are."""
        return self.codec.exact and self.other.exact

    @property
    def unbiased(self) -> bool:
        """Where both codecs are."""
        return self.codec.unbiased and self.other.unbiased

    @property
    def common(self) -> bool:
        """Where one of both asks for it."""
        return self.codec.common or self.other.common

    @property
    def retains(self) -> Kept:
        """As the codec does."""
        return memory_of(self.codec).retains

    @property
    def others(self) -> Codec:
        """What tensors that are not chosen go through."""
        return memory_of(self.codec).companion(self.other)

    def chosen(self, name: str, dimensions: int) -> bool:
        """Whether a tensor goes through the codec."""
        return dimensions >= self.min_dim and not any(fits(name, pattern) for pattern in self.exclude)

    def pieces(self, layout: Layout) -> list[TensorGroup]:
        """The tensors by the codec they go through."""
        inside = [name for name, shape in layout.shapes if self.chosen(name, len(shape))]
        outside = [name for name, _ in layout.shapes if name not in inside]
        groups = [[name] for name in inside] if self.per_tensor else [inside] if inside else []
        lifted = [
            TensorGroup(f"{number}." if self.per_tensor else "", self.codec, layout.only(group))
            for number, group in enumerate(groups)
        ]
        return lifted + ([TensorGroup("rest.", self.others, layout.only(outside))] if outside else [])

    def init(self, layout: Layout) -> State:
        """What each codec remembers of its own tensors."""
        kept = {f"of {piece.prefix}": memory_of(piece.codec).init(piece.layout) for piece in self.pieces(layout)}
        return {name: state for name, state in kept.items() if state}

    def encode(self, x: Tensor, layout: Layout, key: Key) -> Payload:
        """All payloads as one."""
        payload, _ = self.encode_with(x, layout, self.init(layout), key)
        return payload

    def encode_with(self, x: Tensor, layout: Layout, state: State, key: Key) -> tuple[Payload, State]:
        """All payloads as one, and what each codec remembers."""
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
        """What each codec would remember."""
        return {name: self._of(name).skipped_state(inner) for name, inner in state.items()}

    def settle(self, state: State, delivered: bool) -> State:
        """Each codec learns whether the message arrived."""
        return {name: self._of(name).settle(inner, delivered) for name, inner in state.items()}

    def _of(self, name: str) -> CodecMemory:
        """The codec whose memory has that name."""
        return memory_of(self.others if name == "of rest." else self.codec)

    def decode(self, payload: Payload, layout: Layout, key: Key) -> Tensor:
        """Every tensor from its own payload."""
        tensors: Params = {}
        for piece, part, own in self._parts(payload, layout, key):
            tensors |= piece.layout.unflatten(piece.codec.decode(part, piece.layout, own))
        return layout.flatten(tensors)

    def fold(self, acc: Tensor, payload: Payload, layout: Layout, key: Key, weight: float) -> None:
        """Each codec adds to its own tensors, where they lie in the sum; nothing before all payloads are checked."""
        checked = [
            (piece.layout, piece.codec.fold_into(part, piece.layout, own, weight, acc))
            for piece, part, own in self._parts(payload, layout, key)
        ]
        entries = dict(layout.cut(acc))
        for mine, add in checked:
            add([entries[name] for name, _ in mine.shapes])

    def sum_size(self, layout: Layout) -> int:
        """All codes together."""
        return sum(sums_of(piece.codec).sum_size(piece.layout) for piece in self.pieces(layout))

    def to_sum(self, payload: Payload, layout: Layout, key: Key) -> Tensor:
        """All codes as one."""
        parts = list(self._parts(payload, layout, key))
        return torch.cat([sums_of(piece.codec).to_sum(part, piece.layout, own) for piece, part, own in reversed(parts)])

    def from_sum(self, mean: Tensor, layout: Layout, key: Key) -> Tensor:
        """Every tensor from its own code."""
        pieces, tensors = self.pieces(layout), Params()
        sizes = [sums_of(piece.codec).sum_size(piece.layout) for piece in pieces]
        for piece, own in zip(pieces, torch.split(mean, sizes), strict=True):
            vector = sums_of(piece.codec).from_sum(own, piece.layout, fold(key, "piece", piece.prefix))
            tensors |= piece.layout.unflatten(vector)
        return layout.flatten(tensors)

    def _parts(self, payload: Payload, layout: Layout, key: Key) -> Iterator[tuple[TensorGroup, Payload, Key]]:
        """Each piece with its share of a payload and its key; an array that is nobody's is refused."""
        left = dict(payload)
        for piece in reversed(self.pieces(layout)):  # the rest first: without each, the codec's arrays have no prefix
            mine = {name: left.pop(name) for name in list(left) if name.startswith(piece.prefix)}
            named = {name.removeprefix(piece.prefix): array for name, array in mine.items()}
            yield piece, named, fold(key, "piece", piece.prefix)
        if left:
            raise PayloadError(f"nothing is known of an array named {min(left)!r}")

    def surrogate_context(self, layout: Layout, steps: int, key: Key, device: torch.device) -> State:
        """What the codec needs for the tensors it takes."""
        found: State = {}
        for prefix, codec, own in self.pieces(layout):
            if prefix != "rest." and (
                context := surrogate_of(codec).surrogate_context(own, steps, fold(key, "piece", prefix), device)
            ):
                found[own.shapes[0][0] if self.per_tensor else "all"] = context
        return found

    def surrogate(self, change: Params, context: State, step_index: Tensor) -> Params:
        """The codec's rehearsal of the tensors it takes."""
        inside = {name: tensor for name, tensor in change.items() if self.chosen(name, tensor.dim())}
        if not self.per_tensor:
            return surrogate_of(self.codec).surrogate(inside, context["all"], step_index)
        seen: Params = {}
        for name, tensor in inside.items():
            seen |= surrogate_of(self.codec).surrogate({name: tensor}, context[name], step_index)
        return seen
