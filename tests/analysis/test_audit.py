"""Audits: the bound of one run, the estimate by cosines, and runs with canaries."""

import math
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from gossamer import ConfigError, Options, Task, fedavg
from gossamer.analysis.audit import (
    Audit,
    Canaries,
    audit,
    correct_guesses,
    epsilon_bound,
    epsilon_estimate,
    epsilon_interval,
    epsilon_of_gaussians,
    p_value,
)
from gossamer.core.random import key
from gossamer.core.types import Layout
from gossamer.testing import tiny_task


def of_gaussian_mechanism(noise: float, delta: float) -> float:
    """The exact epsilon of a Gaussian mechanism with sensitivity 1: Balle and Wang, 2018, Theorem 8."""

    def exceeded(epsilon: float) -> bool:
        a, b = 1 / (2 * noise) - epsilon * noise, -1 / (2 * noise) - epsilon * noise
        return math.erfc(-a / math.sqrt(2)) - math.exp(epsilon) * math.erfc(-b / math.sqrt(2)) > 2 * delta

    low, high = 0.0, 50.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if exceeded(middle) else (low, middle)
    return high


# The bound of one run


@pytest.mark.parametrize(
    ("counts", "delta", "published"),
    [((1000, 100, 75), 1e-4, 0.673), ((100_000, 1510, 1439), 1e-5, 2.675)],
)
def test_the_bound_is_that_of_the_paper(counts: tuple[int, int, int], delta: float, published: float) -> None:
    """Appendix D and Section 7 of Steinke et al., with confidence 0.95."""
    assert epsilon_bound(*counts, delta) == pytest.approx(published, abs=1e-3)


@given(st.integers(1, 30), st.data(), st.floats(0, 5), st.sampled_from([0.0, 1e-3, 0.02]))
def test_the_p_value_is_that_of_the_formula(guesses: int, data: Any, epsilon: float, delta: float) -> None:
    correct, canaries = data.draw(st.integers(0, guesses)), guesses + data.draw(st.integers(0, 20))
    q = Fraction(math.exp(epsilon) / (1 + math.exp(epsilon)))
    chance = [math.comb(guesses, k) * q**k * (1 - q) ** (guesses - k) for k in range(guesses + 1)]
    tail = sum(chance[correct:])
    most = max((sum(chance[correct - i : correct]) / i for i in range(1, correct + 1)), default=Fraction(0))
    slow = min(1.0, float(tail + 2 * canaries * Fraction(delta) * most))
    assert p_value(canaries, guesses, correct, epsilon, delta) == pytest.approx(slow, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("epsilon", [0.5, 2.0])
def test_the_bound_rarely_exceeds_the_epsilon_of_randomized_response(epsilon: float) -> None:
    """For randomized response the bound is tight: it is wrong in at most 5 % of all audits, and in not much fewer."""
    chance, runs, guesses = 1 / (1 + math.exp(-epsilon)), 4000, 200
    correct = np.random.default_rng(1).binomial(guesses, chance, runs)
    bounds = {count: epsilon_bound(guesses, guesses, int(count), 0.0) for count in np.unique(correct)}
    wrong = np.mean([bounds[count] > epsilon for count in correct])
    assert 0.02 < wrong < 0.05 + 3 * math.sqrt(0.05 * 0.95 / runs)


@pytest.mark.parametrize("noise", [0.5, 1.0, 3.0])
def test_the_bound_of_a_gaussian_mechanism_does_not_exceed_its_epsilon(noise: float) -> None:
    generator, exact = np.random.default_rng(2), of_gaussian_mechanism(noise, 1e-5)
    bounds = []
    for _ in range(20):
        included = generator.random(2000) < 0.5
        scores = included + noise * generator.standard_normal(2000)
        bounds.append(epsilon_bound(2000, 300, correct_guesses(scores, included.tolist(), 300), 1e-5))
    assert max(bounds) <= exact
    assert np.mean(bounds) > 0.1 * exact


def test_guesses_are_the_highest_and_the_lowest_scores() -> None:
    scores, included = [5.0, 4.0, 3.0, 2.0, 1.0], [True, False, True, False, True]
    assert [correct_guesses(scores, included, n) for n in (1, 2, 3, 4, 5)] == [1, 1, 1, 2, 3]


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ((10, 5, 6, 0.1), "correct must be from 0 to the 5 guesses"),
        ((10, 11, 6, 0.1), "guesses must be at most the 10 canaries"),
        ((10, 5, 4, 1.0), "delta must be from 0 to below 1"),
        ((10, 5, 4, 0.1, 1.0), "confidence must be above 0 and below 1"),
    ],
)
def test_wrong_counts_are_refused(given: Any, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        epsilon_bound(*given)


# The estimate by cosines


@pytest.mark.parametrize("noise", [0.3, 1.0, 4.0])
def test_two_normal_distributions_of_one_deviation_are_a_gaussian_mechanism(noise: float) -> None:
    for pair in (((0.0, noise), (1.0, noise)), ((3.0, 2 * noise), (1.0, 2 * noise))):
        assert epsilon_of_gaussians(*pair, 1e-5) == pytest.approx(of_gaussian_mechanism(noise, 1e-5), abs=1e-6)


@settings(max_examples=30, deadline=None)
@given(st.floats(-2, 2), st.floats(0.3, 3), st.floats(-2, 2), st.floats(0.3, 3), st.sampled_from([1e-2, 1e-4]))
def test_the_epsilon_of_normal_distributions_is_that_of_an_integral(
    mean: float, deviation: float, other: float, its: float, delta: float
) -> None:
    """At the epsilon, the larger of the two integrals of the positive part of p - e^epsilon q is delta."""
    epsilon = epsilon_of_gaussians((mean, deviation), (other, its), delta)
    x = np.linspace(-40, 40, 400_001)
    p, q = (
        np.exp(-(((x - m) / s) ** 2) / 2) / (s * math.sqrt(2 * math.pi)) for m, s in ((mean, deviation), (other, its))
    )
    found = max(np.maximum(a - math.exp(epsilon) * b, 0).sum() for a, b in ((p, q), (q, p))) * (x[1] - x[0])
    assert found == pytest.approx(delta, rel=1e-3) or (epsilon == 0 and found <= delta)


def test_cosines_of_a_gaussian_mechanism_give_its_epsilon() -> None:
    """Directions are inserted into noise, as in Section 3 of the paper; the cosines of several runs are pooled."""
    d, canaries, noise = 5000, 400, 1.5
    generator = torch.Generator().manual_seed(4)
    found, exact = [], of_gaussian_mechanism(math.sqrt(noise**2 + canaries / d), 1e-5)
    for _ in range(10):
        directions = nn.functional.normalize(torch.randn(canaries, d, generator=generator), dim=1)
        total = directions.sum(0) + noise * torch.randn(d, generator=generator)
        found.append((directions @ total / total.norm()).numpy())
    assert epsilon_estimate(np.concatenate(found), d, 1e-5) == pytest.approx(exact, rel=0.06)


def test_the_interval_of_an_estimate_covers_it_and_shrinks_with_canaries() -> None:
    d, widths = 10_000, []
    for count in (50, 2000):
        cosines = (0.5 + np.random.default_rng(3).standard_normal(count)) / math.sqrt(d)
        low, high = epsilon_interval(cosines, d, 1e-5, 0.9, key(1))
        assert low <= epsilon_estimate(cosines, d, 1e-5) <= high
        widths.append(high - low)
    assert widths[1] < widths[0] / 3


# Runs


def test_canaries_send_a_direction_of_their_own_in_all_rounds_or_nothing() -> None:
    like = {"a": torch.ones(300, 10), "b": torch.ones(7)}
    canaries = Canaries(norm=4.0, seed=3)
    sent = {client: canaries.update_of(client, like, key(client)) for client in range(60)}
    for client, update in sent.items():
        again = canaries.update_of(client, like, key(99))
        assert all(torch.equal(update[name], again[name]) for name in like)
        vector = Layout.of(like).flatten(update).double()
        expected = 4 * canaries.direction(client, like) * canaries.included(client)
        torch.testing.assert_close(vector, expected, rtol=1e-5, atol=1e-6)
    assert 15 < sum(map(canaries.included, sent)) < 45
    cosine = canaries.direction(1, like) @ canaries.direction(2, like)
    assert abs(float(cosine)) < 5 / math.sqrt(3007)


def test_without_noise_every_canary_is_found() -> None:
    found = audit(fedavg(steps=1), tiny_task(clients=30), Options(rounds=2), canaries=20, guesses=8, delta=1e-5)
    assert found.correct == 8
    assert found.bound > 0.4
    assert found.stated is None
    assert found.passed
    assert not replace(found, stated=0.5).passed


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"canaries": 30}, "canaries must be at least 20, and below the 30 clients"),
        ({"canaries": 20, "guesses": 21}, "guesses must be from 1 to the 20 canaries"),
        ({"canaries": 20}, "give the delta of the audit"),
    ],
)
def test_wrong_audits_are_refused(given: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        audit(fedavg(steps=1), tiny_task(clients=30), Options(rounds=1), **given)
    with pytest.raises(ConfigError, match="no other attack"):
        audit(fedavg(), tiny_task(clients=30), Options(rounds=1, attack="noise"), canaries=9)  # type: ignore[arg-type]


def audited(noise: float) -> Audit:
    """The audit of two rounds with central privacy: 400 of 440 clients are canaries, in a model of 20,200 entries."""
    private = pytest.importorskip("gossamer.parts.servers.private")
    pytest.importorskip("dp_accounting")
    x, y = torch.randn(440, 100, generator=torch.Generator().manual_seed(1)), torch.arange(440) % 2
    task = Task.of(lambda: nn.Linear(100, 200), (x, y), (x, y), clients=440)
    method = fedavg(steps=1).with_parts(server=private.PrivateMean(clip=1.0, noise_multiplier=noise))
    given: dict[str, Any] = {"rounds": 2, "delta": 1e-5}
    return audit(method, task, Options(**given), canaries=400, guesses=100)


@pytest.mark.slow
@pytest.mark.parametrize("noise", [0.5, 1.0, 2.0])
def test_the_audited_epsilon_of_a_run_does_not_exceed_the_stated_one(noise: float) -> None:
    found = audited(noise)
    assert found.stated is not None
    assert 0.2 < found.bound <= found.stated
    assert found.interval[0] <= found.stated


@pytest.mark.slow
def test_an_audit_finds_that_the_noise_is_too_small() -> None:
    """The epsilon of noise 2 is stated, and the noise is 0.1."""
    honest, wrong = audited(2.0), audited(0.1)
    assert not replace(wrong, stated=honest.stated).passed
