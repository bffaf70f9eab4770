"""Some entries alone: the nonzero ones, the largest ones, or a random subset.

Top-k: Aji and Heafield, EMNLP 2017, https://arxiv.org/abs/1704.05021; with error feedback (``Feedback``) Stich et al.,
NeurIPS 2018, https://arxiv.org/abs/1809.07599. Random masks: Konečný et al., "Federated learning: strategies for
improving communication efficiency", 2016, https://arxiv.org/abs/1610.05492.

Where the receiver cannot know which entries are sent, their indices are (``gossamer.core.indices``). The length of a
message depends on the vector or on the key, so the messages of a group are made one by one.
"""

import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import torch
from torch import Tensor

from gossamer.core import indices
from gossamer.core.codec import Codec, Coding, each_row
from gossamer.core.errors import PayloadError, require, wrong
from gossamer.core.random import fold, uniform
from gossamer.core.types import Payload, true_at
from gossamer.core.wire import expect, finite

GRID = 2**24  # uniform noise is a multiple of 1 / GRID


@dataclass(frozen=True)
class Sparse(Codec):
    """Sends all nonzero entries at the model's precision, and their indices (``gossamer.core.indices``).

    It is lossless, except for the sign of a negative zero.
    """

    @property
    def unbiased(self) -> bool:
        """True: the codec is lossless."""
        return True

    @each_row
    def encode(self, x: Tensor, ctx: Coding) -> Payload:
        """Return the nonzero values, in order, and their indices."""
        mask = finite(x, "change") != 0
        return {"values": x[mask], **indices.pack(mask)}

    @each_row
    def decode(self, payload: Payload, ctx: Coding) -> Tensor:
        """Return the values at their indices, and zeros elsewhere."""
        mask = indices.unpack(payload, ctx.layout.size)
        values = finite(expect(payload, "values", ctx.layout.dtype, indices.marked(mask)), "values")
        if bool((values == 0).any()):
            raise PayloadError("'values' must not contain zeros")
        return indices.spread(values, mask)


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

    @each_row
    def encode(self, x: Tensor, ctx: Coding) -> Payload:
        """Return the largest entries, in index order, and their indices."""
        mask = top(finite(x, "change").abs(), self.kept(len(x)))
        return {"values": x[mask], **indices.pack(mask)}

    @each_row
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
    # The k-th largest value is the same for any algorithm. On a CPU, NumPy is several times faster.
    if sizes.device.type == "cpu":
        threshold = torch.from_numpy(np.partition(sizes.numpy(), len(sizes) - k))[len(sizes) - k]
    else:
        threshold = sizes.topk(k, sorted=False).values.min()
    mask = sizes > threshold
    ties = true_at(sizes == threshold)
    mask[ties[: k - indices.marked(mask)]] = True
    return mask


@dataclass(frozen=True)
class Subsample(Codec):
    """Sends each entry independently with the same probability. The others are decoded as zero.

    The subset is drawn from a shared key, so no indices are sent. The number of sent entries varies between messages,
    and both sides know it. A fixed number would need a sort with the same result on every device. This needs one
    comparison per entry, and is unbiased too. See https://arxiv.org/abs/1610.05492.

    Args:
        share: the probability to send an entry, rounded up to a multiple of 2**-24
        rescale: divide sent entries by the probability, which makes the codec unbiased
    """

    share: float = 0.03125
    rescale: bool = True

    def __post_init__(self) -> None:
        require((0 < self.share <= 1, wrong(self, "share", "must be above 0 and at most 1")))

    @property
    def unbiased(self) -> bool:
        """Whether entries are rescaled."""
        return self.rescale

    @each_row
    def encode(self, x: Tensor, ctx: Coding) -> Payload:
        """Return the selected entries, in order."""
        values = finite(x, "change")[self._mask(ctx, x.device)]
        factor = values.new_full((1,), 1 / self._chance if self.rescale else 1)
        return {"values": finite(values * factor, "rescaled change")}

    @each_row
    def decode(self, payload: Payload, ctx: Coding) -> Tensor:
        """Return the values at the indices that the key selects, and zeros elsewhere."""
        mask = self._mask(ctx, payload.get("values", torch.empty(0)).device)
        values = finite(expect(payload, "values", ctx.layout.dtype, indices.marked(mask)), "values")
        return indices.spread(values, mask)

    @property
    def _chance(self) -> float:
        return math.ceil(self.share * GRID) / GRID

    def _mask(self, ctx: Coding, device: torch.device) -> Tensor:
        return uniform(fold(ctx.key, "subsample"), ctx.layout.size, device=device) < self._chance
