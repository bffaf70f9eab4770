"""Random subsampling: a few entries, chosen by a key that both ends have, so that no position is sent.

The random mask of Konečný et al., "Federated learning: strategies for improving communication efficiency", 2016.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from gossamer.core.codec import Codec
from gossamer.core.errors import require, wrong
from gossamer.core.indices import marked, spread
from gossamer.core.random import Key, fold, uniform
from gossamer.core.types import Layout, Payload
from gossamer.core.wire import expect, finite

GRID = 2**24  # uniform noise is a multiple of 1 / GRID


@dataclass(frozen=True)
class Subsample(Codec):
    """Each entry is sent with the same chance, whatever the others do; zero elsewhere.

    So the number of entries varies a little from message to message, and is known to both ends. To fix it would take
    a sort, and the same sort on every device; this takes one comparison an entry, and is as right on average.

    Args:
        share: the chance of an entry, rounded up to a multiple of 2**-24
        rescale: divide what is sent by the chance, so that it is right on average; without, entries are sent as they
            are
    """

    share: float = 0.03125
    rescale: bool = True

    def __post_init__(self) -> None:
        require((0 < self.share <= 1, wrong(self, "share", "must be above 0 and at most 1")))

    @property
    def unbiased(self) -> bool:
        """Whether entries are scaled up for those that are not sent."""
        return self.rescale

    def encode(self, x: Tensor, layout: Layout, key: Key) -> Payload:
        """The chosen entries, in order."""
        values = finite(x, "change")[self._mask(layout, key, x.device)]
        factor = values.new_full((1,), 1 / self._chance if self.rescale else 1)
        return {"values": finite(values * factor, "rescaled change")}

    def decode(self, payload: Payload, layout: Layout, key: Key) -> Tensor:
        """Each value in the place that the key gives it, and zeros."""
        mask = self._mask(layout, key, payload.get("values", torch.empty(0)).device)
        return spread(finite(expect(payload, "values", layout.dtype, marked(mask)), "values"), mask)

    @property
    def _chance(self) -> float:
        return math.ceil(self.share * GRID) / GRID

    def _mask(self, layout: Layout, key: Key, device: torch.device) -> Tensor:
        return uniform(fold(key, "subsample"), layout.size, device=device) < self._chance
