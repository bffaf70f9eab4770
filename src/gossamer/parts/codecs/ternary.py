"""TernGrad (Wen et al., NIPS 2017, https://arxiv.org/abs/1705.07878): each entry as -1, 0 or 1 times a scale.

With s the largest magnitude of the vector, an entry u becomes s times its sign with probability |u| / s, else zero. So
each entry is unbiased.
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
    """Sends one of three values per entry, five entries per byte (1.6 bits per entry), and one scale.

    TernGrad, https://arxiv.org/abs/1705.07878.
    """

    @property
    def unbiased(self) -> bool:
        """True: each entry is unbiased."""
        return True

    def encode(self, x: Tensor, layout: Layout, key: Key) -> Payload:
        """Return one trit per entry, and the scale."""
        scale = largest(finite(x, "change"))
        noise = uniform(fold(key, "ternary"), layout.size, dtype=layout.dtype, device=x.device)
        part = ratio(x, scale)
        return {"trits": trits((noise < part).to(torch.int8) - (noise < -part).to(torch.int8)), "scale": scale}

    def decode(self, payload: Payload, layout: Layout, key: Key) -> Tensor:
        """Return trit times scale."""
        signs = expect_trits(payload, "trits", layout.size)
        return signs.to(layout.dtype) * expect_scale(payload, layout)
