"""Clipping, and random rounding to whole numbers that keeps the norm bounded.

Each entry is rounded up with the probability of its fraction, so rounding is unbiased. It makes vectors longer. For a
vector of d entries with norm at most c, Kairouz, Liu and Steinke (https://arxiv.org/abs/2102.06387, Proposition 22)
show that the rounded vector is longer than ``norm_bound`` with a probability of at most beta = exp(-1/2):

    min( (c + sqrt(d))^2, c^2 + d / 4 + sqrt(2 log(1 / beta)) (c + sqrt(d) / 2) )     is the square of the bound

Conditional rounding draws again until the bound holds, so it holds always: it is a sensitivity. The condition makes the
rounding slightly biased. After ``ATTEMPTS`` draws, which has a probability below 1e-13, entries are rounded towards
zero, which never makes a vector longer.
"""

import math

import torch
from torch import Tensor

from gossamer.core.exact import norm
from gossamer.core.random import Key, fold, uniform

BETA = math.exp(-0.5)
ATTEMPTS = 64


def clipped(x: Tensor, clip: float) -> Tensor:
    """Return a vector in float64, scaled down to the norm ``clip`` if it is longer.

    >>> clipped(torch.tensor([3.0, 4.0]), 1.0)
    tensor([0.6000, 0.8000], dtype=torch.float64)
    """
    wide = x.double()
    length = norm(wide)
    # Just below the norm, so that the rounding of products does not exceed it.
    factor = torch.full_like(length, clip * (1 - 1e-12)) / torch.where(length > 0, length, 1)
    return wide * factor.clamp(max=1)


def norm_bound(clip: float, size: int) -> float:
    """Return the norm of rounded vectors, for vectors of ``size`` entries whose norm is at most ``clip``."""
    root = math.sqrt(size)
    likely = clip**2 + size / 4 + math.sqrt(2 * math.log(1 / BETA)) * (clip + root / 2)
    return min(clip + root, math.sqrt(likely))


def rounded(y: Tensor, bound: float, key: Key) -> Tensor:
    """Return whole numbers near ``y`` as int64. Their norm is at most ``bound`` if that of ``y`` is."""
    for attempt in range(ATTEMPTS):
        found = (y + uniform(fold(key, attempt), len(y), dtype=torch.float64, device=y.device)).floor().long()
        if int((found * found).sum()) <= bound**2:
            return found
    return y.trunc().long()
