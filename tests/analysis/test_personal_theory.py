"""FedSpa's Theorem 1: closed forms, the equation that it is derived from, and what must rise with what."""

import doctest
import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import gossamer.analysis.theory.personal_masks as module
from gossamer.analysis.theory import PersonalSetting, mask_drift, personal_bound, personal_rate
from gossamer.core.errors import ConfigError

SETTING = PersonalSetting(
    smoothness=3.0, dissimilarity=0.7, deviation=0.4, gradient=1.3, cohort=5, steps=4, rounds=50, gap=0.9
)


def test_the_examples_are_right() -> None:
    assert doctest.testmod(module).failed == 0


# The drift.


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_a_dense_mask_that_is_the_best_one_has_drift_1() -> None:
    ones = torch.ones(6, dtype=torch.float64)
    assert mask_drift(ones, ones, draw(3, 6), draw(6, seed=1)) == pytest.approx(1)


@given(st.integers(0, 10**6), st.integers(0, 255))
@settings(max_examples=50)
def test_without_a_difference_of_masks_the_drift_is_at_most_1(seed: int, number: int) -> None:
    mask = torch.tensor([number >> bit & 1 for bit in range(8)], dtype=torch.float64)
    assert mask_drift(mask, mask, draw(3, 8, seed=seed), draw(8, seed=seed + 1)) <= 1 + 1e-12


def test_the_drift_is_the_largest_ratio_of_the_steps() -> None:
    mask, best, start = torch.tensor([1.0, 0, 1]), torch.tensor([0.0, 1, 1]), torch.tensor([1.0, 2, 3])
    gradients = torch.tensor([[2.0, 2, 3], [1.0, 5, 1]])
    # |(2, -2, 0)|^2 / |(1, 0, 0)|^2 and |(1, -2, -2)|^2 / |(0, 3, -2)|^2
    assert mask_drift(mask, best, gradients, start) == pytest.approx(max(8 / 1, 9 / 13))
    assert mask_drift(mask, best, gradients[1:], start) == pytest.approx(9 / 13)


def test_an_unchanged_gradient_counts_only_if_the_masks_differ_on_it() -> None:
    start = torch.tensor([1.0, 2.0])
    one, other = torch.tensor([1.0, 0.0]), torch.tensor([0.0, 1.0])
    assert mask_drift(one, other, start[None], start) == math.inf
    assert mask_drift(one, one, start[None], start) == 0
    assert mask_drift(one, one, torch.stack([start, start + 1]), start) == pytest.approx(0.5)


# The bound.


def equation_39(setting: PersonalSetting, drift: float) -> float:
    """The last step before the theorem, for one rate and one drift in all rounds, averaged over the rounds."""
    s, rate = setting, personal_rate(setting, drift)
    local = s.deviation**2 + 6 * s.steps * s.dissimilarity**2
    first = 50 * rate**2 * s.smoothness**2 * s.steps + 5 * rate * s.smoothness
    second = 300 * s.steps**2 * rate**2 * s.smoothness**2 + 30 * s.steps * rate * s.smoothness
    last = 6 * s.dissimilarity**2 + 2 * s.deviation**2 / (s.steps * s.cohort) + 10 * s.gradient**2
    inner = first * local + second * s.gradient**2 + last / drift
    return 2 * s.gap / (rate * s.steps * s.rounds) + rate * s.steps * s.smoothness * drift * inner


@pytest.mark.parametrize("drift", [0.01, 1.0, 7.3])
@pytest.mark.parametrize("rounds", [1, 50, 4000])
def test_the_bound_is_the_equation_that_it_is_derived_from(drift: float, rounds: int) -> None:
    setting = replace(SETTING, rounds=rounds)
    assert personal_bound(setting, [drift] * rounds) == pytest.approx(equation_39(setting, drift))


def test_the_constants_of_the_paper() -> None:
    setting = replace(SETTING, dissimilarity=0.0, gradient=0.0, deviation=2.0)
    assert setting.c1 == pytest.approx(25 * 4 / (32 * 4 * 50) + 4 / (2 * 4 * 5))
    assert setting.c2 == pytest.approx(5 * 4 / (16 * 4 * math.sqrt(50)))
    setting = replace(SETTING, dissimilarity=1.0, gradient=0.0, deviation=0.0)
    assert setting.c1 == pytest.approx(25 * 6 / (32 * 50) + 1.5)
    assert setting.c2 == pytest.approx(5 * 6 / (16 * math.sqrt(50)))
    setting = replace(SETTING, dissimilarity=0.0, gradient=2.0, deviation=0.0)
    assert setting.c1 == pytest.approx(75 * 4 / (16 * 50) + 5 * 4 / 2)
    assert setting.c2 == pytest.approx(15 * 4 / (8 * math.sqrt(50)))


def test_the_bound_falls_as_one_over_the_root_of_the_rounds() -> None:
    bounds = [personal_bound(replace(SETTING, rounds=t), [2.0] * t) for t in (10**4, 4 * 10**4)]
    assert bounds[0] / bounds[1] == pytest.approx(2, rel=0.01)


def test_rounds_of_unequal_drift_have_the_largest_root_and_the_mean_inverse_root() -> None:
    setting = replace(SETTING, rounds=2)
    whole = (3 * 8 * setting.smoothness * setting.gap + (1 / 3 + 1) / 2 * setting.c1 + setting.c2) / math.sqrt(2)
    assert personal_bound(setting, [9.0, 1.0]) == pytest.approx(whole)


@pytest.mark.parametrize("drift", [0.0, math.inf])
def test_drifts_of_0_and_of_infinity_bound_nothing(drift: float) -> None:
    assert personal_bound(replace(SETTING, rounds=2), [drift, 1.0]) == math.inf
    assert personal_rate(SETTING, drift) == (math.inf if drift == 0 else 0)


def test_the_rate_is_the_largest_that_the_theorem_allows() -> None:
    assert personal_rate(SETTING, 4.0) == pytest.approx(math.sqrt(1 / (16 * 3.0**2 * 4**2 * 4.0 * 50)))


@pytest.mark.parametrize(
    ("field", "value"), [("smoothness", 0.0), ("gradient", -1.0), ("gap", math.nan), ("cohort", 0), ("rounds", 0)]
)
def test_constants_that_cannot_be_are_refused(field: str, value: float) -> None:
    with pytest.raises(ConfigError, match=f"PersonalSetting.{field} must be"):
        replace(SETTING, **{field: value})  # type: ignore[arg-type]


def test_mistakes_are_refused() -> None:
    with pytest.raises(ConfigError, match="one value per round, 50, got 2"):
        personal_bound(SETTING, [1.0, 1.0])
    with pytest.raises(ConfigError, match="at least 0, got nan"):
        personal_rate(SETTING, math.nan)
    with pytest.raises(ConfigError, match="differ in their numbers of entries"):
        mask_drift(torch.ones(3), torch.ones(3), torch.ones(2, 4), torch.ones(4))
