"""Retransmission of lost updates: a lost update is added to the next one.

By default, only the last update is kept: what was lost in an earlier round is forgotten. With ``accumulate``, all lost
updates are kept.
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
from gossamer.parts.codecs.wrapper import CodecWrapper, refuse_private

STATISTICS = ("*running_mean", "*running_var")
"""Running statistics. Their changes are relative to the current model, so two of them must not be added."""


@dataclass(frozen=True)
class LostChange:
    """The client state of retransmission.

    ``lost`` holds the lost update as tensors of the model. Until ``settle``, ``sent`` holds what was just sent.

    Args:
        accumulate: keep updates that were lost more than once
    """

    accumulate: bool = False

    def empty(self, layout: Layout) -> State:
        """Return the state without a lost update."""
        return {"lost": {name: torch.zeros(shape, dtype=layout.dtype) for name, shape in layout.shapes}}

    def lost(self, state: State, x: Tensor, layout: Layout) -> Tensor:
        """Return the lost update as a vector on the device of ``x``."""
        return layout.flatten(state["lost"]).to(x.device)

    def after(self, x: Tensor, whole: Tensor, layout: Layout) -> State:
        """Return the state after sending ``whole``, the update ``x`` plus a lost update."""
        kept = whole if self.accumulate else x
        return {"lost": layout.unflatten(torch.zeros_like(x)), "sent": layout.unflatten(kept)}

    def skipped_state(self, state: State) -> State:
        """Return the state of entries that were not sent. Without ``accumulate``, their lost update is forgotten."""
        kept = state["lost"] if self.accumulate else {name: torch.zeros_like(t) for name, t in state["lost"].items()}
        return {"lost": kept, "sent": kept}

    def settle(self, state: State, delivered: bool) -> State:
        """Return the state without a lost update, or with the one that was just sent."""
        return {"lost": state["lost" if delivered else "sent"]} if "sent" in state else state


@dataclass(frozen=True)
class Retain(CodecWrapper):
    """Adds a lost update to the next one. The surrogate of the wrapped codec is not used in training.

    Args:
        codec: the codec of the sum
        coefficient: the factor of the lost update
        accumulate: keep updates that were lost more than once
        leave: names of tensors that are not sent again; * matches any text
    """

    codec: Codec
    coefficient: float = 1.0
    accumulate: bool = False
    leave: tuple[str, ...] = STATISTICS

    def __post_init__(self) -> None:
        require((0 < self.coefficient < math.inf, wrong(self, "coefficient", "must be positive")))
        refuse_private(self)

    @property
    def memory(self) -> LostChange:
        """The operations on the client state."""
        return LostChange(self.accumulate)

    @property
    def retains(self) -> Kept:
        """All lost updates with ``accumulate``, else the last."""
        return "all" if self.accumulate else "last"

    @property
    def unbiased(self) -> bool:
        """Delegate to the wrapped codec."""
        return self.codec.unbiased

    def init(self, layout: Layout) -> State:
        """Return the state without a lost update."""
        return self.memory.empty(layout)

    def encode_with(self, x: Tensor, layout: Layout, state: State, key: Key) -> tuple[Payload, State]:
        """Return the payload of the update plus the lost update, and the new state."""
        whole = x + self.coefficient * self.memory.lost(state, x, layout)
        after = self.memory.after(x, whole, layout)
        return self.codec.encode(whole, layout, key), {**after, "sent": self._retained(after["sent"])}

    def _retained(self, sent: Params) -> Params:
        excluded = {name for name in sent if any(fits(name, pattern) for pattern in self.leave)}
        return {name: torch.zeros_like(tensor) if name in excluded else tensor for name, tensor in sent.items()}

    def skipped_state(self, state: State) -> State:
        """Return the state of entries that were not sent."""
        return self.memory.skipped_state(state)

    def settle(self, state: State, delivered: bool) -> State:
        """Return the state without a lost update, or with the one that was just sent."""
        return self.memory.settle(state, delivered)
