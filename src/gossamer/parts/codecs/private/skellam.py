"""The Skellam mechanism: noise that is the difference of two Poisson variables.

Agarwal, Kairouz and Liu, NeurIPS 2021 (https://arxiv.org/abs/2110.04995). The sum of Skellam variables is a Skellam
variable, so the noise of a sum is known exactly, however small that of each client is. See ``distributed`` for the
steps, ``tables`` for the draws and ``renyi`` for the guarantee.
"""

from dataclasses import dataclass
from typing import Any

from gossamer.parts.codecs.private import renyi
from gossamer.parts.codecs.private.distributed import BoundNoise, DistributedNoise
from gossamer.parts.codecs.private.tables import Weights, skellam_weights


@dataclass(frozen=True)
class Skellam(DistributedNoise):
    """Sends the rounded update plus Skellam noise, for secure aggregation.

    See https://arxiv.org/abs/2110.04995.
    """

    @property
    def weights(self) -> Weights:
        """The Skellam distribution."""
        return skellam_weights

    def renyi(self, order: float, norm: float, size: int, variance: float, clients: int) -> float:
        """Return the Rényi divergence of Skellam noise."""
        return renyi.skellam(order, norm, size, variance, clients)

    def _with(self, **known: Any) -> "BoundSkellam":
        return BoundSkellam(**{**vars(self), **known})


@dataclass(frozen=True)
class BoundSkellam(BoundNoise, Skellam):
    """``Skellam`` for one network, and at one client."""
