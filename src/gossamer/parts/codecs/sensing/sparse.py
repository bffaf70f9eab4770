"""Where nobody knows which entries are zero: iterative hard thresholding, on linear measurements and on signs.

Both go down the gradient of what they compare, and keep the k largest entries after each step:

    niht    compares y with Phi x: for the mean of the signs of many devices (``.decode``). The length of each step
            follows from the matrix (normalised iterative hard thresholding, Blumensath and Davies, 2010)
    biht    compares signs with the signs of Phi x: for the signs of one device (binary iterative hard thresholding,
            Jacques et al., 2013). It knows nothing of a mean in [-1, 1], which no vector has as its signs

Both fit k entries as closely as they can, noise and all. With few measurements for each entry that is too much. Of a
sparse vector S / 10 entries are then better to keep than all that it has; ``gossamer.parts.codecs.sensing.amp``
finds out by itself, and is closer to the truth.
"""

import math

import torch
from torch import Tensor

from gossamer.parts.codecs.sensing.decode import back_projection, dot, largest, linear, scaled
from gossamer.parts.codecs.sensing.matrix import Matrix

STABLE = 0.99
HALVINGS = 20


def niht(phi: Matrix, y: Tensor, k: int, *, steps: int = 20) -> Tensor:
    """A vector of ``k`` entries other than zero whose measurements are near to a mean of signs."""
    left = linear(phi, y)
    x = torch.zeros(phi.size, dtype=y.dtype, device=y.device)
    kept = largest(phi.back(left), k) != 0
    for _ in range(steps):
        slope = phi.back(left)
        length = _length(phi, slope * kept)
        new, seen = _step(phi, x, slope, length, kept, k)
        x, left, kept = new, left - seen, new != 0
    return x


def _length(phi: Matrix, way: Tensor) -> Tensor:
    """How far to go along a way that stays on the support: to the least error."""
    seen = phi.measure(way)
    size = dot(seen, seen)
    return dot(way, way) / torch.where(size > 0, size, 1)


def _step(phi: Matrix, x: Tensor, slope: Tensor, length: Tensor, kept: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Where a step leads, and its measurements; shorter by halves until it is sure not to raise the error."""
    for _ in range(HALVINGS):
        new = largest(x + length * slope, k)
        move = new - x
        seen = phi.measure(move)
        if torch.equal(new != 0, kept) or length * dot(seen, seen) <= STABLE * dot(move, move):
            break
        length = length / 2
    return new, seen


def biht(phi: Matrix, signs: Tensor, k: int, *, steps: int = 50) -> Tensor:
    """A vector of norm 1 with ``k`` entries other than zero whose measurements have these signs, 1 or -1, mostly."""
    x = back_projection(phi, signs, keep=k)
    step = math.sqrt(math.pi / 2 / max(1, phi.rows))
    for _ in range(steps):
        wrong = signs - torch.where(phi.measure(x) >= 0, 1.0, -1.0).to(signs.dtype)
        x = largest(x + step * phi.back(wrong), k)
    return scaled(x)
