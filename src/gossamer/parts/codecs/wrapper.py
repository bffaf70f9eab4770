"""What codecs share that change what another one is given, and not what it makes of that."""

from torch import Tensor

from gossamer.core.codec import Codec, CodecMemory, FoldInto, Summing, sums_of
from gossamer.core.random import Key
from gossamer.core.types import Layout, Payload


class CodecWrapper(CodecMemory, Summing):
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

    def fold_into(self, payload: Payload, layout: Layout, key: Key, weight: float, like: Tensor) -> FoldInto:
        """As the codec inside."""
        return self.codec.fold_into(payload, layout, key, weight, like)

    def sum_size(self, layout: Layout) -> int:
        """As the codec inside."""
        return sums_of(self.codec).sum_size(layout)

    def to_sum(self, payload: Payload, layout: Layout, key: Key) -> Tensor:
        """As the codec inside."""
        return sums_of(self.codec).to_sum(payload, layout, key)

    def from_sum(self, mean: Tensor, layout: Layout, key: Key) -> Tensor:
        """As the codec inside."""
        return sums_of(self.codec).from_sum(mean, layout, key)
