"""What codecs share that change what another one is given, and not what it makes of that."""

from torch import Tensor

from gossamer.codecs.base import Adding, Codec, CodecMemory, Summing, sums_of
from gossamer.random import Key
from gossamer.types import Layout, Payload


class Around(CodecMemory, Summing):
    """A codec around another, by which all is read as the one inside wrote it."""

    codec: Codec

    @property
    def exact(self) -> bool:
        """Where the codec inside is."""
        return self.codec.exact

    @property
    def common(self) -> bool:
        """Where the codec inside asks for it."""
        return self.codec.common

    def encode(self, x: Tensor, layout: Layout, key: Key) -> Payload:
        """The payload when nothing is remembered."""
        return self.codec.encode(x, layout, key)

    def decode(self, payload: Payload, layout: Layout, key: Key) -> Tensor:
        """As the codec inside."""
        return self.codec.decode(payload, layout, key)

    def fold(self, acc: Tensor, payload: Payload, layout: Layout, key: Key, weight: float) -> None:
        """As the codec inside."""
        self.codec.fold(acc, payload, layout, key, weight)

    def adding(self, payload: Payload, layout: Layout, key: Key, weight: float, like: Tensor) -> Adding:
        """As the codec inside."""
        return self.codec.adding(payload, layout, key, weight, like)

    def codes(self, layout: Layout) -> int:
        """As the codec inside."""
        return sums_of(self.codec).codes(layout)

    def code(self, payload: Payload, layout: Layout, key: Key) -> Tensor:
        """As the codec inside."""
        return sums_of(self.codec).code(payload, layout, key)

    def restore(self, code: Tensor, layout: Layout, key: Key) -> Tensor:
        """As the codec inside."""
        return sums_of(self.codec).restore(code, layout, key)
