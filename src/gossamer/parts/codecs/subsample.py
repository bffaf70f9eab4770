"""Random subsampling: a random subset of the entries, drawn from a shared key, so that no indices are sent.

The random mask of Konečný et al., "Federated learning: strategies for improving communication efficiency", 2016,
https://arxiv.org/abs/1610.05492.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from gossamer.core.codec import Codec, Coding
from gossamer.core.errors import require, wrong
from gossamer.core.indices import marked, spread
from gossamer.core.random import fold, uniform
from gossamer.core.types import Payload
from gossamer.core.wire import expect, finite

GRID = 2**24  # uniform noise is a multiple of 1 / GRID


@dataclass(frozen=True)
class Subsample(Codec):
    """Sends each entry independently with the same probability. The others are decoded as zero.

    The number of sent entries varies between messages, and both sides know it. A fixed number would need a sort with
    the same result on every device. This needs one comparison per entry, and is unbiased too. See
    https://arxiv.org/abs/1610.05492.

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

    def encode(self, x: Tensor, ctx: Coding) -> Payload:
        """Return the selected entries, in order."""
        values = finite(x, "change")[self._mask(ctx, x.device)]
        factor = values.new_full((1,), 1 / self._chance if self.rescale else 1)
        return {"values": finite(values * factor, "rescaled change")}

    def decode(self, payload: Payload, ctx: Coding) -> Tensor:
        """Return the values at the indices that the key selects, and zeros elsewhere."""
        mask = self._mask(ctx, payload.get("values", torch.empty(0)).device)
        return spread(finite(expect(payload, "values", ctx.layout.dtype, marked(mask)), "values"), mask)

    @property
    def _chance(self) -> float:
        return math.ceil(self.share * GRID) / GRID

    def _mask(self, ctx: Coding, device: torch.device) -> Tensor:
        return uniform(fold(ctx.key, "subsample"), ctx.layout.size, device=device) < self._chance
