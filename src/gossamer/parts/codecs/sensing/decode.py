"""From the mean of signs back to a vector, by linear means: back-projection, and least squares where it counts.

For a Gaussian row of variance 1 / S and a vector g, the sign of the projection is on average

    E[Phi' sign(Phi g)] = sqrt(S) sqrt(2 / pi) g / |g|

and so for a sum of signs. Read as linear measurements, the mean y of the signs of many devices is therefore

    sqrt(pi / 2) / sqrt(S) y = Phi d + noise,    d = the mean of g / |g| over devices

with noise of mean zero and, for one device (|d| = 1), of the squared norm pi/2 - 1; less where devices differ, as what
one rounds up another rounds down. All decoders here and in ``.sparse`` return an estimate of d. Each is homogeneous,
save BIHT: if signs are weighed by the norms of what they stand for, the same call returns the mean of the vectors.

Back-projection, Phi' of the left side, is right on average. For one device its squared error is (pi / 2) n / S of the
squared norm, so its cosine with g about 1 / sqrt(1 + (pi / 2) n / S); with n the size of the support where that is
known. It takes all other entries for noise, and least squares does not: what is left is the noise of the signs,
(pi / 2 - 1) n / (S - n) for S much above n. Rows of a rotation are orthogonal, so their back-projection has few others
to take for noise; least squares is exact there after two or three steps.

With Hadamard measurements all of this has the same bits on every device.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from gossamer.core.exact import norm, total
from gossamer.parts.codecs.sensing.matrix import Matrix

NOISE = math.pi / 2 - 1
"""The squared norm of the noise of one device's signs, where the signal's is 1."""
CLOSE = 1e-3
"""A residual that is small enough, as a share of the first."""


def back_projection_error(n: int, rows: int) -> float:
    """The squared error of the back-projection of one device's signs, as a share of the squared norm."""
    return math.pi / 2 * n / rows


def linear(phi: Matrix, y: Tensor) -> Tensor:
    """A mean of signs as linear measurements of the mean direction."""
    return y * math.sqrt(math.pi / 2 / max(1, phi.rows))


def back_projection(phi: Matrix, y: Tensor, *, support: Tensor | None = None, keep: int | None = None) -> Tensor:
    """Phi' y, scaled to be right on average; zero outside of ``support``, if given, and but for the ``keep`` largest.

    ``support`` has a boolean for each entry.
    """
    found = _within(phi.back(linear(phi, y)), support)
    return found if keep is None else largest(found, keep)


def least_squares(
    phi: Matrix, y: Tensor, *, support: Tensor | None = None, ridge: float | None = None, steps: int = 8
) -> Tensor:
    """The d with the least |Phi d - y|^2 + ridge |d|^2, y being scaled; zero outside of ``support``, if given.

    By default the ridge is (pi / 2 - 1) n / S: the noise of one device's signs over the mean square of d's entries, n
    of which there are in the support. With that no eigenvalue is more than nine times another, whatever n / S is, so
    conjugate gradients halve the error in every step and a few suffice.
    """
    first = _within(phi.back(linear(phi, y)), support)
    size = phi.size if support is None else int(support.sum())
    weight = NOISE * size / max(1, phi.rows) if ridge is None else ridge

    def normal(x: Tensor) -> Tensor:
        return _within(phi.back(phi.measure(x)), support) + weight * x

    return _conjugate_gradients(normal, first, steps)


def _conjugate_gradients(normal: Callable[[Tensor], Tensor], wanted: Tensor, steps: int) -> Tensor:
    """The x for which ``normal(x)`` is ``wanted``, nearly."""
    x, left, way = torch.zeros_like(wanted), wanted, wanted
    size = first = dot(left, left)
    for _ in range(steps):
        if size <= CLOSE**2 * first:
            break
        sent = normal(way)
        length = size / dot(way, sent)
        x, left = x + length * way, left - length * sent
        before, size = size, dot(left, left)
        way = left + size / before * way
    return x


def scaled(direction: Tensor, length: Tensor | float = 1.0) -> Tensor:
    """A vector of that direction and that norm: 1, or the mean of the norms that were received; zeros stay zeros."""
    size = norm(direction)
    return direction * (length / torch.where(size > 0, size, 1))


def largest(x: Tensor, k: int) -> Tensor:
    """The vector with all but its ``k`` largest entries set to zero."""
    if k >= len(x):
        return x
    at = x.abs().topk(k).indices
    return torch.zeros_like(x).index_copy_(0, at, x[at])


def dot(a: Tensor, b: Tensor) -> Tensor:
    """The inner product, with the same bits on every device."""
    return total(a * b)


def _within(x: Tensor, support: Tensor | None) -> Tensor:
    return x if support is None else x * support
