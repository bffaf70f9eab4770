"""Rate and outage of a radio link: against quadrature, against drawn gains, at both ends, and the figures of papers."""

import doctest
import math
from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import integrate

from gossamer import ConfigError
from gossamer.core.random import key, uniform
from gossamer.fleet import radio
from gossamer.fleet.radio import FADINGS, Density, Fading, Link, efficiency, losses, outage, rate

EULER = 0.5772156649015329
DECADES = [10.0**exponent for exponent in range(-10, 11)]
RANDOM: list[Fading] = ["power", "amplitude"]

links = st.builds(
    Link,
    power=st.floats(1e-6, 10),
    distance=st.floats(1, 1e4),
    bandwidth=st.floats(1e3, 1e8),
    noise=st.floats(1e-18, 1e-6) | st.floats(1e-24, 1e-16).map(Density),
    interference=st.floats(0, 1e-5),
    threshold=st.floats(1e-3, 1e3),
    fading=st.sampled_from(FADINGS),
)


def mean(of_gain: Callable[[float], float], fading: Fading, knee: float) -> float:
    """The mean over the gain, in the plain variable, piece by piece: the slow way."""

    def weighted(gain: float) -> float:
        density = math.exp(-gain) if fading == "power" else 2 * gain * math.exp(-(gain**2))
        return of_gain(gain) * density

    corners = sorted({0.0, *(10.0**e for e in range(-14, 2)), *(knee * 10**e for e in (-2, -1, 0, 1, 2)), 60.0})
    inside = [corner for corner in corners if corner <= 60]
    pieces = (integrate.quad(weighted, *piece, epsabs=0, epsrel=1e-10, limit=200)[0] for piece in pairwise(inside))
    return float(sum(pieces))


@pytest.mark.parametrize("fading", RANDOM)
@pytest.mark.parametrize("snr", DECADES)
def test_the_rate_is_the_mean_over_the_gain_in_twenty_decades(fading: Fading, snr: float) -> None:
    slow = mean(lambda gain: math.log1p(snr * gain) / math.log(2), fading, 1 / snr)
    assert float(efficiency(snr, fading)) == pytest.approx(slow, rel=1e-8)


@pytest.mark.parametrize("fading", RANDOM)
@pytest.mark.parametrize("ratio", DECADES)
def test_the_outage_is_the_mean_over_the_gain_in_twenty_decades(fading: Fading, ratio: float) -> None:
    slow = mean(lambda gain: -math.expm1(-ratio / gain) if gain else 1.0, fading, ratio)
    assert float(losses(ratio, fading)) == pytest.approx(slow, rel=1e-8)


@pytest.mark.parametrize("fading", RANDOM)
def test_drawn_gains_agree_in_ten_decades(fading: Fading) -> None:
    """A million gains; the tolerance is six standard errors of the mean."""
    exponential = -np.log1p(-uniform(key(3), 10**6, dtype=torch.float64).numpy())
    gains = exponential if fading == "power" else np.sqrt(exponential)
    for ratio in DECADES[5:16]:
        for closed, drawn in (
            (efficiency(ratio, fading), np.log2(1 + ratio * gains)),
            (losses(ratio, fading), -np.expm1(-ratio / gains)),
        ):
            assert abs(closed - drawn.mean()) <= 6 * drawn.std() / 1000


@pytest.mark.parametrize("fading", FADINGS)
def test_both_limits_are_the_first_term_of_a_series(fading: Fading) -> None:
    weak, root = 1e-200, math.sqrt(math.pi)
    # Of the power 1 / gain has no mean: a logarithm comes in.
    inverses = {"power": 1 - 2 * EULER - math.log(weak), "amplitude": root, "none": 1}
    gains = {"power": 1, "amplitude": root / 2, "none": 1}
    assert float(efficiency(weak, fading)) == pytest.approx(weak * gains[fading] / math.log(2), rel=1e-14)
    assert float(losses(weak, fading)) == pytest.approx(weak * inverses[fading], rel=1e-14)
    assert float(losses(1e200, fading)) == 1
    assert float(losses(math.inf, fading)) == 1
    assert float(losses(0, fading)) == 0
    assert float(efficiency(0, fading)) == 0


def test_a_strong_link_loses_the_mean_of_the_logarithm() -> None:
    for snr in (1e12, 1e30):
        assert float(efficiency(snr)) == pytest.approx(math.log2(snr) - EULER / math.log(2), rel=1e-10)
        amplitude = math.log2(snr) - EULER / 2 / math.log(2)
        assert float(efficiency(snr, "amplitude")) == pytest.approx(amplitude, rel=1e-10)


@pytest.mark.parametrize("at", [radio.NEAR, 1 / radio.FAR])
def test_where_a_series_begins_nothing_jumps(at: float) -> None:
    around = at * (1 + np.linspace(-1e-6, 1e-6, 21))
    for values in (efficiency(around), losses(around)):
        steps = np.diff(values)
        assert (steps > 0).all()
        assert steps.max() / steps.min() == pytest.approx(1, abs=1e-4)


def test_arrays_are_done_entry_by_entry() -> None:
    several = np.array([[1e-9, 0.1], [0.3, 1e9]])
    for fading in FADINGS:
        for function in (efficiency, losses):
            found = function(several, fading)
            assert found.dtype == np.float64
            alone = [[float(function(one, fading)) for one in row] for row in several]
            np.testing.assert_allclose(found, alone, rtol=1e-12)


@given(link=links, more=st.floats(1.01, 100))
def test_with_more_power_more_arrives_and_faster(link: Link, more: float) -> None:
    stronger = Link(**{**vars(link), "power": link.power * more})
    assert stronger.snr == pytest.approx(link.snr * more)
    assert rate(stronger) > rate(link) > 0
    assert 0 <= outage(stronger) <= outage(link) <= 1
    assert outage(stronger) < outage(link) or outage(link) > 1 - 1e-12


@given(link=links)
def test_fading_slows_a_link_and_loses_more(link: Link) -> None:
    """By Jensen's inequality: the logarithm is concave, and of the gain with mean 1 nothing else differs."""
    faded, steady = (Link(**{**vars(link), "fading": fading}) for fading in ("power", "none"))
    assert rate(faded) < rate(steady) * (1 + 1e-12)


def test_figures_of_the_literature() -> None:
    link = Link(power=0.01, distance=250, interference=5e-8, threshold=1.08)
    assert link.threshold / link.snr == pytest.approx(0.3375, rel=1e-6)
    assert outage(link) == pytest.approx(0.464, abs=5e-4)
    assert outage(Link(0.01, 250, interference=5e-8, fading="none")) == pytest.approx(0.286, abs=5e-4)
    assert float(losses(0.01) / losses(0.01, "none")) == pytest.approx(4.5, abs=0.1), "what fading is worth"
    assert rate(link) == pytest.approx(1e6 * float(efficiency(3.2)), rel=1e-6)


def test_noise_is_given_in_the_band_or_per_hertz() -> None:
    of_band, of_hertz = Link(0.01, 100, 2e6, noise=8e-15), Link(0.01, 100, 2e6, noise=Density(4e-21))
    assert of_band.snr == pytest.approx(of_hertz.snr, rel=1e-12)
    assert Link(0.01, 100, exponent=3).snr == pytest.approx(Link(0.01, 100).snr / 100)


def test_all_mistakes_of_a_link_are_reported_at_once() -> None:
    with pytest.raises(ConfigError) as refused:
        Link(0, -1, 0, math.inf, -1, -1, "rain", 0)  # type: ignore[arg-type]
    assert len(refused.value.mistakes) == 8
    with pytest.raises(ConfigError, match=r"Density.watts must be a positive number, got 0"):
        Density(0)
    with pytest.raises(ConfigError, match=r"the signal-to-noise ratio cannot be 1e-\d+"):
        Link(1e-300, 1e100)


def test_examples_hold() -> None:
    result = doctest.testmod(radio)
    assert result.attempted == 2
    assert result.failed == 0
