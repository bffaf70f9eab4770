"""Codecs that change what another codec encodes, and send its payload: error feedback and retransmission.

**Feedback**: the error of a codec, or a lost update, is added to the next update. Seide et al., INTERSPEECH 2014
(https://doi.org/10.21437/Interspeech.2014-274); Karimireddy et al., ICML 2019 (https://arxiv.org/abs/1901.09847).

**Retain**: a lost update is added to the next one. By default, only the last update is kept: what was lost in an
earlier round is forgotten. With ``accumulate``, all lost updates are kept.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from gossamer.core.codec import Codec, Coding, FoldInto, Kept
from gossamer.core.errors import ConfigError, require, wrong
from gossamer.core.secure import SumSegment
from gossamer.core.types import Layout, Payload, State, fits

STATISTICS = ("*running_mean", "*running_var")
"""Running statistics. Their changes are relative to the current model, so two of them must not be added."""


class CodecWrapper(Codec):
    """A codec whose payloads are those of the codec in it.

    Args:
        codec: the wrapped codec
    """

    codec: Codec

    @property
    def common(self) -> bool:
        """Delegate to the wrapped codec."""
        return self.codec.common

    @property
    def wrapped(self) -> tuple[Codec, ...]:
        """The wrapped codec."""
        return (self.codec,)

    def decode(self, payload: Payload, ctx: Coding) -> Tensor:
        """Delegate to the wrapped codec."""
        return self.codec.decode(payload, ctx)

    def fold(self, acc: Tensor, payload: Payload, ctx: Coding, weight: float) -> None:
        """Delegate to the wrapped codec."""
        self.codec.fold(acc, payload, ctx, weight)

    @property
    def folds_decoded(self) -> bool:
        """Delegate to the wrapped codec."""
        return self.codec.folds_decoded

    def fold_into(self, payload: Payload, ctx: Coding, weight: float, like: Tensor) -> FoldInto:
        """Delegate to the wrapped codec."""
        return self.codec.fold_into(payload, ctx, weight, like)

    def sum_size(self, layout: Layout) -> int:
        """Delegate to the wrapped codec."""
        return self.codec.sum_size(layout)

    def to_sum(self, payload: Payload, ctx: Coding) -> Tensor:
        """Delegate to the wrapped codec."""
        return self.codec.to_sum(payload, ctx)

    def from_sum(self, mean: Tensor, ctx: Coding) -> Tensor:
        """Delegate to the wrapped codec."""
        return self.codec.from_sum(mean, ctx)

    def sum_segments(self, layout: Layout) -> tuple[SumSegment, ...]:
        """Delegate to the wrapped codec."""
        return self.codec.sum_segments(layout)

    def unsummable(self) -> str:
        """Delegate to the wrapped codec."""
        return self.codec.unsummable()

    def unreplayable(self) -> str:
        """Delegate to the wrapped codec."""
        return self.codec.unreplayable()

    def replayed(self, payload: Payload, layout: Layout) -> tuple[Payload, Layout]:
        """Delegate to the wrapped codec."""
        return self.codec.replayed(payload, layout)


def refuse_private(wrapper: CodecWrapper) -> None:
    """Refuse a codec with noise of differential privacy in a wrapper that sends again what was lost."""
    if wrapper.codec.private:
        name, inner = (type(part).__name__ for part in (wrapper, wrapper.codec))
        raise ConfigError(
            f"{name} cannot contain {inner}: what is lost to clipping and noise must not be sent later, so use "
            f"{inner} alone"
        )


@dataclass(frozen=True)
class Feedback(CodecWrapper):
    """Adds everything that the server has not received to the next update.

    If a message arrives, the error of its codec is kept. If it is lost, the whole update is kept. So errors are delayed
    rather than lost, and training with biased codecs (top-k, signs) converges. A surrogate of the wrapped codec is not
    used in training.

    Args:
        codec: the codec of the update plus the accumulated error
    """

    codec: Codec

    def __post_init__(self) -> None:
        refuse_private(self)

    @property
    def exact(self) -> bool:
        """Delegate to the wrapped codec."""
        return self.codec.exact

    @property
    def retains(self) -> Kept:
        """All lost updates are sent again."""
        return "all"

    def companion(self, other: Codec) -> Codec:
        """Return ``other`` with lost updates added to the next one."""
        return Retain(other, accumulate=True) if other.retains == "nothing" else other

    def init(self, layout: Layout) -> State:
        """Return an error of zero."""
        return {"owed": {name: torch.zeros(shape, dtype=layout.dtype) for name, shape in layout.shapes}}

    def encode(self, x: Tensor, ctx: Coding) -> Payload:
        """Return the payload of the wrapped codec, as with an empty state."""
        return self.codec.encode(x, ctx)

    def encode_with(self, x: Tensor, memory: State, ctx: Coding) -> tuple[Payload, State]:
        """Return the payload of the update plus the error, and the error after a delivery and after a loss."""
        whole = x + ctx.layout.flatten(memory["owed"]).to(x.device)
        payload = self.codec.encode(whole, ctx)
        lost = whole - self.codec.decode(payload, ctx)
        return payload, {"owed": ctx.layout.unflatten(lost), "whole": ctx.layout.unflatten(whole)}

    def skipped(self, memory: State) -> State:
        """Return the same error."""
        return {"owed": memory["owed"], "whole": memory["owed"]}

    def settle(self, memory: State, delivered: bool) -> State:
        """Return the codec's error after a delivery, or the whole update after a loss."""
        return {"owed": memory["owed" if delivered else "whole"]}


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
