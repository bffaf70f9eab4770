"""What a codec is, and the part that codecs without memory need not write."""

from abc import ABC, abstractmethod

from torch import Tensor

from gossamer.random import Key
from gossamer.types import Layout, Payload, State


class Codec(ABC):
    """Turns a vector into a payload and back; see :func:`gossamer.testing.check_codec` for the contract."""

    @abstractmethod
    def encode(self, x: Tensor, layout: Layout, key: Key) -> Payload:
        """The payload for ``x``, the flat vector of ``layout.size`` entries; ``x`` stays as it is."""

    @abstractmethod
    def decode(self, payload: Payload, layout: Layout, key: Key) -> Tensor:
        """The vector that a payload stands for; raises ``PayloadError`` for one that ``encode`` cannot have made."""

    def init(self, layout: Layout) -> State:
        """What the codec remembers before the first round: nothing."""
        return {}

    def encode_with(self, x: Tensor, layout: Layout, state: State, key: Key) -> tuple[Payload, State]:
        """Encode with memory: the payload and what to remember, should it arrive or not."""
        return self.encode(x, layout, key), state

    def settle(self, state: State, delivered: bool) -> State:
        """What to remember, now that it is known whether the payload arrived."""
        return state
