"""The noise that a privacy budget takes: the smallest noise multiplier that meets it over all rounds."""

import math
from collections.abc import Callable

from gossamer.core.errors import ConfigError, require, wrong_argument
from gossamer.core.extras import need
from gossamer.core.privacy import Guarantee
from gossamer.parts.privacy.accounting import check_delta

BRACKET = (0.05, 1000.0)
"""The smallest and the largest noise multiplier that are tried."""

DIGITS = 4
"""Significant digits of a calibrated noise multiplier."""


def calibrate(
    target: Callable[[float], Guarantee],
    epsilon: float,
    delta: float,
    rounds: int,
    bracket: tuple[float, float] = BRACKET,
) -> float:
    """Return the smallest noise multiplier with at most this epsilon after all rounds, rounded up to four digits.

    Args:
        target: returns the guarantee for a noise multiplier
        epsilon: the budget
        delta: the probability with which it may be exceeded
        rounds: the number of rounds
        bracket: the smallest and the largest noise multiplier that are tried

    Raises ``ConfigError`` if the largest is not enough.
    """
    check_delta(delta)
    require(
        (0 < epsilon < math.inf, wrong_argument("epsilon", epsilon, "must be a positive number")),
        (rounds >= 1, wrong_argument("rounds", rounds, "must be at least 1")),
    )
    noise = rounded_up(_crossing(lambda noise: target(noise).epsilon(rounds, delta), epsilon, bracket))
    while (reached := target(noise).epsilon(rounds, delta)) > epsilon:
        if noise >= bracket[1]:
            raise _failed(epsilon, delta, rounds, noise, reached)
        noise = min(bracket[1], rounded_up(noise * (1 + 10.0**-DIGITS)))
    return noise


def _crossing(spent: Callable[[float], float], epsilon: float, bracket: tuple[float, float]) -> float:
    """Return about the noise at which epsilon is spent, or the end of the bracket that is nearest to it."""
    low = high = min(max(1.0, bracket[0]), bracket[1])
    while spent(low) < epsilon and low > bracket[0]:
        low, high = max(bracket[0], low / 2), low
    while spent(high) > epsilon and high < bracket[1]:
        low, high = high, min(bracket[1], high * 2)
    if spent(low) <= epsilon:
        return low
    if spent(high) >= epsilon:
        return high
    excess = need("scipy.optimize").brentq(
        lambda log: math.log(max(spent(math.exp(log)), 1e-12) / epsilon), math.log(low), math.log(high), xtol=2e-5
    )
    return math.exp(excess - 2e-5)


def rounded_up(noise: float) -> float:
    """Return a number, rounded up to four significant digits.

    >>> rounded_up(1.23411), rounded_up(12.5)
    (1.235, 12.5)
    """
    step = DIGITS - 1 - math.floor(math.log10(noise))
    return round(math.ceil(round(noise * 10.0**step, 6)) / 10.0**step, step)


def _failed(epsilon: float, delta: float, rounds: int, noise: float, reached: float) -> ConfigError:
    return ConfigError(
        f"epsilon {epsilon:g} with delta {delta:g} cannot be met in {rounds:,} rounds: noise of {noise:g} times the "
        f"clipping norm still gives {reached:.3g}: use fewer rounds, more clients with the same number per round, or a "
        "larger epsilon"
    )
