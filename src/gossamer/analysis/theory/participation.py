"""What it costs that some devices are not heard in a round, as expectations over who is.

Device u has K_u samples and is heard with the chance 1 - q_u, whatever becomes of others. With a_u = 1 for those that
are heard, X = sum K_u a_u is what a round counts, of K = sum K_u in all. If nobody is heard there is no update, and
everything that is divided by X is 0.

Expectations need no enumeration of the 2^U sets of devices: X is a whole number, so devices are added one by one to the
law of X, and to the part of a sum that each value of X has. That takes U K / d operations, with d the greatest common
divisor of the K_u, and adds up nothing that is negative: there is no error but that of rounding.
"""

import itertools
import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from gossamer.core.errors import require

MOST = 12
"""So many devices have their sets enumerated: 4,096 of them."""

Floats = npt.NDArray[np.float64]


def participation(sizes: Sequence[int], outages: Sequence[float]) -> float:
    """E sum_u (1/K - a_u / X)^2: how far the weights of a round are from those of all devices, squared.

    This is what the line before the paper's Equation B.11 has, with each set of devices as likely as it is. It is 0 if
    all are heard and U / K^2 if nobody ever is. In between it may be larger than that, and fall with an outage: a
    round that only a small device is heard in is worse, by this measure, than no round.

    >>> participation([1, 1], [0.0, 0.0]), participation([1, 1], [0.5, 0.5]), participation([1, 1], [1.0, 1.0])
    (0.0, 0.375, 0.5)
    """
    check(sizes, outages)
    total = sum(sizes)
    values, _, many = _law(sizes, outages, [1.0] * len(sizes))
    # Those that are not heard have 1 / K^2 each, those that are (1/K - 1/X)^2.
    return sum(outages) / total**2 + float((many[1:] * (1 / total - 1 / values[1:]) ** 2).sum())


def participation_printed(sizes: Sequence[int], outages: Sequence[float]) -> float:
    """The same as the paper prints it: sum over sets A of (1/K - P(A) / K_A)^2, with K_A the samples in A.

    The chance of a set stands within the square instead of before it, so that each of the 2^U - 1 sets counts whole:
    it grows as 2^U / K^2, and is (2^U - 2) / K^2 where all devices are heard. For up to 12 devices.
    """
    check(sizes, outages)
    devices = range(len(sizes))
    require((len(sizes) <= MOST, f"participation_printed: {len(sizes)} devices have too many sets, at most {MOST} do"))
    total = 0.0
    for many in range(1, len(sizes) + 1):
        for heard in itertools.combinations(devices, many):
            chance = math.prod(1 - outages[u] if u in heard else outages[u] for u in devices)
            total += (1 / sum(sizes) - chance / sum(sizes[u] for u in heard)) ** 2
    return total


def absence(sizes: Sequence[int], outages: Sequence[float]) -> float:
    """4 E(1 - X/K)^2: how far the weights of a round are from those of all devices, in sum, squared.

    The K_u / K and K_u a_u / X differ by 2 (1 - X/K) in sum, so mean gradients no longer than G differ by at most that
    times G. In closed form, with p_u = K_u / K: 4 (sum p_u q_u)^2 + 4 sum p_u^2 q_u (1 - q_u). It rises with every
    outage, and where somebody is heard it is no more than sum K_u^2 times ``participation``, by Cauchy and Schwarz.
    """
    check(sizes, outages)
    shares = [size / sum(sizes) for size in sizes]
    missing = sum(p * q for p, q in zip(shares, outages, strict=True))
    spread = sum(p * p * q * (1 - q) for p, q in zip(shares, outages, strict=True))
    return 4 * (missing**2 + spread)


def heard_mean(sizes: Sequence[int], outages: Sequence[float], marks: Sequence[float]) -> float:
    """E sum_u m_u K_u a_u / X: the mean of some marks over those that are heard, by their samples."""
    check(sizes, outages)
    require((len(marks) == len(sizes), f"heard_mean: {len(sizes)} devices, but {len(marks)} marks"))
    values, _, sums = _law(sizes, outages, [mark * size for mark, size in zip(marks, sizes, strict=True)])
    return float((sums[1:] / values[1:]).sum())


def check(sizes: Sequence[int], outages: Sequence[float]) -> None:
    """Refuse what cannot be sizes and outages of devices."""
    require(
        (len(sizes) > 0, "sizes must have one entry for each device"),
        (len(sizes) == len(outages), f"{len(sizes)} devices have sizes, but {len(outages)} outages"),
        *((size == int(size) >= 1, f"sizes must be whole numbers from 1, got {size}") for size in sizes),
        *((0 <= q <= 1, f"outages must be in [0, 1], got {q}") for q in outages),
    )


def _law(sizes: Sequence[int], outages: Sequence[float], marks: Sequence[float]) -> tuple[Floats, Floats, Floats]:
    """The values that X may have, their chances, and at each the mean sum of the marks of those heard, times chance."""
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
