"""The effect of lost uploads in a round, as expectations over the set of received devices.

Device u has K_u samples and is received with probability 1 - q_u, independently of others. With a_u = 1 for received
devices, X = sum K_u a_u is the number of received samples, of K = sum K_u in total. If no device is received, there is
no update, and all quotients by X are 0.

The expectations need no enumeration of the 2^U sets of devices. X is an integer, so devices are added one by one to the
distribution of X, and to the part of a sum at each value of X. That takes U K / d operations, where d is the greatest
common divisor of the K_u. All terms are non-negative, so the only error is rounding.
"""

import itertools
import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from gossamer.core.errors import require

MOST = 12
"""Maximum number of devices for an enumeration of all sets: 4,096 sets."""

Floats = npt.NDArray[np.float64]


def participation(sizes: Sequence[int], outages: Sequence[float]) -> float:
    """E sum_u (1/K - a_u / X)^2: the expected squared distance between a round's weights and the full weights.

    This is the line before the paper's Equation B.11, with the probability of each set of devices. It is 0 if all
    devices are received, and U / K^2 if none ever is. In between it may be larger, and may decrease with an outage: by
    this measure, a round with only one small device is worse than no round.
    >>> participation([1, 1], [0.0, 0.0]), participation([1, 1], [0.5, 0.5]), participation([1, 1], [1.0, 1.0])
    (0.0, 0.375, 0.5)
    """
    check(sizes, outages)
    total = sum(sizes)
    values, _, counts = _law(sizes, outages, [1.0] * len(sizes))
    # A device that is not received has 1 / K^2, a received one (1/K - 1/X)^2.
    return sum(outages) / total**2 + float((counts[1:] * (1 / total - 1 / values[1:]) ** 2).sum())


def participation_printed(sizes: Sequence[int], outages: Sequence[float]) -> float:
    """The same as the paper prints it: sum over sets A of (1/K - P(A) / K_A)^2, with K_A the samples in A.

    The probability of a set is inside the square instead of before it, so each of the 2^U - 1 sets counts fully. The
    sum grows as 2^U / K^2, and is (2^U - 2) / K^2 without outages. For up to 12 devices.
    """
    check(sizes, outages)
    devices = range(len(sizes))
    require((len(sizes) <= MOST, f"participation_printed: {len(sizes)} devices have too many sets, at most {MOST} do"))
    total = 0.0
    for count in range(1, len(sizes) + 1):
        for received in itertools.combinations(devices, count):
            chance = math.prod(1 - outages[u] if u in received else outages[u] for u in devices)
            total += (1 / sum(sizes) - chance / sum(sizes[u] for u in received)) ** 2
    return total


def absence(sizes: Sequence[int], outages: Sequence[float]) -> float:
    """4 E(1 - X/K)^2: the expected squared L1 distance between a round's weights and the full weights.

    The weights K_u / K and K_u a_u / X differ by 2 (1 - X/K) in the L1 norm. So mean gradients of norm at most G differ
    by at most that times G. In closed form, with p_u = K_u / K: 4 (sum p_u q_u)^2 + 4 sum p_u^2 q_u (1 - q_u). It
    increases with every outage. If a device is received, it is at most sum K_u^2 times ``participation``, by the
    Cauchy-Schwarz inequality.
    """
    check(sizes, outages)
    shares = [size / sum(sizes) for size in sizes]
    missing = sum(p * q for p, q in zip(shares, outages, strict=True))
    spread = sum(p * p * q * (1 - q) for p, q in zip(shares, outages, strict=True))
    return 4 * (missing**2 + spread)


def received_mean(sizes: Sequence[int], outages: Sequence[float], marks: Sequence[float]) -> float:
    """E sum_u m_u K_u a_u / X: the mean of ``marks`` over received devices, weighted by samples."""
    check(sizes, outages)
    require((len(marks) == len(sizes), f"received_mean: {len(sizes)} devices, but {len(marks)} marks"))
    values, _, sums = _law(sizes, outages, [mark * size for mark, size in zip(marks, sizes, strict=True)])
    return float((sums[1:] / values[1:]).sum())


def check(sizes: Sequence[int], outages: Sequence[float]) -> None:
    """Refuse invalid sizes and outages of devices."""
    require(
        (len(sizes) > 0, "sizes must have one entry for each device"),
        (len(sizes) == len(outages), f"{len(sizes)} devices have sizes, but {len(outages)} outages"),
        *((size == int(size) >= 1, f"sizes must be integers of at least 1, got {size}") for size in sizes),
        *((0 <= q <= 1, f"outages must be in [0, 1], got {q}") for q in outages),
    )


def _law(sizes: Sequence[int], outages: Sequence[float], marks: Sequence[float]) -> tuple[Floats, Floats, Floats]:
    """Return the values of X, their probabilities, and the expected sum of marks at each, times its probability."""
    unit = math.gcd(*map(int, sizes))
    law = np.zeros(int(sum(sizes)) // unit + 1)
    law[0] = 1.0
    sums = np.zeros_like(law)
    top = 1
    for size, outage, mark in zip(sizes, outages, marks, strict=True):
        step = int(size) // unit
        with_it, more = (1 - outage) * law[:top], (1 - outage) * (sums[:top] + mark * law[:top])
        law[:top] *= outage
        sums[:top] *= outage
        law[step : step + top] += with_it
        sums[step : step + top] += more
        top += step
    return unit * np.arange(len(law), dtype=np.float64), law, sums
