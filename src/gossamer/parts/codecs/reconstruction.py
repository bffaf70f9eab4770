"""Reconstruction from signs of random measurements: linear, or of sparse vectors.

For Gaussian rows of variance 1 / S and a vector g,

    E[Phi' sign(Phi g)] = sqrt(S) sqrt(2 / pi) g / |g|

So the mean y of the signs of many clients is a linear measurement of their mean direction d:

    sqrt(pi / 2) / sqrt(S) y = Phi d + noise,    d = the mean of g / |g| over clients

The noise has mean zero. For one client (|d| = 1), its squared norm is pi/2 - 1. For different clients it is smaller,
because their rounding errors cancel in part. All decoders here return an estimate of d. All except BIHT are
homogeneous: if signs are weighted by norms, they return the mean of the vectors.

Back-projection, Phi' times the left side, is unbiased. For one client, its squared error is (pi / 2) n / S of the
squared norm, so its cosine with g is about 1 / sqrt(1 + (pi / 2) n / S). If the support is known, n is its size.
Back-projection treats the other entries as noise, least squares does not. What remains is the noise of the signs, (pi /
2 - 1) n / (S - n) for S much larger than n. Rows of a rotation are orthogonal, so the other entries contribute little,
and least squares converges after two or three steps.

With orthogonal rows the squared cosine of least squares is (2 / pi) S / n for S <= n: the measured share of the squared
norm, times the share of the signal in the signs. For S >= n it is 1 / (1 + (pi / 2 - 1) n / S). ``least_squares_error``
is one minus that: the squared error of the direction, with the best norm.

With Hadamard measurements, all results have the same bits on every device.

**Iterative hard thresholding** reconstructs sparse vectors with unknown support: gradient steps, of which each keeps
the k largest entries.

    niht    compares y with Phi x, for the mean of the signs of many clients.
            The step size follows from the matrix (normalized iterative hard thresholding, Blumensath and Davies, 2010,
            https://doi.org/10.1109/JSTSP.2010.2042411)
    biht    compares signs with the signs of Phi x, for the signs of one client (binary iterative hard thresholding,
            Jacques et al., 2013, https://arxiv.org/abs/1104.3160). It is not meant for means of signs

Both fit k entries including the noise. With few measurements per entry, this overfits: a smaller k, such as S / 10, is
then better than the true number. AMP estimates the sparsity itself, and is more accurate.

**Approximate message passing** (AMP): Donoho, Maleki and Montanari, 2009, https://arxiv.org/abs/0907.3574. The
back-projection of the measurements is each entry of the vector plus almost normal noise, r = d + tau N(0, 1), because
all other entries contribute to it. Each step computes the posterior mean of the entries given r, subtracts its
measurements, and projects the residual back, with less noise than before. A correction keeps the noise normal. For
matrices with independent entries, a share of the last residual is added to the residual (Onsager term). For rows of a
rotation, the component proportional to r is removed from the estimate (orthogonal AMP, Ma and Ping, 2017,
https://arxiv.org/abs/1602.06509).

The distribution of the entries is estimated on the way, as a mixture of zeros and normal variables with a range of
variances. The shares of the mixture are fitted to r in each step. So the tails need not be known, and ``k`` is only the
starting point of the fit.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from gossamer.core.exact import norm, total
from gossamer.parts.codecs.sensing import Matrix

NOISE = math.pi / 2 - 1
"""The squared norm of the noise of one client's signs, relative to that of the signal."""
CLOSE = 1e-3
"""The residual at which the iteration stops, relative to the first residual."""


def back_projection_error(n: int, rows: int) -> float:
    """Return the squared error of the back-projection of one client's signs, relative to the squared norm."""
    return math.pi / 2 * n / rows


def least_squares_error(n: npt.ArrayLike, rows: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """Return one minus the squared cosine of one client's reconstruction by least squares, elementwise.

    >>> least_squares_error(1000, [100, 1000, 4000]).round(3)
    array([0.936, 0.363, 0.125])
    """
    ratio = np.asarray(rows, dtype=np.float64) / np.maximum(1, n)
    return np.where(ratio <= 1, 1 - 2 / math.pi * ratio, NOISE / (np.maximum(ratio, 1) + NOISE))


def linear(phi: Matrix, y: Tensor) -> Tensor:
    """Return a mean of signs, scaled to a linear measurement of the mean direction."""
    return y * math.sqrt(math.pi / 2 / max(1, phi.rows))


def back_projection(phi: Matrix, y: Tensor, *, support: Tensor | None = None, keep: int | None = None) -> Tensor:
    """Return Phi' y, scaled to be unbiased.

    Entries outside of ``support``, a boolean mask, are set to zero, and all but the ``keep`` largest.
    """
    found = _within(phi.back(linear(phi, y)), support)
    return found if keep is None else largest(found, keep)


def least_squares(
    phi: Matrix, y: Tensor, *, support: Tensor | None = None, ridge: float | None = None, steps: int = 8
) -> Tensor:
    """Return the d that minimizes |Phi d - y|^2 + ridge |d|^2 for the scaled y. It is zero outside of ``support``.

    The default ridge is (pi / 2 - 1) n / S, with n the size of the support: the noise of one client's signs, divided by
    the mean square of the entries of d. The condition number is then at most nine for any n / S. So conjugate gradients
    halve the error in every step, and a few steps suffice.
    """
    first = _within(phi.back(linear(phi, y)), support)
    size = phi.size if support is None else int(support.sum())
    weight = NOISE * size / max(1, phi.rows) if ridge is None else ridge

    def normal(x: Tensor) -> Tensor:
        return _within(phi.back(phi.measure(x)), support) + weight * x

    return _conjugate_gradients(normal, first, steps)


def _conjugate_gradients(normal: Callable[[Tensor], Tensor], wanted: Tensor, steps: int) -> Tensor:
    """Return an approximate solution x of ``normal(x) == wanted``."""
    x, residual, direction = torch.zeros_like(wanted), wanted, wanted
    size = first = dot(residual, residual)
    for _ in range(steps):
        if size <= CLOSE**2 * first:
            break
        image = normal(direction)
        length = size / dot(direction, image)
        x, residual = x + length * direction, residual - length * image
        before, size = size, dot(residual, residual)
        direction = residual + size / before * direction
    return x


def scaled(direction: Tensor, length: Tensor | float = 1.0) -> Tensor:
    """Return a vector with this direction and this norm. A zero vector stays zero."""
    size = norm(direction)
    return direction * (length / torch.where(size > 0, size, 1))


def largest(x: Tensor, k: int) -> Tensor:
    """Return the vector with all but its ``k`` largest entries set to zero."""
    if k >= len(x):
        return x
    at = x.abs().topk(k).indices
    return torch.zeros_like(x).index_copy_(0, at, x[at])


def dot(a: Tensor, b: Tensor) -> Tensor:
    """Return the inner product, with the same bits on every device."""
    return total(a * b)


def _within(x: Tensor, support: Tensor | None) -> Tensor:
    return x if support is None else x * support


# Iterative hard thresholding.

STABLE = 0.99
HALVINGS = 20


def niht(phi: Matrix, y: Tensor, k: int, *, steps: int = 20) -> Tensor:
    """Return a vector with ``k`` nonzero entries whose measurements approximate a mean of signs."""
    residual = linear(phi, y)
    x = torch.zeros(phi.size, dtype=y.dtype, device=y.device)
    kept = largest(phi.back(residual), k) != 0
    for _ in range(steps):
        gradient = phi.back(residual)
        length = _length(phi, gradient * kept)
        new, measured = _step(phi, x, gradient, length, kept, k)
        x, residual, kept = new, residual - measured, new != 0
    return x


def _length(phi: Matrix, direction: Tensor) -> Tensor:
    """Return the step size with the smallest error along a direction on the support."""
    measured = phi.measure(direction)
    size = dot(measured, measured)
    return dot(direction, direction) / torch.where(size > 0, size, 1)


def _step(phi: Matrix, x: Tensor, gradient: Tensor, length: Tensor, kept: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return the result of a step, and the measurements of its change.

    The step size is halved until the error cannot increase.
    """
    for _ in range(HALVINGS):
        new = largest(x + length * gradient, k)
        move = new - x
        measured = phi.measure(move)
        if torch.equal(new != 0, kept) or length * dot(measured, measured) <= STABLE * dot(move, move):
            break
        length = length / 2
    return new, measured


def biht(phi: Matrix, signs: Tensor, k: int, *, steps: int = 50) -> Tensor:
    """Return a vector of norm 1 with ``k`` nonzero entries whose measurements mostly have these signs, 1 or -1."""
    x = back_projection(phi, signs, keep=k)
    step = math.sqrt(math.pi / 2 / max(1, phi.rows))
    for _ in range(steps):
        wrong = signs - torch.where(phi.measure(x) >= 0, 1.0, -1.0).to(signs.dtype)
        x = largest(x + step * phi.back(wrong), k)
    return scaled(x)


# Approximate message passing.

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
