"""Approximate message passing (AMP): reconstruction of sparse vectors with unknown support from few measurements.

Donoho, Maleki and Montanari, 2009, https://arxiv.org/abs/0907.3574. The back-projection of the measurements is each
entry of the vector plus almost normal noise, r = d + tau N(0, 1), because all other entries contribute to it. Each step
computes the posterior mean of the entries given r, subtracts its measurements, and projects the residual back, with
less noise than before. A correction keeps the noise normal. For matrices with independent entries, a share of the last
residual is added to the residual (Onsager term). For rows of a rotation, the component proportional to r is removed
from the estimate (orthogonal AMP, Ma and Ping, 2017, https://arxiv.org/abs/1602.06509).

The distribution of the entries is estimated on the way, as a mixture of zeros and normal variables with a range of
variances. The shares of the mixture are fitted to r in each step. So the tails need not be known, and ``k`` is only the
starting point of the fit.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from gossamer.parts.codecs.sensing.decode import linear
from gossamer.parts.codecs.sensing.matrix import Matrix

LADDER = tuple(4.0**step for step in range(-2, 4))
"""Variances of nonzero entries, divided by their mean square."""
MOST = 0.99  # the largest initial share of nonzero entries
STEEPEST = 0.95  # the largest slope of an estimate: the orthogonal correction divides by 1 - slope
SAMPLE, SWEEPS = 2**14, 4  # the largest number of entries in a fit, and the fits per step
CHUNK = 2**15  # entries that are estimated at a time, so that they fit into a cache


def amp(phi: Matrix, y: Tensor, k: int, *, steps: int = 12) -> Tensor:
    """Return the mean direction from a mean of signs, if about ``k`` of its entries are nonzero."""
    wanted = linear(phi, y)
    energy = float(wanted @ wanted)
    x = torch.zeros(phi.size, dtype=y.dtype, device=y.device)
    if energy == 0:
        return x
    mixture = GaussianMixture.start(energy / phi.size, min(MOST, max(1, k) / phi.size), x)
    estimate, residual, smallest = x, wanted, math.inf
    for _ in range(steps):
        noise = _noise(phi, residual, energy)
        if noise > 1.1 * smallest:
            break  # the noise is no longer normal, and the iteration diverges
        r, smallest = x + phi.back(residual), min(smallest, noise)
        estimate, slope, mixture = mixture.estimate(r, noise)
        if phi.independent:
            x, residual = estimate, wanted - phi.measure(estimate) + slope * phi.size / phi.rows * residual
        else:
            x = (estimate - slope * r) / (1 - slope)
            residual = wanted - phi.measure(x)
    return estimate


def _noise(phi: Matrix, residual: Tensor, energy: float) -> float:
    """Return the variance of the noise in each entry: that of the signs, plus that of the other entries."""
    size = float(residual @ residual)
    own = min((1 - 2 / math.pi) * energy, size)  # the value for one client
    return phi.overlap * (size - own) / phi.size + own / phi.rows


@dataclass(frozen=True, eq=False)
class GaussianMixture:
    """The distribution of the entries: a mixture of zeros and normal variables.

    Args:
        variances: the variance of each component; the first is 0
        shares: the share of each component
    """

    variances: Tensor
    shares: Tensor

    @classmethod
    def start(cls, square: float, share: float, like: Tensor) -> "GaussianMixture":
        """Return a mixture with this mean square and share of nonzero entries. All components contribute equally."""
        total = sum(1 / step for step in LADDER)
        variances = [0.0, *(square / share * step for step in LADDER)]
        shares = [1 - share, *(share / step / total for step in LADDER)]
        return cls(like.new_tensor(variances), like.new_tensor(shares))

    def estimate(self, r: Tensor, noise: float) -> tuple[Tensor, float, "GaussianMixture"]:
        """Return the posterior mean of each entry given r, its mean derivative, and the mixture fitted to r."""
        fitted = self._fitted(r[:: -(-len(r) // SAMPLE)], noise)
        pieces = [fitted._posterior_mean(piece, noise) for piece in torch.split(r, CHUNK)]
        means, slopes = zip(*pieces, strict=True)
        slope = min(STEEPEST, float(torch.stack(slopes).sum()) / len(r))
        return torch.cat(means), slope, fitted

    def _fitted(self, r: Tensor, noise: float) -> "GaussianMixture":
        """Return the mixture with shares that increase the likelihood of r (expectation maximization)."""
        found = self
        for _ in range(SWEEPS):
            found = GaussianMixture(self.variances, found._probabilities(r, noise).mean(1))
        return found

    def _probabilities(self, r: Tensor, noise: float) -> Tensor:
        """Return the posterior probability of each component, as rows, for each entry."""
        spread = (self.variances + noise).view(-1, 1)
        prior = self.shares.clamp(min=torch.finfo(r.dtype).tiny).log().view(-1, 1) - 0.5 * spread.log()
        return torch.softmax(prior - r.square() * (0.5 / spread), 0)

    def _posterior_mean(self, r: Tensor, noise: float) -> tuple[Tensor, Tensor]:
        """Return the posterior means for a piece of r, and the sum of their derivatives."""
        probabilities, part = self._probabilities(r, noise), self.variances / (self.variances + noise)
        gain = part @ probabilities
        # The derivative of a posterior mean is the posterior variance divided by that of the noise.
        slope = gain + r.square() / noise * (part.square() @ probabilities - gain.square())
        return gain * r, slope.sum()
