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

Rényi divergences of the Poisson binomial mechanism, computed numerically with bounds that hold between grid points.

Each of n clients sends a bit per entry that is 1 with probability ``(1 + t) / 2``, with |t| at most ``2 theta``. The
server sees the sums over clients. The neighbours are sums with a client's values t_i, and with zeros in their place.
Chen, Özgür and Kairouz (https://arxiv.org/abs/2207.09916) prove a divergence of order a for each entry of order
``theta^2 / (1 - 2 theta)^4  a m / n`` with m bits, if only the largest entry of the update is bounded. Here its norm is
bounded too: ``sum_i t_i^2 <= energy``. Entries are independent given the other clients' values, so the divergence of
all is at most

    rate(a) energy,    rate(a) = sup over t of D_a(t) / t^2,    D_a(t) the larger of both directions, for one entry

A sum of m bits per client is computed from m separate sums, so m bits count m times.

Let Q be the distribution of the sum with t = 0 and r that of the other clients' sum. The ratio of probabilities at s is
``1 + t w(s)`` with ``w(s) = (r(s-1) - r(s)) / (r(s-1) + r(s))``, whose mean over Q is 0. With b = a and b = 1 - a,

    (a - 1) D_a = log(1 + G(t)),    G(t) = E_Q[(1 + t w)^b - 1 - b t w]

**Other clients.** Their probabilities are unknown. Each is a mixture of the extremes ``1/2 - theta`` and ``1/2 +
theta``, and divergences are quasi-convex, so the worst case is a number k of clients at one extreme and the rest at the
other. Up to ``EXACT`` other clients, all k are tried. For more, each bit is a fair coin with probability ``1 - 2
theta``, and else constant. Of two sums, that with more fair coins has the smaller G, so G is at most its mean over the
number of fair coins, in intervals that count as their lower end. With J fair coins, ``w = (2 s - J - 1) / (J + 1)``.

**All t.** D never falls as t rises, by quasi-convexity. Between neighbours u < v of a geometric grid, ``D(t) / t^2`` is
therefore at most ``D(v) / u^2``. Below the grid, the second derivative of G is convex, so it is largest at an end, and
``G(t) <= t^2 / 2`` times this.
"""

import functools
import math
from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

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


Array = npt.NDArray[np.float64]

EXACT = 96
"""The largest number of other clients for which all cases are tried."""

RATIO = 1.02
"""Of neighbouring grid points."""

BLOCKS = 24
"""Intervals of the number of fair coins."""

RARE = 40.0
"""The negative logarithm of the probability of a tail that counts as the worst value."""


class Sums(NamedTuple):
    """Values of w and their probabilities, one row per case."""

    w: Array
    probability: Array


def poisson_binomial(order: float, theta: float, clients: int, energy: float, trials: int = 1) -> float:
    """Return a bound of the Rényi divergence of one round.

    Args:
        order: the order, above 1; orders that are not whole are rounded up
        theta: the largest difference of a probability from 1/2
        clients: the number of clients in the sum; 1 if every message is seen
        energy: the largest sum of squares of t over the entries
        trials: the number of bits per entry
    """
    return trials * energy * rate(math.ceil(order), theta, clients)


@functools.lru_cache(maxsize=4096)
def rate(order: int, theta: float, clients: int) -> float:
    """Return the largest D(t) / t^2 of one entry, for t up to 2 theta, in both directions."""
    fewer = rate(order, theta, EXACT + 1) if clients - 1 > EXACT else math.inf  # more clients reveal less
    return min(fewer, _rate(order, 2 * theta, _sums(theta, clients - 1)))


def _rate(order: int, last: float, sums: Sums) -> float:
    start, first = curvature(0.0, order, sums), last
    while curvature(first, order, sums) > 1.02 * start and first > 0.01 / order:
        first /= 1.5
    below = order / 2 * max(start, curvature(first, order, sums))
    points = np.minimum(first * RATIO ** np.arange(math.ceil(math.log(last / first) / math.log(RATIO)) + 1), last)
    return max([below, *(largest(float(v), order, sums) / float(u) ** 2 for u, v in pairwise(points) if u < v)])


def curvature(t: float, order: int, sums: Sums) -> float:
    """Return the second derivative of G at t, divided by a (a - 1): the largest of both directions and all cases."""
    with np.errstate(over="ignore"):
        each = [sums.w**2 * (1 + t * sums.w) ** (power - 2.0) for power in (order, 1 - order)]
    return max(float(np.max(np.sum(sums.probability * one, -1))) for one in each)


def largest(t: float, order: int, sums: Sums) -> float:
    """Return the larger divergence of both directions, over all cases."""
    return max(_one_way(t, order, power, sums) for power in (order, 1 - order))


def _one_way(t: float, order: int, power: int, sums: Sums) -> float:
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        gains = np.expm1(power * np.log1p(t * sums.w)) - power * t * sums.w
        found = float(np.max(np.sum(sums.probability * np.where(sums.probability > 0, gains, 0), -1)))
    return math.log1p(found) / (order - 1) if found < math.inf else math.inf


@functools.lru_cache(maxsize=16)
def _sums(theta: float, others: int) -> Sums:
    if others <= EXACT:
        return _stacked(_with_rest(rest) for rest in _extremes(theta, others))
    return _fair(theta, others)


def _stacked(cases: Iterator[Sums]) -> Sums:
    w, probability = zip(*cases, strict=True)
    return Sums(np.stack(w), np.stack(probability))


def _extremes(theta: float, others: int) -> Iterator[Array]:
    """Yield the distribution of the other clients' sum, for each number of them at the upper extreme.

    All numbers are tried with t above 0. By symmetry, this includes t below 0.
    """
    high, low = [np.ones(1)], [np.ones(1)]
    for _ in range(others):
        high.append(np.convolve(high[-1], [0.5 - theta, 0.5 + theta]))
        low.append(np.convolve(low[-1], [0.5 + theta, 0.5 - theta]))
    for k in range(others + 1):
        yield np.convolve(high[k], low[others - k])


def _with_rest(rest: Array) -> Sums:
    before, here = np.append(0.0, rest), np.append(rest, 0.0)
    return Sums((before - here) / np.maximum(before + here, 1e-300), (before + here) / 2)


def _fair(theta: float, others: int) -> Sums:
    """Return one case: the mixture over the number of fair coins."""
    coins, probability = _binomial(others, 1 - 2 * theta)
    edges = np.unique(np.linspace(0, len(coins), BLOCKS + 1).astype(int)[:-1])
    weights = np.add.reduceat(probability, edges)
    pieces = [_scaled(_coins(int(coins[edge])), weight) for edge, weight in zip(edges, weights, strict=True)]
    pieces.append(_scaled(_with_rest(np.ones(1)), math.exp(-RARE)))
    w, mass = zip(*pieces, strict=True)
    return Sums(np.concatenate(w)[None], np.concatenate(mass)[None])


def _scaled(sums: Sums, weight: float) -> Sums:
    return Sums(sums.w, sums.probability * weight)


def _coins(count: int) -> Sums:
    """Return w of a client's bit and this number of fair coins. Rare sums count as if all coins were equal."""
    values, probability = _binomial(count + 1, 0.5)
    rest = math.exp(-RARE)
    return Sums(np.append((2 * values - count - 1) / (count + 1), [-1.0, 1.0]), np.append(probability, [rest, rest]))


def _binomial(count: int, p: float) -> tuple[Array, Array]:
    """Return the values of a binomial variable that are not rare by Bernstein's inequality, and their probabilities."""
    spread = RARE / 3 + math.sqrt(RARE**2 / 9 + 2 * RARE * count * p * (1 - p))
    first, last = max(0, math.floor(count * p - spread)), min(count, math.ceil(count * p + spread))
    values = np.arange(first, last + 1, dtype=np.float64)
    logs = np.array([_log_choose(count, int(k)) for k in values])
    logs += values * math.log(p) + (count - values) * math.log1p(-p)
    weights = np.exp(logs - logs.max())
    return values, weights / weights.sum()


def _log_choose(n: int, k: int) -> float:
    return math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)
