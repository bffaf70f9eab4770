"""Iterative hard thresholding: reconstruct sparse vectors with unknown support from linear measurements or signs.

Both algorithms take gradient steps, and keep the k largest entries after each step:

    niht    compares y with Phi x, for the mean of the signs of many clients (``gossamer.parts.codecs.sensing.decode``).
            The step size follows from the matrix (normalized iterative hard thresholding, Blumensath and Davies, 2010,
            https://doi.org/10.1109/JSTSP.2010.2042411)
    biht    compares signs with the signs of Phi x, for the signs of one client (binary iterative hard thresholding,
            Jacques et al., 2013, https://arxiv.org/abs/1104.3160). It is not meant for means of signs

Both fit k entries including the noise. With few measurements per entry, this overfits: a smaller k, such as S / 10, is
then better than the true number. ``gossamer.parts.codecs.sensing.amp`` estimates the sparsity itself, and is more
accurate.
"""

import math

import torch
from torch import Tensor

from gossamer.parts.codecs.sensing.decode import back_projection, dot, largest, linear, scaled
from gossamer.parts.codecs.sensing.matrix import Matrix

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
