"""Error feedback: the error of a codec, or a lost update, is added to the next update.

Seide et al., INTERSPEECH 2014 (https://doi.org/10.21437/Interspeech.2014-274); Karimireddy et al., ICML 2019
(https://arxiv.org/abs/1901.09847).
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from gossamer.core.codec import Codec, Coding, Kept
from gossamer.core.types import Layout, Payload, State
from gossamer.parts.codecs.retain import Retain
from gossamer.parts.codecs.wrapper import CodecWrapper, refuse_private


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
