"""The distributed discrete Gaussian mechanism.

Kairouz, Liu and Steinke, ICML 2021 (https://arxiv.org/abs/2102.06387). See ``distributed`` for the steps, ``tables``
for the draws and ``renyi`` for the guarantee. In the paper, values wrap around modulo the size of the ring. Here the
ring holds the sum of all clients, so nothing wraps around.
"""

from dataclasses import dataclass
from typing import Any

from gossamer.parts.codecs.private import renyi
from gossamer.parts.codecs.private.distributed import BoundNoise, DistributedNoise
from gossamer.parts.codecs.private.tables import Weights, gaussian_weights


@dataclass(frozen=True)
class DiscreteGaussian(DistributedNoise):
    """Sends the rounded update plus discrete Gaussian noise, for secure aggregation.

    See https://arxiv.org/abs/2102.06387.
    """

    @property
    def weights(self) -> Weights:
        """The discrete Gaussian distribution."""
        return gaussian_weights

    def renyi(self, order: float, norm: float, size: int, variance: float, clients: int) -> float:
        """Return the Rényi divergence of a sum of discrete Gaussians."""
        return renyi.discrete_gaussian(order, norm, size, variance, clients)

    def _with(self, **known: Any) -> "BoundDiscreteGaussian":
        return BoundDiscreteGaussian(**{**vars(self), **known})


@dataclass(frozen=True)
class BoundDiscreteGaussian(BoundNoise, DiscreteGaussian):
    """``DiscreteGaussian`` for one network, and at one client."""
