"""TernGrad (Wen et al., NIPS 2017, https://arxiv.org/abs/1705.07878): each entry as -1, 0 or 1 times a scale.

With s the largest magnitude of the vector, an entry u becomes s times its sign with probability |u| / s, else zero. So
each entry is unbiased. Most entries are zero, so the trits are sent in an entropy code (``gossamer.core.entropy``).
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from gossamer.core import entropy
from gossamer.core.bits import TRITS, expect_trits, trits
from gossamer.core.codec import Codec
from gossamer.core.random import Key, fold, uniform
from gossamer.core.types import Layout, Payload
from gossamer.core.wire import finite
from gossamer.parts.codecs.scale import expect_scale, largest, ratio


@dataclass(frozen=True)
class Ternary(Codec):
    """Sends one of three values per entry, at most 1.6 bits, and one scale.

    TernGrad, https://arxiv.org/abs/1705.07878.

    Args:
        coded: send the entropy code of the values where it is shorter than five values per byte
    """

    coded: bool = True

    @property
    def unbiased(self) -> bool:
        """True: each entry is unbiased."""
        return True

    def encode(self, x: Tensor, layout: Layout, key: Key) -> Payload:
        """Return one trit per entry, and the scale."""
        scale = largest(finite(x, "change"))
        noise = uniform(fold(key, "ternary"), layout.size, dtype=layout.dtype, device=x.device)
        part = ratio(x, scale)
        signs = (noise < part).to(torch.int8) - (noise < -part).to(torch.int8)
        packed = {"trits": trits(signs)}
        return {**(entropy.shorter(packed, signs % 3, 3) if self.coded else packed), "scale": scale}

    def decode(self, payload: Payload, layout: Layout, key: Key) -> Tensor:
        """Return trit times scale."""
        return self._signs(payload, layout.size).to(layout.dtype) * expect_scale(payload, layout)

    def _signs(self, payload: Payload, count: int) -> Tensor:
        if not self.coded or entropy.NAME not in payload:
            return expect_trits(payload, "trits", count)
        digits = entropy.expect_symbols(payload, 3, count, -(-count // TRITS)).view(torch.int8)
        return digits - digits // 2 * 3
