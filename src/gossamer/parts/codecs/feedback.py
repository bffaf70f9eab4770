"""Error feedback: what a codec lost, or the channel did, is added to what is sent next."""

from dataclasses import dataclass

import torch
from torch import Tensor

from gossamer.core.codec import Codec, Kept, memory_of
from gossamer.core.random import Key
from gossamer.core.types import Layout, Payload, State
from gossamer.parts.codecs.retain import Retain
from gossamer.parts.codecs.wrapper import CodecWrapper


@dataclass(frozen=True)
class Feedback(CodecWrapper):
    """Remembers what the server has not got, and sends it with the next change.

    If a message arrives, what its codec lost is kept; if it does not, everything is. Nothing is lost for good, only
    delayed, so biased codecs (top-k, signs) still get there. Training does not rehearse the codec inside.

    Args:
        codec: what the change goes through, with what is owed added
    """

    codec: Codec

    @property
    def retains(self) -> Kept:
        """All that was lost is owed."""
        return "all"

    def companion(self, other: Codec) -> Codec:
        """One that owes what was lost as well."""
        return Retain(other, accumulate=True) if memory_of(other).retains == "nothing" else other

    def init(self, layout: Layout) -> State:
        """Nothing is owed yet."""
        return {"owed": {name: torch.zeros(shape, dtype=layout.dtype) for name, shape in layout.shapes}}

    def encode_with(self, x: Tensor, layout: Layout, state: State, key: Key) -> tuple[Payload, State]:
        """The payload for the change with what is owed, and what will be owed after it."""
        whole = x + layout.flatten(state["owed"]).to(x.device)
        payload = self.codec.encode(whole, layout, key)
        lost = whole - self.codec.decode(payload, layout, key)
        return payload, {"owed": layout.unflatten(lost), "whole": layout.unflatten(whole)}

    def skipped_state(self, state: State) -> State:
        """All that was owed is owed still."""
        return {"owed": state["owed"], "whole": state["owed"]}

    def settle(self, state: State, delivered: bool) -> State:
        """What the codec lost, or all of it."""
        return {"owed": state["owed" if delivered else "whole"]}
