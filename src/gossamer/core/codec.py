"""What a codec is; and what it may be besides: one that remembers, one whose codes add up, one that training feels.

Whoever writes a codec writes two pure functions, ``encode`` and ``decode``, and extends ``Codec``. One that keeps
something between rounds extends ``CodecMemory`` too, one whose payloads can be averaged before they are decoded
``Summing``, and one whose loss training is to feel ``StraightThrough``. For all others, ``memory_of``,
``sums_of`` and ``surrogate_of`` give what does nothing.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeVar

import torch
from torch import Tensor

from gossamer.core.errors import ConfigError, PayloadError
from gossamer.core.random import Key
from gossamer.core.types import Layout, Params, Payload, State
from gossamer.core.wire import finite

if TYPE_CHECKING:
    from gossamer.core.exchange import Context

T = TypeVar("T")

Kept = Literal["nothing", "last", "all"]
"""Which lost messages a codec makes up for."""

FoldInto = Callable[[Sequence[Tensor]], None]
"""Adds a payload to a sum that lies in pieces: one after the other they are the vector."""


class Codec(ABC):
    """Turns a vector into a payload and back; see ``gossamer.testing.check_codec`` for the contract."""

    @property
    def exact(self) -> bool:
        """Whether equal inputs give equal bytes on every device."""
        return True

    @property
    def unbiased(self) -> bool:
        """Whether what is decoded is, on average over keys, what was encoded."""
        return False

    @property
    def common(self) -> bool:
        """Whether all clients of a round encode by one key, so that what they send can be added up before decoding."""
        return False

    def bind(self: T, context: "Context") -> T:
        """The codec for a network; done once, before the first round. It may refuse what it does not go with."""
        return self

    @abstractmethod
    def encode(self, x: Tensor, layout: Layout, key: Key) -> Payload:
        """The payload for ``x``, the flat vector of ``layout.size`` entries; ``x`` stays as it is."""

    @abstractmethod
    def decode(self, payload: Payload, layout: Layout, key: Key) -> Tensor:
        """The vector that a payload stands for; raises ``PayloadError`` for one that ``encode`` cannot have made."""

    def fold(self, acc: Tensor, payload: Payload, layout: Layout, key: Key, weight: float) -> None:
        """Add ``weight`` times what a payload stands for to ``acc``; overridden where one pass over it does it all."""
        acc.add_(checked(self.decode(payload, layout, key), layout).to(acc.dtype) * weight)

    def fold_into(self, payload: Payload, layout: Layout, key: Key, weight: float, like: Tensor) -> FoldInto:
        """What ``fold`` would add to a sum of the type and device of ``like``, checked, but not added yet.

        Overridden with ``fold``, where the pieces of a sum can be gone through without a vector beside them.
        """
        total = torch.zeros(layout.size, dtype=like.dtype, device=like.device)
        self.fold(total, payload, layout, key, weight)

        def add(pieces: Sequence[Tensor]) -> None:
            for piece, part in zip(pieces, torch.split(total, [len(piece) for piece in pieces]), strict=True):
                piece.add_(part)

        return add


class CodecMemory(Codec):
    """A codec that remembers: what it could not send, or what was lost on its way.

    Memory is a nest of tensors that are shaped as the model's and called as these are; a view cuts it as it cuts them.
    """

    @property
    def retains(self) -> Kept:
        """Which lost messages the next one makes up for: none, the last, or all since one arrived."""
        return "nothing"

    def init(self, layout: Layout) -> State:
        """What the codec remembers before the first round."""
        return {}

    def encode_with(self, x: Tensor, layout: Layout, state: State, key: Key) -> tuple[Payload, State]:
        """Encode with memory: the payload and what to remember, should it arrive or not."""
        return self.encode(x, layout, key), state

    def settle(self, state: State, delivered: bool) -> State:
        """What to remember, now that it is known whether the payload arrived."""
        return state

    def skipped_state(self, state: State) -> State:
        """What it would remember after a round in which nothing was sent, in the form of ``encode_with``."""
        return state

    def companion(self, other: Codec) -> Codec:
        """What ``other`` becomes that takes further tensors in the same message: it makes up for as much."""
        return other


class Summing(Codec):
    """A codec whose payloads can be averaged before they are decoded."""

    def sum_size(self, layout: Layout) -> int:
        """How many entries a code has, see ``code``."""
        return layout.size

    def to_sum(self, payload: Payload, layout: Layout, key: Key) -> Tensor:
        """A payload as a vector that can be averaged: the mean of codes stands for the mean of what was encoded."""
        return checked(self.decode(payload, layout, key), layout)

    def from_sum(self, mean: Tensor, layout: Layout, key: Key) -> Tensor:
        """The vector that a code, or a mean of codes, stands for."""
        return mean


class StraightThrough(Codec):
    """A codec whose loss training feels: the forward pass sees what will be sent, the gradient passes it by."""

    def surrogate_context(self, layout: Layout, steps: int, key: Key, device: torch.device) -> State:
        """What training that feels this codec's loss needs in a round of so many steps; nothing: it does not feel it.

        ``layout`` and ``key`` are those that the change will be encoded with.
        """
        return {}

    def surrogate(self, change: Params, context: State, step_index: Tensor) -> Params:
        """The change that a step's forward pass uses in place of the true one, for the tensors where they differ.

        ``aid`` is what ``rehearsal`` gave, ``taken`` counts the steps of the round before this one. The gradient
        there is taken for the gradient at the true change (straight through). Pure, so that it can be compiled.
        """
        return {}


@dataclass(frozen=True)
class Plain(CodecMemory, Summing, StraightThrough):
    """A codec without memory, whose codes are what it decodes, and of which training knows nothing."""

    codec: Codec

    def encode(self, x: Tensor, layout: Layout, key: Key) -> Payload:
        """As the codec does."""
        return self.codec.encode(x, layout, key)

    def decode(self, payload: Payload, layout: Layout, key: Key) -> Tensor:
        """As the codec does."""
        return self.codec.decode(payload, layout, key)


def memory_of(codec: Codec) -> CodecMemory:
    """The codec as one that remembers; if it is none, as one that remembers nothing."""
    return codec if isinstance(codec, CodecMemory) else _plain(codec, "CodecMemory", "encode_with")


def sums_of(codec: Codec) -> Summing:
    """The codec as one whose codes add up; if it is none, its codes are what it decodes."""
    return codec if isinstance(codec, Summing) else _plain(codec, "Summing", "from_sum")


def surrogate_of(codec: Codec) -> StraightThrough:
    """The codec as one that training feels; if it is none, as one that it does not."""
    return codec if isinstance(codec, StraightThrough) else _plain(codec, "StraightThrough", "surrogate")


def _plain(codec: Codec, base: str, member: str) -> Plain:
    """The codec without something; one that has it all the same was written for version 0.1."""
    if hasattr(codec, member):
        name = type(codec).__name__
        raise ConfigError(f"{name} has {member}, which is a member of {base} now: class {name}({base})")
    return Plain(codec)


def checked(vector: Tensor, layout: Layout) -> Tensor:
    """What a codec decoded, if it is of the right size and finite."""
    if vector.shape != (layout.size,):
        raise PayloadError(f"decoded shape {tuple(vector.shape)}, expected {layout.size} entries")
    return finite(vector.to(layout.dtype), "change")
