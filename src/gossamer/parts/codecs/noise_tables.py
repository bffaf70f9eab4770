"""Draws of whole-number noise by inversion of a table: the discrete Gaussian and the Skellam distribution.

The exact sampler of Canonne, Kamath and Steinke (https://arxiv.org/abs/2004.00010) rejects draws one by one, which is
slow for millions of entries. The variance is the same for all entries here, so the cumulative probabilities are
computed once, as integers of 128 bits. A draw is the number of thresholds that are at most a random number of 128 bits.
Only its upper 64 bits are drawn at first. The lower ones decide where the upper ones equal those of a threshold, which
almost never happens. Everything is integer arithmetic, so a key gives the same noise on all devices.

    discrete Gaussian   P(k) = exp(-k^2 / (2 v)) / Z        by the recurrence exp(-(k+1)^2 / 2v) = exp(-k^2 / 2v) g_k,
                                                            g_(k+1) = g_k exp(-1 / v)
    Skellam             P(k) = exp(-v) I_|k|(v)             by I_(k-1) = I_(k+1) + (2 k / v) I_k, downwards from a large
                                                            k (Miller), which is stable

Both are tails of at most ``2 exp(-k^2 / (2 (v + k / 3)))``, by Bernstein's inequality. The table ends at the ``reach``,
beyond which this is 2**-80. Rounding of the thresholds adds less than 2**-100. So the total variation distance to the
ideal distribution is below 2**-79 per draw: for 10**12 draws, it adds less than 2e-12 to delta.
"""

import functools
import math
from collections.abc import Callable
from fractions import Fraction

import torch
from torch import Tensor

from gossamer.core.random import Key, Keys, fold
from gossamer.core.random.private import words_of

TAIL = 81 * math.log(2)
"""The negative logarithm of the probability of each of the two tails that are cut off."""

EXTRA = 2 * TAIL / 3
"""``reach`` is at most this plus ``REACH`` standard deviations."""

REACH = math.sqrt(2 * TAIL)

WORD = 1 << 64
SCALE = 256
"""Bits after the binary point in the recurrences: their rounding errors stay far below 2**-128."""

Weights = Callable[[float, int], list[int]]
"""Returns integers in proportion to the probabilities of 0, 1, ... of a symmetric distribution with some variance."""


def reach(variance: float) -> int:
    """Return the largest magnitude of the noise."""
    return math.floor(TAIL / 3 + math.sqrt(TAIL**2 / 9 + 2 * TAIL * variance))


def gaussian_weights(variance: float, count: int) -> list[int]:
    """Return ``exp(-k^2 / (2 v))`` for k from 0 to ``count``, as fixed-point numbers.

    >>> gaussian_weights(0.5, 2)[1] / 2**SCALE
    0.36787944117144233
    """
    weight, ratio = 1 << SCALE, _exponential(-1 / (2 * Fraction(variance)))
    shrink = ratio * ratio >> SCALE
    found = [weight]
    for _ in range(count):
        weight, ratio = weight * ratio >> SCALE, ratio * shrink >> SCALE
        found.append(weight)
    return found


def _exponential(x: Fraction) -> int:
    """Return exp(x) of a negative number as a fixed-point number, by the series of a halved argument."""
    halvings = max(0, math.ceil(-x)).bit_length() + 8
    small, term, total, n = x / 2**halvings, 1 << SCALE, 1 << SCALE, 0
    while term:
        n += 1
        term = int(term * small / n)
        total += term
    for _ in range(halvings):
        total = total * total >> SCALE
    return total


def skellam_weights(variance: float, count: int) -> list[int]:
    """Return numbers in proportion to the modified Bessel functions I_k(v) for k from 0 to ``count``.

    >>> zero, one = skellam_weights(1.0, 1)
    >>> round(one / zero, 12)  # I_1(1) / I_0(1)
    0.446389965896
    """
    v, first = Fraction(variance), count + 64
    above, here, found = 0, 1 << SCALE, []
    for k in range(first, 0, -1):
        above, here = here, above + 2 * k * v.denominator * here // v.numerator
        found.append(here)
    return found[::-1][: count + 1]


@functools.lru_cache(maxsize=16)
def thresholds(weights: Weights, variance: float) -> tuple[Tensor, Tensor]:
    """Return the upper and the lower words of the cumulative probabilities of -reach to reach - 1, without sign.

    Words are shifted by 2**63, so that their order as int64 is that of unsigned integers.
    """
    half = weights(variance, reach(variance))
    whole = [*half[:0:-1], *half]
    below, total, found = 0, sum(whole), []
    for weight in whole[:-1]:
        below += weight
        found.append(min((below << 128) // total, WORD**2 - 1))
    upper, lower = zip(*(divmod(each, WORD) for each in found), strict=True)
    return _ordered(upper), _ordered(lower)


def _ordered(unsigned: tuple[int, ...]) -> Tensor:
    return torch.tensor([word - WORD // 2 for word in unsigned], dtype=torch.int64)


@functools.lru_cache(maxsize=16)
def _on(weights: Weights, variance: float, device: torch.device) -> tuple[Tensor, Tensor]:
    upper, lower = thresholds(weights, variance)
    return upper.to(device), lower.to(device)


def draw(weights: Weights, variance: float, key: Key | Keys, n: int, *, secure: bool, device: torch.device) -> Tensor:
    """Return ``n`` draws of a distribution as int64: those of a key, or secure ones."""
    upper, lower = _on(weights, variance, device)
    drawn = words_of(key, n, secure, device=device)
    found = torch.searchsorted(upper, drawn, right=True)
    tied = upper[(found - 1).clamp(min=0)] == drawn
    if bool(tied.any()):
        found[tied] = _settled(upper, lower, drawn[tied], words_of(fold(key, "lower"), n, secure, device=device)[tied])
    return found - reach(variance)


def _settled(upper: Tensor, lower: Tensor, high: Tensor, low: Tensor) -> Tensor:
    """Return the number of thresholds that are at most ``high * 2**64 + low``, each given as two words."""
    at_most = (upper < high.view(-1, 1)) | ((upper == high.view(-1, 1)) & (lower <= low.view(-1, 1)))
    return at_most.sum(1)
