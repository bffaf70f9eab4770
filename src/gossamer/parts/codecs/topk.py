"""Top-k: only the largest entries are sent, with their positions (Aji & Heafield, EMNLP 2017)."""

import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import torch
from torch import Tensor

from gossamer.core import indices as positions
from gossamer.core.codec import Codec
from gossamer.core.errors import PayloadError, require, wrong
from gossamer.core.random import Key
from gossamer.core.types import Layout, Payload, true_at
from gossamer.core.wire import expect, finite


@dataclass(frozen=True)
class TopK(Codec):
    """The entries of largest magnitude at the model's precision, the first of those that tie; zero elsewhere.

    Args:
        share: which part of the entries is kept, rounded up to a whole number of them
    """

    share: float = 0.03

    def __post_init__(self) -> None:
        require((0 < self.share <= 1, wrong(self, "share", "must be above 0 and at most 1")))

    def kept(self, count: int) -> int:
        """How many of so many entries are sent."""
        # As the decimal that was written: 0.07 * 100 is 7.000000000000001, and 8 when rounded up.
        return math.ceil(Fraction(str(self.share)) * count)

    def encode(self, x: Tensor, layout: Layout, key: Key) -> Payload:
        """The largest entries, in order of position, and their positions."""
        mask = top(finite(x, "change").abs(), self.kept(len(x)))
        return {"values": x[mask], **positions.pack(mask)}

    def decode(self, payload: Payload, layout: Layout, key: Key) -> Tensor:
        """Each value in its place, and zeros."""
        mask = positions.unpack(payload, layout.size)
        kept = self.kept(layout.size)
        if positions.marked(mask) != kept:
            raise PayloadError(f"expected positions of {kept:,} entries, got {positions.marked(mask):,}")
        return positions.spread(finite(expect(payload, "values", layout.dtype, kept), "values"), mask)


def top(sizes: Tensor, k: int) -> Tensor:
    """Marks of the ``k`` largest entries, of equal ones the first."""
    if k == 0:
        return torch.zeros_like(sizes, dtype=torch.bool)
    least = _kth_largest(sizes, k)
    mask = sizes > least
    ties = true_at(sizes == least)
    mask[ties[: k - positions.marked(mask)]] = True
    return mask


def _kth_largest(sizes: Tensor, k: int) -> Tensor:
    """One value, so every way to it gives the same; on a CPU, NumPy's is several times faster."""
    if sizes.device.type == "cpu":
        return torch.from_numpy(np.partition(sizes.numpy(), len(sizes) - k))[len(sizes) - k]
    return sizes.topk(k, sorted=False).values.min()
