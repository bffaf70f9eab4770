"""Rényi divergences: bounds against direct sums over the distributions, and their limits."""

import math
from functools import reduce

import numpy as np
import numpy.typing as npt
import pytest
from scipy import stats
from scipy.special import logsumexp

from gossamer import ConfigError
from gossamer.parts.codecs import renyi

Array = npt.NDArray[np.float64]


def direct(p: Array, q: Array, order: float) -> float:
    """The Rényi divergence of two distributions, by its definition."""
    return float(logsumexp(order * np.log(p) + (1 - order) * np.log(q))) / (order - 1)


def shifted(noise: Array, by: int) -> tuple[Array, Array]:
    """Noise with and without a shift, cut where both are known."""
    return noise[: len(noise) - by], noise[by:]


@pytest.mark.parametrize(("variance", "clients"), [(0.25, 2), (0.3, 5), (0.5, 3), (1.0, 10), (4.0, 4)])
@pytest.mark.parametrize("order", [1.5, 2, 8])
@pytest.mark.parametrize("shift", [1, 3])
def test_sums_of_discrete_gaussians(variance: float, clients: int, order: float, shift: int) -> None:
    k = np.arange(-30, 31)
    one = np.exp(-(k**2) / (2 * variance))
    noise = reduce(np.convolve, [one / one.sum()] * clients)
    middle, keep = len(noise) // 2, math.ceil(11 * math.sqrt(clients * variance)) + 4
    cut = noise[max(0, middle - keep) : middle + keep + 1]
    true = direct(*shifted(cut, shift), order)
    bound = renyi.discrete_gaussian(order, shift, 1, variance, clients)
    assert true <= bound * (1 + 1e-9)
    if variance >= 1:
        assert bound == pytest.approx(true, rel=1e-2)  # the sum is a Gaussian up to tau


@pytest.mark.parametrize("variance", [0.5, 3.0, 40.0, 900.0])
@pytest.mark.parametrize("order", [2, 5, 16])
@pytest.mark.parametrize("shift", [1, 4])
def test_skellam(variance: float, order: int, shift: int) -> None:
    most = math.ceil(40 + (order + 12) * math.sqrt(variance))
    noise = stats.skellam.pmf(np.arange(-most, most + 1), variance / 2, variance / 2)
    true = direct(*shifted(noise[noise > 1e-280], shift), order)
    bound = renyi.skellam(order, shift, 1, variance / 10, 10)
    assert true <= bound
    if variance >= 900:
        assert bound == pytest.approx(true, rel=0.05)
    assert bound >= order * shift**2 / (2 * variance)  # that of a Gaussian


def test_many_entries_count_by_their_norm() -> None:
    for curve in (renyi.discrete_gaussian, renyi.skellam):
        assert curve(4, 100.0, 10**6, 1e4, 100) == pytest.approx(4 * 100**2 / (2 * 1e6), rel=1e-3)
        assert curve(4, 100.0, 10**6, 1e4, 100) < curve(4, 200.0, 10**6, 1e4, 100)
    assert renyi.skellam(2.5, 10.0, 4, 50.0, 2) == renyi.skellam(3, 10.0, 4, 50.0, 2)


def test_tau() -> None:
    assert renyi.tau(0.5, 3) == pytest.approx(10 * (math.exp(-(math.pi**2) / 2) + math.exp(-(math.pi**2) * 2 / 3)))
    assert renyi.tau(0.5, 1) == 0
    many = math.fsum(10 * math.exp(-(math.pi**2) * k / (k + 1)) for k in range(1, 10_000))
    assert many <= renyi.tau(0.5, 10_000) < many * 1.001
    with pytest.raises(ConfigError, match=r"variance 0\.2, and the bound needs 0\.25: use more bits"):
        renyi.discrete_gaussian(2, 1, 1, 0.2, 10)


def sums_of_bits(chances: list[float]) -> Array:
    """The distribution of a sum of bits."""
    return reduce(np.convolve, ([1 - p, p] for p in chances), np.ones(1))


@pytest.mark.parametrize("theta", [0.01, 0.2, 0.4])
@pytest.mark.parametrize("clients", [1, 2, 6, 150])
@pytest.mark.parametrize("order", [2, 7])
def test_poisson_binomial_bounds_all_updates(theta: float, clients: int, order: int) -> None:
    """Random values of the client and of the others never exceed the bound, in both directions and with 3 bits."""
    numbers = np.random.default_rng(int(1000 * theta) + clients + order)
    worst = 0.0
    for case in range(40):
        t = theta * (1 if case % 3 == 0 else numbers.uniform(-1, 1))
        others = (
            numbers.choice([-theta, theta], clients - 1) if case % 2 else numbers.uniform(-theta, theta, clients - 1)
        )
        rest = sums_of_bits([0.5 + other for other in np.repeat(others, 3)])
        p, q = (np.convolve(sums_of_bits([chance] * 3), rest) for chance in (0.5 + t, 0.5))
        kept = (p > 1e-250) & (q > 1e-250)
        for pair in ((p[kept], q[kept]), (q[kept], p[kept])):
            found, bound = direct(*pair, order), renyi.poisson_binomial(order, theta, clients, (2 * t) ** 2, 3)
            assert found <= bound * (1 + 1e-9)
            worst = max(worst, found / bound)
    assert worst > (0.9 if theta < 0.1 else 0.4)


def test_poisson_binomial_of_one_client_is_known() -> None:
    order, t = 3, 0.5
    one_way = math.log(((1 + t) ** order + (1 - t) ** order) / 2) / (order - 1)
    other = math.log(((1 + t) ** (1 - order) + (1 - t) ** (1 - order)) / 2) / (order - 1)
    sums = renyi._sums(0.25, 0)
    assert renyi.largest(t, order, sums) == pytest.approx(max(one_way, other))
    assert max(one_way, other) <= renyi.rate(order, 0.25, 1) * t**2 < 1.3 * max(one_way, other)


def test_poisson_binomial_is_about_gaussian_noise() -> None:
    """A divergence of a / 2 times t^2 / n, for small theta."""
    for clients in (1, 50, 3000):
        for order in (2, 20):
            assert renyi.rate(order, 0.002, clients) * clients / (order / 2) == pytest.approx(1.02, abs=0.0201)
    assert renyi.poisson_binomial(3.2, 0.1, 9, 2.0) == renyi.poisson_binomial(4, 0.1, 9, 2.0)
    rates = [renyi.rate(4, 0.25, clients) for clients in (1, 5, 97, 98, 300, 5000)]
    assert rates == sorted(rates, reverse=True)
