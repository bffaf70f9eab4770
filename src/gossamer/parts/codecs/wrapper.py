"""Base of codecs that modify the input of another codec, and use its payload unchanged."""

from torch import Tensor

from gossamer.core.codec import Codec, Coding, FoldInto
from gossamer.core.errors import ConfigError
from gossamer.core.secure import SumSegment
from gossamer.core.types import Layout, Payload


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
