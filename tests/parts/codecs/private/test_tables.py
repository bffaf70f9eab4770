"""Draws by inversion of tables: exact probabilities, moments, and ties of the upper words."""

import math

import pytest
import torch
from scipy import stats

from gossamer.core.random import key, words
from gossamer.parts.codecs import noise_tables as tables
from gossamer.parts.codecs.noise_tables import Weights, draw, gaussian_weights, reach, skellam_weights, thresholds

CPU = torch.device("cpu")


def exact(weights: Weights, variance: float, k: int) -> float:
    """The probability of k, from SciPy."""
    if weights is skellam_weights:
        return float(stats.skellam.pmf(k, variance / 2, variance / 2))
    total = math.fsum(math.exp(-(j**2) / (2 * variance)) for j in range(-reach(variance), reach(variance) + 1))
    return math.exp(-(k**2) / (2 * variance)) / total


@pytest.mark.parametrize("weights", [gaussian_weights, skellam_weights])
@pytest.mark.parametrize("variance", [0.3, 2.0, 140.25])
def test_tables_have_the_probabilities_of_the_distribution(weights: Weights, variance: float) -> None:
    upper, lower = thresholds(weights, variance)
    whole = [(high + 2**63 << 64) + low + 2**63 for high, low in zip(upper.tolist(), lower.tolist(), strict=True)]
    assert whole == sorted(whole)
    found = [b - a for a, b in zip([0, *whole], [*whole, 2**128], strict=True)]
    assert found[: len(found) // 2] == pytest.approx(found[: len(found) // 2 : -1], rel=1e-9, abs=4)
    for k in range(-reach(variance), reach(variance) + 1, 3):
        assert found[k + reach(variance)] / 2**128 == pytest.approx(exact(weights, variance, k), rel=1e-9, abs=1e-38)


@pytest.mark.parametrize("weights", [gaussian_weights, skellam_weights])
def test_the_reach_cuts_off_a_negligible_tail(weights: Weights) -> None:
    for variance in (0.01, 1.0, 1e4):
        most = reach(variance)
        assert most <= tables.EXTRA + tables.REACH * math.sqrt(variance)
        full = weights(variance, 2 * most + 10)
        beyond = 2 * sum(full[most + 1 :])
        assert beyond * 2**80 < 2 * sum(full)


@pytest.mark.parametrize("weights", [gaussian_weights, skellam_weights])
@pytest.mark.parametrize("variance", [0.7, 9.0])
def test_draws_have_the_distribution(weights: Weights, variance: float) -> None:
    n, most = 200_000, math.ceil(4 * math.sqrt(variance))
    drawn = draw(weights, variance, key(5), n, secure=False, device=CPU).clamp(-most, most)
    counts = torch.bincount(drawn + most, minlength=2 * most + 1)
    chances = [exact(weights, variance, k) for k in range(-most, most + 1)]
    chances[0] = chances[-1] = (1 - math.fsum(chances[1:-1])) / 2
    assert stats.chisquare(counts.numpy(), [n * p for p in chances]).pvalue > 1e-4


@pytest.mark.parametrize("weights", [gaussian_weights, skellam_weights])
def test_secure_draws_have_the_moments_and_differ(weights: Weights) -> None:
    first, second = (draw(weights, 25.0, key(5), 40_000, secure=True, device=CPU) for _ in range(2))
    assert not torch.equal(first, second)
    for drawn in (first.double(), second.double()):
        assert abs(float(drawn.mean())) < 6 * 5 / 200
        assert float(drawn.var()) == pytest.approx(25, rel=6 * 1.5 / 200)


def test_the_lower_word_decides_where_the_upper_one_equals_a_threshold(monkeypatch: pytest.MonkeyPatch) -> None:
    upper, lower = thresholds(gaussian_weights, 4.0)
    at, low = upper[[46, 46, 46, 50]], lower[[46, 46, 46, 50]] + torch.tensor([-1, 0, 1, -1])
    given = iter((at, low))
    monkeypatch.setattr(tables, "words_of", lambda *args, **more: next(given))
    found = draw(gaussian_weights, 4.0, key(0), 4, secure=False, device=CPU) + reach(4.0)
    assert found.tolist() == [46, 47, 47, 50]


def test_draws_follow_from_the_words_of_the_key() -> None:
    drawn = draw(skellam_weights, 3.0, key(8), 50, secure=False, device=CPU)
    upper, _ = thresholds(skellam_weights, 3.0)
    assert drawn.tolist() == [sum(upper <= word).item() - reach(3.0) for word in words(key(8), 50)]
    assert torch.equal(draw(skellam_weights, 3.0, key(8), 20, secure=False, device=CPU), drawn[:20])
