"""Lossless sparse codec: the nonzero values and their indices."""

from dataclasses import dataclass

from torch import Tensor

from gossamer.core import indices
from gossamer.core.codec import Codec, Coding
from gossamer.core.errors import PayloadError
from gossamer.core.types import Payload
from gossamer.core.wire import expect, finite


@dataclass(frozen=True)
class Sparse(Codec):
    """Sends all nonzero entries at the model's precision, and their indices (``gossamer.core.indices``).

    It is lossless, except for the sign of a negative zero.
    """

    @property
    def unbiased(self) -> bool:
        """True: the codec is lossless."""
        return True

    def encode(self, x: Tensor, ctx: Coding) -> Payload:
        """Return the nonzero values, in order, and their indices."""
        mask = finite(x, "change") != 0
        return {"values": x[mask], **indices.pack(mask)}

    def decode(self, payload: Payload, ctx: Coding) -> Tensor:
        """Return the values at their indices, and zeros elsewhere."""
        mask = indices.unpack(payload, ctx.layout.size)
        values = finite(expect(payload, "values", ctx.layout.dtype, indices.marked(mask)), "values")
        if bool((values == 0).any()):
            raise PayloadError("'values' must not contain zeros")
        return indices.spread(values, mask)
