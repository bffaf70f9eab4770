"""TernGrad: minus, zero or plus the largest magnitude, drawn so that it is right on average (Wen et al., NIPS 2017).

With s the largest magnitude of the vector, an entry u becomes s times its sign with probability |u| / s, and else zero.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from gossamer.core.bits import expect_trits, trits
from gossamer.core.codec import Codec
from gossamer.core.random import Key, fold, uniform
from gossamer.core.types import Layout, Payload
from gossamer.core.wire import finite
from gossamer.parts.codecs.scale import expect_scale, largest, ratio


@dataclass(frozen=True)
class Ternary(Codec):
    """One of three values for each entry, five entries to a byte: 1.6 bits an entry, and one scale for the vector."""

    @property
    def unbiased(self) -> bool:
        """Each entry is right on average."""
        return True

    def encode(self, x: Tensor, layout: Layout, key: Key) -> Payload:
        """A trit an entry, and the scale."""
        scale = largest(finite(x, "change"))
        noise = uniform(fold(key, "ternary"), layout.size, dtype=layout.dtype, device=x.device)
        part = ratio(x, scale)
        return {"trits": trits((noise < part).to(torch.int8) - (noise < -part).to(torch.int8)), "scale": scale}

    def decode(self, payload: Payload, layout: Layout, key: Key) -> Tensor:
        """Trit times scale."""
        signs = expect_trits(payload, "trits", layout.size)
        return signs.to(layout.dtype) * expect_scale(payload, layout)
