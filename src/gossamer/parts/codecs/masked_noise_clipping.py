"""What clipping does to an update that is masked: which entries it touches, and what it takes from their length.

For an entry u and noise n, clipping touches the entry if |u| > |n|. Of the update's length along itself, ``sum(u^2)``,
it leaves ``sum(|u| min(|u|, |n|))``. With v = |u| / alpha, the expectations over the noise are:

    noise        P(|n| < |u|)     E[min(|u|, |n|)] / alpha
    uniform      min(v, 1)        v - v^2 / 2, and 1/2 for v > 1
    bernoulli    1 for v > 1      min(v, 1)
    gauss        erf(v / r2)      v erfc(v / r2) + (1 - exp(-v^2 / 2)) r2 / rpi, with r2 and rpi the roots of 2 and pi
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from gossamer.core.random.noise import Kind
from gossamer.parts.codecs.masked_noise_scale import length, magnitude
from gossamer.parts.codecs.scale import blocks

ENTRIES = 1 << 16
"""Entries that suffice for a share with two digits."""


def clipping(
    tensors: Sequence[Tensor], noise: Kind, alpha: float | None, spread: float, block: int | None
) -> dict[str, float]:
    """Return the shares of an update's entries and of its length that clipping takes; ``alpha`` of none is auto.

    Of a long update, some blocks are measured, or some entries of the only block.
    """
    step = max(1, sum(map(len, tensors)) // ENTRIES)
    touched = changed = left = whole = 0.0
    for u in tensors:
        rows, size = _sample(u, step, alpha, spread, block)
        v = rows.double().abs() / size
        some, rest = expected(v, noise)
        touched, changed = touched + float(some.sum()), changed + int(v.count_nonzero())
        left, whole = left + float((size**2 * v * rest).sum()), whole + float((size**2 * v * v).sum())
    return {
        "clipped": touched / changed if changed else 0.0,
        "clipped_length": 1 - left / whole if whole else 0.0,
    }


def _sample(u: Tensor, step: int, alpha: float | None, spread: float, block: int | None) -> tuple[Tensor, Tensor]:
    """Return every ``step``-th block of a tensor, or entry of its only block, with the magnitudes of the noise."""
    rows = blocks(u, length(len(u), block if alpha is None else None))
    some = rows[::step] if len(rows) > 1 else rows
    size = magnitude(some, spread) if alpha is None else torch.full_like(some[:, :1], alpha)
    return some if len(rows) > 1 else rows[:, ::step], size.double()


def expected(v: Tensor, noise: Kind) -> tuple[Tensor, Tensor]:
    """Return for each magnitude the probability that it exceeds the noise, and the expectation of what is left."""
    if noise == "uniform":
        inside = v.clamp(max=1)
        return inside, inside - inside.square() / 2
    if noise == "bernoulli":
        return (v > 1).to(v.dtype), v.clamp(max=1)
    root = math.sqrt(2)
    tail = torch.special.erfc(v / root)
    return 1 - tail, v * tail + math.sqrt(2 / math.pi) * (1 - torch.exp(-v.square() / 2))
