"""Linear reconstruction from a mean of signs: back-projection and least squares.

For Gaussian rows of variance 1 / S and a vector g,

    E[Phi' sign(Phi g)] = sqrt(S) sqrt(2 / pi) g / |g|

So the mean y of the signs of many clients is a linear measurement of their mean direction d:

    sqrt(pi / 2) / sqrt(S) y = Phi d + noise,    d = the mean of g / |g| over clients

The noise has mean zero. For one client (|d| = 1), its squared norm is pi/2 - 1. For different clients it is smaller,
because their rounding errors cancel in part. All decoders here and in ``gossamer.parts.codecs.sensing.sparse`` return
an estimate of d. All except BIHT are homogeneous: if signs are weighted by norms, they return the mean of the vectors.

Back-projection, Phi' times the left side, is unbiased. For one client, its squared error is (pi / 2) n / S of the
squared norm, so its cosine with g is about 1 / sqrt(1 + (pi / 2) n / S). If the support is known, n is its size.
Back-projection treats the other entries as noise, least squares does not. What remains is the noise of the signs,
(pi / 2 - 1) n / (S - n) for S much larger than n. Rows of a rotation are orthogonal, so the other entries contribute
little, and least squares converges after two or three steps.

With orthogonal rows the squared cosine of least squares is (2 / pi) S / n for S <= n: the measured share of the squared
norm, times the share of the signal in the signs. For S >= n it is 1 / (1 + (pi / 2 - 1) n / S). ``least_squares_error``
is one minus that: the squared error of the direction, with the best norm.

With Hadamard measurements, all results have the same bits on every device.
"""

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from gossamer.core.exact import norm, total
from gossamer.parts.codecs.sensing.matrix import Matrix

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
