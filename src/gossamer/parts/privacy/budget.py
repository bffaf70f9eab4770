"""The privacy budget of runs: which parts add noise, the noise that a budget takes, and what several runs spend.

``calibrate`` finds the smallest noise multiplier that meets a budget over all rounds. ``composed`` is the epsilon of
several runs on the same clients. Each run has a guarantee and a number of rounds. The first of these ways that suits
all of them is taken:

    exact   Gaussian mechanisms without sampling are one of them; squared ratios of sensitivity to noise add up
    PLD     those, and Poisson samples: the distributions of the privacy losses are convolved
    RDP     all others that have Rényi divergences: these add up. A divergence that is known at fewer orders counts as
            that of the next higher one, since divergences never fall as the order rises
    basic   runs of which only epsilon and delta are known: both add up. Also in place of RDP, if that gives more

**Neighbours.** If the runs do not have the same relation, the total is about a client whose contribution is zero in
all of them. Each of the three relations covers it with the same epsilon: a removed client adds nothing to a sum whose
denominator does not depend on who is there, and a client may be replaced by one whose update is zero. The cohorts do
not change. The unit must be the same: a guarantee for samples says little about clients.

A client may be of one of several sizes (``Guarantee.cases``), and need not be of the same in all runs: the largest
epsilon of all combinations counts.
"""

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from gossamer.core.bound import BoundExchange
from gossamer.core.codec import Codec
from gossamer.core.errors import ConfigError, require, wrong_argument
from gossamer.core.extras import need
from gossamer.core.method import Exchange
from gossamer.core.privacy import Guarantee, Participation
from gossamer.core.sampler import Sampler
from gossamer.core.server import Server
from gossamer.core.solver import Solver
from gossamer.parts.privacy import accounting
from gossamer.parts.privacy.accounting import FixedGaussian, PlainGaussian, SampledGaussian, check_delta
from gossamer.parts.privacy.renyi import Renyi
from gossamer.parts.privacy.tree import TreeGaussian


def parts_of(exchange: BoundExchange | Exchange) -> list[Server | Codec | Solver]:
    """Return the parts of an exchange that add noise; not those whose noise is set to 0."""
    plain: list[Server | Solver] = [part for part in (exchange.server, exchange.solver) if part.private]
    return [part for part in (*plain, *_inside(exchange.codec)) if getattr(part, "noise_multiplier", None) != 0]


def guaranteed(part: Server | Codec | Solver, taking: Participation) -> Guarantee:
    """Return the guarantee of a part that adds noise."""
    found = part.guarantee(taking)
    if found is None:
        raise ConfigError(f"{type(part).__name__} is private, but its method guarantee returns none")
    return found


def _inside(codec: Codec) -> list[Codec]:
    """Return the codecs that add noise; refuse a codec that sends some tensors without."""
    if codec.private:
        return [codec]
    inner = [_inside(each) for each in codec.wrapped]
    name = type(codec).__name__
    mixed = f"{name} sends some tensors by a codec without noise: apply the private codec to all, without {name}"
    require((not any(inner) or all(inner), mixed))
    return [part for parts in inner for part in parts]


def participation(
    sampler: Sampler,
    clients: int,
    cohort: int,
    rounds: int,
    samples: int = 0,
    *,
    steady: bool = True,
    central: bool = True,
) -> Participation:
    """Return who takes part in a run.

    Args:
        sampler: the sampler
        clients: the number of clients
        cohort: clients per round
        rounds: the planned number of rounds
        samples: the smallest number of samples of a client; 0 if it is not known
        steady: whether all clients are available in every round. If not, a fixed number of clients is drawn from a
            number that varies, and does not amplify
        central: whether the server adds the noise. If clients do, the guarantee holds against the server too, and it
            knows the cohorts of a deployment, whose clients are not ``steady``
    """
    scheme = sampler.scheme
    if not steady and (scheme == "fixed" or not central):
        scheme = "other"
    if scheme != "poisson" and cohort >= clients:
        scheme = "all"
    separation = sampler.separation(clients, cohort) if steady else 1
    return Participation(clients, sampler.expected(clients, cohort), scheme, rounds, samples, separation)


def usual_delta(units: int) -> float:
    """Return the delta of a run that is given none, as McMahan et al., 2018 (https://arxiv.org/abs/1710.06963).

    ``units`` is the number of clients, or of all samples if the unit is an example.

    >>> round(usual_delta(10_000), 8)
    3.981e-05
    """
    return float(max(units, 2) ** -1.1)


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
            raise ConfigError(
                f"epsilon {epsilon:g} with delta {delta:g} cannot be met in {rounds:,} rounds: noise of {noise:g} times"
                f" the clipping norm still gives {reached:.3g}: use fewer rounds, more clients with the same number per"
                " round, or a larger epsilon"
            )
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


EXACT, PLD, RDP, BASIC = "exact Gaussian composition", "PLD", "RDP", "basic composition"

COMBINATIONS = 256
"""The most combinations of sizes of a client that are tried."""


class Spent(NamedTuple):
    """A run with its guarantee.

    Args:
        guarantee: the guarantee
        rounds: the number of rounds whose models were released
        again: the number of rounds that were repeated after their results may have been seen
    """

    guarantee: Guarantee
    rounds: int
    again: int = 0


class Total(NamedTuple):
    """The guarantee of several runs together.

    Args:
        epsilon: epsilon
        delta: the probability with which it may be exceeded
        by: how it was computed
        relation: which data sets are neighbours
    """

    epsilon: float
    delta: float
    by: str
    relation: str


def common_relation(relations: Sequence[str]) -> str:
    """Return the relation of a composition: that of all runs, or else the one that all of them cover."""
    return relations[0] if len({*relations}) == 1 else "zero-out"


def composed(runs: Sequence[Spent], delta: float) -> Total:
    """Return the guarantee of several runs together. Raises ``ConfigError`` if they protect different units."""
    units = sorted({run.guarantee.unit for run in runs})
    if len(units) > 1:
        raise ConfigError(f"the runs protect different units ({' and '.join(units)}): what they spend does not add up")
    relation = common_relation([run.guarantee.relation for run in runs])
    cases = [[run._replace(guarantee=case) for case in run.guarantee.cases()] for run in runs]
    if math.prod(map(len, cases)) > COMBINATIONS:
        return Total(_basic(runs, delta), delta, BASIC, relation)
    found = [_one(combination, delta) for combination in itertools.product(*cases)]
    epsilon, by = max(found)
    return Total(epsilon, delta, by, relation)


def _one(runs: Sequence[Spent], delta: float) -> tuple[float, str]:
    """Return the epsilon of runs with one case each, and how it was computed."""
    gaussian = [_gaussian(run) for run in runs]
    square = math.fsum(each for each in gaussian if each is not None)
    others = [run for run, each in zip(runs, gaussian, strict=True) if each is None]
    if not others:
        return (accounting.exact_epsilon(1 / math.sqrt(square), delta) if square else 0.0), EXACT
    if all(isinstance(run.guarantee, SampledGaussian) for run in others):
        return _by_losses(square, others, delta), PLD
    if all(isinstance(run.guarantee, SampledGaussian | FixedGaussian | Renyi) for run in others):
        return min((_by_divergences(square, others, delta), RDP), (_basic(runs, delta), BASIC))
    return _basic(runs, delta), BASIC


def _gaussian(run: Spent) -> float | None:
    """Return the squared ratio of sensitivity to noise of Gaussian mechanisms without sampling; none for others."""
    match run.guarantee:
        case PlainGaussian(noise=noise, every=every):
            return (math.ceil(run.rounds / every) + run.again) / noise**2
        case TreeGaussian(noise=noise) as tree:
            return tree.square(run.rounds, run.again) / noise**2
    return None


def _by_losses(square: float, others: Sequence[Spent], delta: float) -> float:
    """Return the epsilon of a Gaussian mechanism and Poisson samples, in the coarsest of their discretizations."""
    samples = [(run.guarantee, run) for run in others if isinstance(run.guarantee, SampledGaussian)]
    mechanisms = [(each.noise, each.rate, each.count(run.rounds, run.again)) for each, run in samples]
    if square:
        mechanisms.append((1 / math.sqrt(square), 1.0, 1))
    mechanisms = [each for each in mechanisms if each[2]]
    if not mechanisms:
        return 0.0
    interval = max(accounting.interval(noise, rate) for noise, rate, _ in mechanisms)
    losses: list[Any] = [accounting.losses(noise, rate, interval).self_compose(n) for noise, rate, n in mechanisms]
    whole = losses[0]
    for each in losses[1:]:
        whole = whole.compose(each)
    return float(whole.get_epsilon_for_delta(delta))


def _by_divergences(square: float, others: Sequence[Spent], delta: float) -> float:
    orders = tuple(sorted({*accounting.orders(), *map(float, accounting.WHOLE)}))
    total = [square * order / 2 for order in orders]
    for run in others:
        known, values, times = _divergences(run)
        curve = dict(zip(known, values, strict=True))
        for at, order in enumerate(orders):
            above = [other for other in known if other >= order]
            total[at] += times * curve[min(above)] if above and times else math.inf if times else 0.0
    return accounting.renyi_epsilon(orders, total, delta)


def _divergences(run: Spent) -> tuple[Sequence[float], Sequence[float], int]:
    """Return the orders and the divergences of one mechanism of a run, and the number of mechanisms."""
    match run.guarantee:
        case SampledGaussian(noise=noise, rate=rate) as sampled:
            curve = accounting.poisson_curve(noise, rate)
            return accounting.orders(), curve, sampled.count(run.rounds, run.again)
        case FixedGaussian(noise=noise, rate=rate):
            plain = [order / (2 * noise**2) for order in accounting.WHOLE]
            curve = accounting.fixed_curve(noise, rate)
            return accounting.WHOLE, [*map(min, plain, curve)], run.rounds + run.again
        case Renyi(orders=orders, values=values, every=every):
            return orders, values, math.ceil(run.rounds / every) + run.again
    raise AssertionError(run.guarantee)


def _basic(runs: Sequence[Spent], delta: float) -> float:
    """Return the sum of the epsilons, each for the same part of delta."""
    return math.fsum(run.guarantee.epsilon(run.rounds, delta / len(runs), run.again) for run in runs)
