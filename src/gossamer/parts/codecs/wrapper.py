"""Base of codecs that modify the input of another codec, and use its payload unchanged."""

from dataclasses import replace
from typing import Any, Self, cast

from torch import Tensor

from gossamer.core.codec import (
    Codec,
    CodecMemory,
    FoldInto,
    IntegerSums,
    OwnDraws,
    OwnFold,
    Replayable,
    Wrapping,
    folds_decoded,
    of_client,
    replay_of,
    sum_limit,
    sum_segments,
    sums_of,
    unsummable,
)
from gossamer.core.errors import ConfigError
from gossamer.core.privacy import PrivatePart
from gossamer.core.random import Key
from gossamer.core.secure import SumSegment
from gossamer.core.types import Layout, Payload


class CodecWrapper(CodecMemory, IntegerSums, OwnDraws, OwnFold, Replayable, Wrapping):
    """A codec with client state around another codec. Payloads are those of the wrapped codec.

    Args:
        codec: the wrapped codec
    """

    codec: Codec

    @property
    def exact(self) -> bool:
        """Delegate to the wrapped codec."""
        return self.codec.exact

    @property
    def common(self) -> bool:
        """Delegate to the wrapped codec."""
        return self.codec.common

    @property
    def wrapped(self) -> tuple[Codec, ...]:
        """The wrapped codec."""
        return (self.codec,)

    def encode(self, x: Tensor, layout: Layout, key: Key) -> Payload:
        """Delegate to the wrapped codec: the payload with an empty state."""
        return self.codec.encode(x, layout, key)

    def decode(self, payload: Payload, layout: Layout, key: Key) -> Tensor:
        """Delegate to the wrapped codec."""
        return self.codec.decode(payload, layout, key)

    def fold(self, acc: Tensor, payload: Payload, layout: Layout, key: Key, weight: float) -> None:
        """Delegate to the wrapped codec."""
        self.codec.fold(acc, payload, layout, key, weight)

    @property
    def folds_decoded(self) -> bool:
        """Delegate to the wrapped codec."""
        return folds_decoded(self.codec)

    def fold_into(self, payload: Payload, layout: Layout, key: Key, weight: float, like: Tensor) -> FoldInto:
        """Delegate to the wrapped codec."""
        return self.codec.fold_into(payload, layout, key, weight, like)

    def sum_size(self, layout: Layout) -> int:
        """Delegate to the wrapped codec."""
        return sums_of(self.codec).sum_size(layout)

    def to_sum(self, payload: Payload, layout: Layout, key: Key) -> Tensor:
        """Delegate to the wrapped codec."""
        return sums_of(self.codec).to_sum(payload, layout, key)

    def from_sum(self, mean: Tensor, layout: Layout, key: Key) -> Tensor:
        """Delegate to the wrapped codec."""
        return sums_of(self.codec).from_sum(mean, layout, key)

    def sum_limit(self, layout: Layout) -> int:
        """Delegate to the wrapped codec."""
        return sum_limit(self.codec, layout)

    def sum_segments(self, layout: Layout) -> tuple[SumSegment, ...]:
        """Delegate to the wrapped codec."""
        return sum_segments(self.codec, layout)

    def unsummable(self) -> str:
        """Delegate to the wrapped codec."""
        return unsummable(self.codec)

    def of_client(self, client: int) -> Self:
        """Delegate to the wrapped codec."""
        codec = of_client(self.codec, client)
        return self if codec is self.codec else replace(cast(Any, self), codec=codec)

    def unreplayable(self) -> str:
        """Delegate to the wrapped codec."""
        return replay_of(self.codec).unreplayable()

    def replayed(self, payload: Payload, layout: Layout) -> tuple[Payload, Layout]:
        """Delegate to the wrapped codec."""
        return replay_of(self.codec).replayed(payload, layout)


def refuse_private(wrapper: CodecWrapper) -> None:
    """Refuse a codec with noise of differential privacy in a wrapper that sends again what was lost."""
    if isinstance(wrapper.codec, PrivatePart):
        name, inner = (type(part).__name__ for part in (wrapper, wrapper.codec))
        raise ConfigError(
            f"{name} cannot contain {inner}: what is lost to clipping and noise must not be sent later, so use "
            f"{inner} alone"
        )
