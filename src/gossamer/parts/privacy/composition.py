"""The epsilon of several runs on the same clients.

Each run has a guarantee and a number of rounds. The first of these ways that suits all of them is taken:

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
from collections.abc import Sequence
from typing import Any, NamedTuple

from gossamer.core.errors import ConfigError
from gossamer.core.privacy import Guarantee
from gossamer.parts.privacy import accounting
from gossamer.parts.privacy.accounting import FixedGaussian, PlainGaussian, SampledGaussian
from gossamer.parts.privacy.renyi import Renyi
from gossamer.parts.privacy.tree import TreeGaussian

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
