"""Rényi divergences of whole-number noise that many clients add to a sum.

The neighbours are a sum of whole-number vectors, and the same sum without the contribution of one client, whose noise
stays. They differ by a vector of d whole numbers with Euclidean norm at most D2 and absolute sum at most D1. Every
vector of whole numbers has ``D1 <= min(sqrt(d) D2, D2^2)``.

**Sums of discrete Gaussians** (Kairouz, Liu and Steinke, 2021, https://arxiv.org/abs/2102.06387, Theorem 1 and
Proposition 14). Each of n clients adds noise of variance s^2, at least 1/4. A sum of discrete Gaussians is not a
discrete Gaussian, but close to one. With ``tau = 10 sum_(k=1..n-1) exp(-2 pi^2 s^2 k / (k + 1))`` and ``r = 1 /
(sqrt(n) s)``, the divergence of order a is at most the smallest of

    a (r D2)^2 / 2 + tau d        a/2 ((r D2)^2 + 2 r D1 tau + tau^2 d)        a/2 (r D2 + tau sqrt(d))^2

**Skellam noise** (Agarwal, Kairouz and Liu, 2021, https://arxiv.org/abs/2110.04995, Theorem 3.5 and Corollary 4.1).
Sums of Skellam variables are Skellam variables. With total variance v, for whole orders a,

    a D2^2 / (2 v) + min( ((2 a - 1) D2^2 + 6 D1) / (4 v^2), 3 D1 / (2 v) )

Divergences never fall as the order rises, so orders that are not whole are rounded up where the bound needs it.
"""

import math

from gossamer.core.errors import ConfigError

LEAST = 0.25
"""The smallest variance of each client for which the bound of discrete Gaussians holds."""

SUMMED = 4096
"""Terms of tau that are added one by one. The later ones are smaller than the last of them, and count as much."""


def absolute_bound(norm: float, size: int) -> float:
    """Return the largest absolute sum of a vector of whole numbers, given its norm and its number of entries."""
    return norm * min(math.sqrt(size), norm)


def tau(variance: float, clients: int) -> float:
    """Return the distance of a sum of discrete Gaussians from a discrete Gaussian, given the variance of each."""
    last = min(clients - 1, SUMMED)
    rate = -2 * math.pi**2 * variance
    total = math.fsum(math.exp(rate * k / (k + 1)) for k in range(1, last + 1))
    return 10 * (total + (clients - 1 - last) * math.exp(rate * SUMMED / (SUMMED + 1)))


def discrete_gaussian(order: float, norm: float, size: int, variance: float, clients: int) -> float:
    """Return the divergence of a sum of discrete Gaussians.

    Args:
        order: the order, above 1
        norm: the largest norm of a client's contribution
        size: the number of entries
        variance: the variance of each client's noise
        clients: the number of clients whose noise is in the sum
    """
    if variance < LEAST:
        raise ConfigError(
            f"the noise of each client has variance {variance:.3g}, and the bound needs {LEAST}: use more bits"
        )
    ratio, off = norm / math.sqrt(clients * variance), tau(variance, clients)
    summed = absolute_bound(norm, size) / math.sqrt(clients * variance)
    return min(
        order / 2 * ratio**2 + off * size,
        order / 2 * (ratio**2 + 2 * summed * off + off**2 * size),
        order / 2 * (ratio + off * math.sqrt(size)) ** 2,
    )


def skellam(order: float, norm: float, size: int, variance: float, clients: int) -> float:
    """Return the divergence of a sum of Skellam variables. The arguments are those of ``discrete_gaussian``."""
    whole, total, summed = math.ceil(order), clients * variance, absolute_bound(norm, size)
    first = ((2 * whole - 1) * norm**2 + 6 * summed) / (4 * total**2)
    return whole * norm**2 / (2 * total) + min(first, 3 * summed / (2 * total))
