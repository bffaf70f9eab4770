"""The epsilon of Gaussian mechanisms over the rounds of a run, by Google's ``dp-accounting``.

The noise multiplier z is the standard deviation of the noise divided by the clipping norm C. What is known about the
choice of the clients decides which analysis holds:

    sampling   neighbours    analysis
    poisson    add-remove    privacy loss distributions (PLD) of the sampled Gaussian mechanism: tight, up to the
                             discretization, which rounds epsilon up (https://arxiv.org/abs/2207.04380)
    fixed      replace-one   Rényi divergences of sampling without replacement (Wang, Balle and Kasiviswanathan, 2019,
                             https://arxiv.org/abs/1808.00087). A replaced client moves a clipped sum by up to 2 C, so
                             the noise counts as z / 2
    all        zero-out      the exact Gaussian mechanism with z / sqrt(rounds) (Balle and Wang, 2018,
                             https://arxiv.org/abs/1805.06530)
    other      zero-out      the same, without amplification: as if every client took part in every round

Without add-remove, a removed client would change which others take part. If the contribution of a client is zero
instead, the cohorts are the same. This needs a choice of clients that does not depend on their updates.
"""

import logging
import math
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any, Literal

from gossamer.core.errors import require, wrong_argument
from gossamer.core.extras import need
from gossamer.core.privacy import Guarantee, Participation, Relation, Unit

Accountant = Literal["pld", "rdp"]

ANYBODY = "everybody who sees the models, except the server"
"""Who central privacy protects from."""

FINE, MOST = 20, 100_000
"""Points of a discretized privacy loss: per standard deviation of it, and in all."""

WHOLE = (*range(2, 33), 40, 48, 64, 96, 128, 256)
"""Orders of Rényi divergences for bounds that hold for whole orders; they cost their square."""


def gaussian(
    noise_multiplier: float,
    participation: Participation,
    unit: Unit = "client",
    *,
    protects_from: str = ANYBODY,
    mechanism: str = "",
    accountant: Accountant = "pld",
) -> Guarantee:
    """Return the guarantee of Gaussian noise on the sum of clipped updates of a round.

    Args:
        noise_multiplier: standard deviation of the noise divided by the clipping norm; ``combined`` gives that of two
            noisy values of the same cohort
        participation: who takes part
        unit: whose data is protected
        protects_from: who learns no more than epsilon
        mechanism: the mechanism in words; by default Gaussian noise with its multiplier
        accountant: pld, or rdp for Rényi divergences in place of privacy loss distributions
    """
    check_noise(noise_multiplier)
    words = mechanism or f"Gaussian noise, {noise_multiplier:g} times the clipping norm"
    sampling, clients, cohort = participation.sampling, participation.clients, participation.cohort
    rate = min(1.0, cohort / clients)
    if sampling == "poisson" and rate < 1:
        about = f"Poisson sampling with rate {rate:.6g}, by {accountant.upper()}"
        return SampledGaussian(unit, "add-remove", words, about, protects_from, noise_multiplier, rate, 1, accountant)
    if sampling == "fixed" and rate < 1:
        drawn = f"{cohort:,.6g} of {clients:,} clients without replacement"
        about = f"{drawn}, by RDP; a replaced client counts twice the clipping norm"
        return FixedGaussian(unit, "replace-one", words, about, protects_from, noise_multiplier / 2, rate)
    relation, about = unsampled(participation)
    return PlainGaussian(unit, relation, words, about, protects_from, noise_multiplier, participation.separation)


def dp_sgd(
    noise_multiplier: float,
    batch: int,
    participation: Participation,
    *,
    steps: int,
    protects_from: str = "everybody who sees the client's updates, the server too",
    accountant: Accountant = "pld",
) -> Guarantee:
    """Return the guarantee for one sample of a client that trains by DP-SGD (https://arxiv.org/abs/1607.00133).

    In each step, every sample is in the batch with the same probability, independently. The client counts as if it
    took part in all rounds that its sampler allows: others know when it took part, so the sampling of clients does not
    amplify.

    Args:
        noise_multiplier: standard deviation of the noise divided by the clipping norm of a sample's gradient
        batch: the expected size of a batch
        participation: who takes part, with the number of samples of the client
        steps: steps of the client per round
        protects_from: who learns no more than epsilon
        accountant: pld or rdp
    """
    check_noise(noise_multiplier)
    samples = participation.samples
    require(
        (batch >= 1, wrong_argument("batch", batch, "must be at least 1")),
        (steps >= 1, wrong_argument("steps", steps, "must be at least 1")),
        (samples >= 1, "privacy of examples needs the number of samples of a client, which is not known here"),
    )
    rate = min(1.0, batch / samples)
    each = participation.separation
    words = f"DP-SGD, Gaussian noise {noise_multiplier:g} times the clipping norm of a sample's gradient"
    visits = "all rounds" if each == 1 else f"every {each}th round"
    about = f"Poisson batches of {min(batch, samples)} of {samples} samples, {steps} steps per round in {visits}"
    if rate < 1:
        given = (f"{about}, by {accountant.upper()}", protects_from, noise_multiplier, rate, steps, accountant, each)
        return SampledGaussian("example", "add-remove", words, *given)
    return PlainGaussian("example", "add-remove", words, about, protects_from, noise_multiplier / steps**0.5, each)


def combined(*noise_multipliers: float) -> float:
    """Return the noise multiplier of one mechanism that is worth several on the same cohort.

    Adaptive clipping adds a noisy count to the noisy sum (Andrew et al., 2021, https://arxiv.org/abs/1905.03871). Each
    multiplier is relative to the sensitivity of its own value.

    >>> round(combined(1.0, 1.0), 4)
    0.7071
    """
    for noise in noise_multipliers:
        check_noise(noise)
    return 1 / math.sqrt(math.fsum(noise**-2 for noise in noise_multipliers))


def unsampled(participation: Participation) -> tuple[Relation, str]:
    """Return the neighbours of a run without amplification by sampling, and what is assumed, in words."""
    if participation.separation > 1:
        return "zero-out", f"no amplification: a client takes part at most once in {participation.separation} rounds"
    if participation.sampling == "other":
        return "zero-out", "no amplification: as if every client took part in every round"
    if participation.cohort >= participation.clients:
        return "zero-out", "all clients take part in every round"
    return "zero-out", "no amplification by sampling is known for this mechanism"


def check_noise(noise_multiplier: float) -> None:
    """Refuse a noise multiplier without a guarantee."""
    wrong = wrong_argument("noise_multiplier", noise_multiplier, "must be a positive number")
    require((0 < noise_multiplier < math.inf, wrong))


@dataclass(frozen=True)
class PlainGaussian(Guarantee):
    """Gaussian mechanisms without sampling, composed exactly.

    Args:
        noise: the noise multiplier of a round
        every: a client takes part in at most one of this number of rounds
    """

    noise: float
    every: int = 1

    def epsilon(self, rounds: int, delta: float, again: int = 0) -> float:
        """Return the epsilon of one Gaussian mechanism whose noise is divided by the square root of the rounds."""
        visits = math.ceil(rounds / self.every) + again
        return exact_epsilon(self.noise / math.sqrt(visits), delta) if visits else 0.0


@dataclass(frozen=True)
class SampledGaussian(Guarantee):
    """Gaussian mechanisms on Poisson samples.

    Args:
        noise: the noise multiplier
        rate: the probability of a unit to be in the sample
        steps: samples per round
        accountant: pld or rdp
        every: a client takes part in at most one of this number of rounds
    """

    noise: float
    rate: float
    steps: int = 1
    accountant: Accountant = "pld"
    every: int = 1

    def epsilon(self, rounds: int, delta: float, again: int = 0) -> float:
        """Return the epsilon of the composed samples."""
        count = self.count(rounds, again)
        if not count:
            return 0.0
        if self.accountant == "pld":
            return _pld_epsilon(self.noise, self.rate, count, delta)
        return renyi_epsilon(orders(), [count * value for value in poisson_curve(self.noise, self.rate)], delta)

    def count(self, rounds: int, again: int = 0) -> int:
        """Return the number of samples that a client may be in."""
        return (math.ceil(rounds / self.every) + again) * self.steps


@dataclass(frozen=True)
class FixedGaussian(Guarantee):
    """Gaussian mechanisms on samples of a fixed size without replacement.

    Args:
        noise: the noise divided by the sensitivity of a replaced client
        rate: the size of the sample divided by the number of clients
    """

    noise: float
    rate: float

    def epsilon(self, rounds: int, delta: float, again: int = 0) -> float:
        """Return the epsilon by Rényi divergences, or without amplification if that is smaller."""
        rounds += again
        if not rounds:
            return 0.0
        plain = exact_epsilon(self.noise / math.sqrt(rounds), delta)
        curve = fixed_curve(self.noise, self.rate)
        return min(plain, renyi_epsilon(WHOLE, [rounds * value for value in curve], delta))


def exact_epsilon(noise: float, delta: float) -> float:
    """Return the exact epsilon of one Gaussian mechanism, given its noise divided by its sensitivity."""
    check_delta(delta)
    return float(_module("gaussian_mechanism").get_epsilon_gaussian(noise, delta))


def check_delta(delta: float) -> None:
    """Refuse a delta that is no small probability."""
    require((0 < delta < 1, wrong_argument("delta", delta, "must be above 0 and below 1")))


@lru_cache(maxsize=4096)
def _pld_epsilon(noise: float, rate: float, count: int, delta: float) -> float:
    """Return the epsilon of several sampled Gaussian mechanisms."""
    check_delta(delta)
    return float(losses(noise, rate, interval(noise, rate)).self_compose(count).get_epsilon_for_delta(delta))


def interval(noise: float, rate: float) -> float:
    """Return the width of the discretization of the privacy loss of one sampled Gaussian mechanism.

    It follows the standard deviation of the loss, about q sqrt(exp(1 / z^2) - 1), and the largest loss, at 10 standard
    deviations of the noise. A wider interval rounds epsilon up more.
    """
    spread = rate * math.sqrt(math.expm1(min(noise**-2, 50.0)))
    largest = max(0.0, math.log(rate) + (20 * noise + 1) / (2 * noise**2))
    return max(1e-5, min(1e-3, spread / FINE), largest / MOST)


@lru_cache(maxsize=64)
def losses(noise: float, rate: float, width: float) -> Any:
    """Return the privacy loss distribution of one sampled Gaussian mechanism, in intervals of this width."""
    make = _module("pld.privacy_loss_distribution").from_gaussian_mechanism
    return make(noise, sampling_prob=rate, value_discretization_interval=width)


@lru_cache(maxsize=64)
def poisson_curve(noise: float, rate: float) -> tuple[float, ...]:
    """Return the Rényi divergences of one Poisson-sampled Gaussian mechanism, by order."""
    dp = _module()
    return _curve(dp.PoissonSampledDpEvent(rate, dp.GaussianDpEvent(noise)), "ADD_OR_REMOVE_ONE", orders())


@lru_cache(maxsize=64)
def fixed_curve(noise: float, rate: float) -> tuple[float, ...]:
    """Return the Rényi divergences of one Gaussian mechanism on a sample without replacement, by order."""
    dp = _module()
    return _curve(dp.SampledWithoutReplacementDpEvent(1, rate, dp.GaussianDpEvent(noise)), "REPLACE_ONE", WHOLE)


def _curve(event: Any, relation: str, at: tuple[float, ...]) -> tuple[float, ...]:
    accountant = _module("rdp").RdpAccountant(list(at), getattr(_module().NeighboringRelation, relation))
    logger = logging.getLogger("absl")

    def is_error(record: logging.LogRecord) -> bool:
        return record.levelno >= logging.ERROR

    logger.addFilter(is_error)  # it warns of orders that are left out, and other orders remain
    try:
        return tuple(map(float, accountant.compose(event).rdp))
    finally:
        logger.removeFilter(is_error)


@cache
def orders() -> tuple[float, ...]:
    """Return the orders of Rényi divergences that are tried."""
    return tuple(_module("rdp.rdp_privacy_accountant").DEFAULT_RDP_ORDERS)


def renyi_epsilon(at: tuple[float, ...], values: list[float], delta: float) -> float:
    """Return the epsilon of Rényi divergences, given their orders (Proposition 12 of arXiv:2004.00010)."""
    check_delta(delta)
    return float(_module("rdp").compute_epsilon(at, values, delta)[0])


def _module(name: str = "") -> Any:
    return need(f"dp_accounting.{name}" if name else "dp_accounting")
