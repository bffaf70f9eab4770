"""Top-k sparsification: only the entries of largest magnitude are sent, with their indices.

Aji and Heafield, EMNLP 2017, https://arxiv.org/abs/1704.05021. With error feedback (``Feedback``): Stich et al.,
NeurIPS 2018, https://arxiv.org/abs/1809.07599.
"""

import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import torch
from torch import Tensor

from gossamer.core import indices
from gossamer.core.codec import Codec, Coding
from gossamer.core.errors import PayloadError, require, wrong
from gossamer.core.types import Payload, true_at
from gossamer.core.wire import expect, finite


@dataclass(frozen=True)
class TopK(Codec):
    """Sends the entries of largest magnitude at the model's precision, and their indices.

    Other entries are decoded as zero. Ties are broken by index. See https://arxiv.org/abs/1704.05021.

    Args:
        share: the share of the entries to send, rounded up to a whole number of entries
    """

    share: float = 0.03

    def __post_init__(self) -> None:
        require((0 < self.share <= 1, wrong(self, "share", "must be above 0 and at most 1")))

    def kept(self, count: int) -> int:
        """Return the number of sent entries for a vector of ``count`` entries."""
        # With the decimal fraction: 0.07 * 100 is 7.000000000000001, which would be rounded up to 8.
        return math.ceil(Fraction(str(self.share)) * count)

    def encode(self, x: Tensor, ctx: Coding) -> Payload:
        """Return the largest entries, in index order, and their indices."""
        mask = top(finite(x, "change").abs(), self.kept(len(x)))
        return {"values": x[mask], **indices.pack(mask)}

    def decode(self, payload: Payload, ctx: Coding) -> Tensor:
        """Return the values at their indices, and zeros elsewhere."""
        mask = indices.unpack(payload, ctx.layout.size)
        kept = self.kept(ctx.layout.size)
        if indices.marked(mask) != kept:
            raise PayloadError(f"expected indices of {kept:,} entries, got {indices.marked(mask):,}")
        return indices.spread(finite(expect(payload, "values", ctx.layout.dtype, kept), "values"), mask)


def top(sizes: Tensor, k: int) -> Tensor:
    """Return a mask of the ``k`` largest entries. Of equal entries, the first are taken."""
    if k == 0:
        return torch.zeros_like(sizes, dtype=torch.bool)
    threshold = _kth_largest(sizes, k)
    mask = sizes > threshold
    ties = true_at(sizes == threshold)
    mask[ties[: k - indices.marked(mask)]] = True
    return mask


def _kth_largest(sizes: Tensor, k: int) -> Tensor:
    """Return the k-th largest value, which is the same for any algorithm. On a CPU, NumPy is several times faster."""
    if sizes.device.type == "cpu":
        return torch.from_numpy(np.partition(sizes.numpy(), len(sizes) - k))[len(sizes) - k]
    return sizes.topk(k, sorted=False).values.min()
