"""A vector with many zeros, whole: the values that are not zero, and where they are."""

from dataclasses import dataclass

from torch import Tensor

from gossamer.core import indices as positions
from gossamer.core.codec import Codec
from gossamer.core.errors import PayloadError
from gossamer.core.random import Key
from gossamer.core.types import Layout, Payload
from gossamer.core.wire import expect, finite


@dataclass(frozen=True)
class Sparse(Codec):
    """All entries that are not zero at the model's precision, with their positions as ``positions`` codes them.

    Nothing is lost but the sign of a negative zero.
    """

    @property
    def unbiased(self) -> bool:
        """Nothing is lost."""
        return True

    def encode(self, x: Tensor, layout: Layout, key: Key) -> Payload:
        """Values other than zero, in order, and their positions."""
        mask = finite(x, "change") != 0
        return {"values": x[mask], **positions.pack(mask)}

    def decode(self, payload: Payload, layout: Layout, key: Key) -> Tensor:
        """Each value in its place, and zeros."""
        mask = positions.unpack(payload, layout.size)
        values = finite(expect(payload, "values", layout.dtype, positions.marked(mask)), "values")
        if bool((values == 0).any()):
            raise PayloadError("'values' holds a zero, which is not to be sent")
        return positions.spread(values, mask)
