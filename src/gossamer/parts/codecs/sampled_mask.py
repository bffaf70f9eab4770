"""One bit a score: a mask drawn from the scores, 1 with probability sigmoid(score) (FedPM)."""

from dataclasses import dataclass

import torch
from torch import Tensor

from gossamer.core import bits as packing
from gossamer.core.codec import Codec
from gossamer.core.random import Key, uniform
from gossamer.core.types import Layout, Payload
from gossamer.core.wire import finite


@dataclass(frozen=True)
class SampledMask(Codec):
    """Scores as bits; what is decoded is 0 or 1, on average the sigmoid of the score."""

    @property
    def exact(self) -> bool:
        """No: the last bit of a sigmoid differs from one device to the next, and may decide a draw."""
        return False

    def encode(self, x: Tensor, layout: Layout, key: Key) -> Payload:
        """The mask."""
        drawn = uniform(key, layout.size, dtype=x.dtype, device=x.device)
        return {"mask": packing.bits(drawn < torch.sigmoid(finite(x, "scores")))}

    def decode(self, payload: Payload, layout: Layout, key: Key) -> Tensor:
        """Zeros and ones."""
        return packing.numbers(packing.expect_bits(payload, "mask", layout.size), layout.dtype)
