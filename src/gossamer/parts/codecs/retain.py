"""Retransmission of lost updates: a lost update is added to the next one.

By default, only the last update is kept: what was lost in an earlier round is forgotten. With ``accumulate``, all lost
updates are kept.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from gossamer.core.codec import Codec, Coding, Kept
from gossamer.core.errors import require, wrong
from gossamer.core.types import Layout, Payload, State
from gossamer.parts.codecs.names import fits
from gossamer.parts.codecs.wrapper import CodecWrapper, refuse_private

STATISTICS = ("*running_mean", "*running_var")
"""Running statistics. Their changes are relative to the current model, so two of them must not be added."""


def nothing_lost(layout: Layout) -> State:
    """Return the client state of retransmission: the lost update, as tensors of the model."""
    return {"lost": {name: torch.zeros(shape, dtype=layout.dtype) for name, shape in layout.shapes}}


def lost_after(memory: State, delivered: bool) -> State:
    """Return the state without a lost update, or with the one that was just sent, ``sent``."""
    return {"lost": memory["lost" if delivered else "sent"]} if "sent" in memory else memory


def lost_if_skipped(memory: State, accumulate: bool) -> State:
    """Return the state of entries that were not sent. Without ``accumulate``, their lost update is forgotten."""
    kept = memory["lost"] if accumulate else {name: torch.zeros_like(t) for name, t in memory["lost"].items()}
    return {"lost": kept, "sent": kept}


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
    def retains(self) -> Kept:
        """All lost updates with ``accumulate``, else the last."""
        return "all" if self.accumulate else "last"

    @property
    def exact(self) -> bool:
        """Delegate to the wrapped codec."""
        return self.codec.exact

    @property
    def unbiased(self) -> bool:
        """Delegate to the wrapped codec."""
        return self.codec.unbiased

    def init(self, layout: Layout) -> State:
        """Return the state without a lost update."""
        return nothing_lost(layout)

    def encode(self, x: Tensor, ctx: Coding) -> Payload:
        """Return the payload of the wrapped codec, as with an empty state."""
        return self.codec.encode(x, ctx)

    def encode_with(self, x: Tensor, memory: State, ctx: Coding) -> tuple[Payload, State]:
        """Return the payload of the update plus the lost update, and the new state."""
        whole = x + self.coefficient * ctx.layout.flatten(memory["lost"]).to(x.device)
        sent = ctx.layout.unflatten(whole if self.accumulate else x)
        left = {name for name in sent if any(fits(name, pattern) for pattern in self.leave)}
        kept = {name: torch.zeros_like(tensor) if name in left else tensor for name, tensor in sent.items()}
        return self.codec.encode(whole, ctx), {"lost": ctx.layout.unflatten(torch.zeros_like(x)), "sent": kept}

    def skipped(self, memory: State) -> State:
        """Return the state of entries that were not sent."""
        return lost_if_skipped(memory, self.accumulate)

    def settle(self, memory: State, delivered: bool) -> State:
        """Return the state without a lost update, or with the one that was just sent."""
        return lost_after(memory, delivered)
