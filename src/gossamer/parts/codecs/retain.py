"""What a client remembers of messages that were lost, and the codec that adds it to what is sent next.

Memory is of one round: what was lost in the round before last is forgotten, unless all of it accumulates.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from gossamer.core.codec import Codec, Kept
from gossamer.core.errors import require, wrong
from gossamer.core.random import Key
from gossamer.core.types import Layout, Params, Payload, State
from gossamer.parts.codecs.names import fits
from gossamer.parts.codecs.wrapper import CodecWrapper

STATISTICS = ("*running_mean", "*running_var")
"""Tensors that tell where a client stands, and not where it goes: two changes of them must not be added up."""


@dataclass(frozen=True)
class LostChange:
    """The change that was lost, as tensors of the model: ``lost``; and until that is known, what was ``sent``.

    Args:
        accumulate: whether what was lost twice is kept still
    """

    accumulate: bool = False

    def empty(self, layout: Layout) -> State:
        """Nothing was lost yet."""
        return {"lost": {name: torch.zeros(shape, dtype=layout.dtype) for name, shape in layout.shapes}}

    def lost(self, state: State, x: Tensor, layout: Layout) -> Tensor:
        """What was lost, as a vector beside ``x``."""
        return layout.flatten(state["lost"]).to(x.device)

    def after(self, x: Tensor, whole: Tensor, layout: Layout) -> State:
        """Once ``whole`` was sent: the change ``x``, and what came with it."""
        kept = whole if self.accumulate else x
        return {"lost": layout.unflatten(torch.zeros_like(x)), "sent": layout.unflatten(kept)}

    def skipped_state(self, state: State) -> State:
        """Of entries that are not held: they were not sent with the last message, which is all that is remembered."""
        kept = state["lost"] if self.accumulate else {name: torch.zeros_like(t) for name, t in state["lost"].items()}
        return {"lost": kept, "sent": kept}

    def settle(self, state: State, delivered: bool) -> State:
        """Nothing is lost, or what was just sent."""
        return {"lost": state["lost" if delivered else "sent"]} if "sent" in state else state


@dataclass(frozen=True)
class Retain(CodecWrapper):
    """Adds a change that was lost to the next one. Training does not rehearse the codec inside.

    Args:
        codec: what the sum goes through
        coefficient: what the lost change is multiplied by
        accumulate: whether a change that was lost twice is kept still
        leave: names of tensors that are not retained; * stands for anything
    """

    codec: Codec
    coefficient: float = 1.0
    accumulate: bool = False
    leave: tuple[str, ...] = STATISTICS

    def __post_init__(self) -> None:
        require((0 < self.coefficient < math.inf, wrong(self, "coefficient", "must be positive")))

    @property
    def memory(self) -> LostChange:
        """How lost changes are kept."""
        return LostChange(self.accumulate)

    @property
    def retains(self) -> Kept:
        """All of them, or the last."""
        return "all" if self.accumulate else "last"

    @property
    def unbiased(self) -> bool:
        """Where the codec inside is."""
        return self.codec.unbiased

    def init(self, layout: Layout) -> State:
        """Nothing was lost yet."""
        return self.memory.empty(layout)

    def encode_with(self, x: Tensor, layout: Layout, state: State, key: Key) -> tuple[Payload, State]:
        """The payload of the sum, and what to remember."""
        whole = x + self.coefficient * self.memory.lost(state, x, layout)
        after = self.memory.after(x, whole, layout)
        return self.codec.encode(whole, layout, key), {**after, "sent": self._retained(after["sent"])}

    def _retained(self, sent: Params) -> Params:
        left = {name for name in sent if any(fits(name, pattern) for pattern in self.leave)}
        return {name: torch.zeros_like(tensor) if name in left else tensor for name, tensor in sent.items()}

    def skipped_state(self, state: State) -> State:
        """What is not held was not sent."""
        return self.memory.skipped_state(state)

    def settle(self, state: State, delivered: bool) -> State:
        """Nothing is lost, or what was just sent."""
        return self.memory.settle(state, delivered)
