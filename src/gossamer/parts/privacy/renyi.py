"""The epsilon of mechanisms that are known by their Rényi divergences, such as Skellam noise.

A mechanism with the Rényi divergence eps(a) of order a has a times larger one over a rounds of it: divergences of
rounds are added. Sampling of clients reduces them, by bounds that hold for every mechanism and for whole orders a:

    poisson   Zhu and Wang, 2019, Theorem 5 (http://proceedings.mlr.press/v97/zhu19c.html), with rate q:
              (a - 1) eps'(a) <= log( (1-q)^(a-1) (a q - q + 1) + C(a, 2) q^2 (1-q)^(a-2) exp(eps(2))
                                      + 3 sum_{j=3..a} C(a, j) (1-q)^(a-j) q^j exp((j-1) eps(j)) )
    fixed     Wang, Balle and Kasiviswanathan, 2019, Theorem 9 (https://arxiv.org/abs/1808.00087), with q = cohort /
              clients, and with divergences between neighbours of which one client is replaced:
              (a - 1) eps'(a) <= log( 1 + C(a, 2) q^2 min(4 (exp(eps(2)) - 1), 2 exp(eps(2)))
                                      + sum_{j=3..a} C(a, j) q^j 2 exp((j-1) eps(j)) )

Where a bound is above the divergence without sampling, the latter counts. Divergences become an epsilon by
https://arxiv.org/abs/2004.00010, Proposition 12.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from gossamer.core.errors import ConfigError
from gossamer.core.privacy import Guarantee, Participation, Relation, Unit
from gossamer.parts.privacy.accounting import WHOLE, orders, renyi_epsilon, unsampled

Curve = Callable[[float], float]
"""The Rényi divergence of one round, given its order, a number above 1; infinity where it is not known."""


@dataclass(frozen=True)
class Renyi(Guarantee):
    """A mechanism that is known by its Rényi divergences.

    Args:
        orders: the orders
        values: the divergence of one round, by order
        every: a client takes part in at most one of this number of rounds
    """

    orders: tuple[float, ...]
    values: tuple[float, ...]
    every: int = 1

    def epsilon(self, rounds: int, delta: float, again: int = 0) -> float:
        """Return the epsilon of the sums of divergences."""
        visits = math.ceil(rounds / self.every) + again
        return renyi_epsilon(self.orders, [visits * value for value in self.values], delta) if visits else 0.0


def from_renyi(
    curve: Curve,
    participation: Participation,
    mechanism: str,
    protects_from: str,
    *,
    unit: Unit = "client",
    replaced: Curve | None = None,
    amplified: bool = True,
) -> Guarantee:
    """Return the guarantee of a mechanism with these Rényi divergences.

    Args:
        curve: the divergence of one round between cohorts with and without one client, or with its contribution zero
        participation: who takes part
        mechanism: the mechanism in words, with its noise
        protects_from: who learns no more than epsilon
        unit: whose data is protected
        replaced: the divergence if a client is replaced by another; without it, sampling of a fixed number does not
            amplify
        amplified: whether sampling hides who takes part; not from a server that receives each message
    """
    rate = participation.cohort / participation.clients
    if amplified and participation.sampling == "poisson" and rate < 1:
        about = f"Poisson sampling with rate {rate:.6g}, by Zhu and Wang, Theorem 5"
        values = tuple(min(curve(order), _poisson(curve, rate, order)) for order in WHOLE)
        return Renyi(unit, "add-remove", mechanism, about, protects_from, WHOLE, values)
    if amplified and participation.sampling == "fixed" and rate < 1 and replaced is not None:
        about = f"{participation.cohort:,.6g} of {participation.clients:,} clients without replacement, by Wang et al."
        values = tuple(min(replaced(order), _fixed(replaced, rate, order)) for order in WHOLE)
        return Renyi(unit, "replace-one", mechanism, about, protects_from, WHOLE, values)
    relation, about = unsampled(participation) if amplified else local_neighbours(participation)
    found, every = tuple(map(curve, orders())), participation.separation
    return Renyi(unit, relation, mechanism, about, protects_from, orders(), found, every)


def local_neighbours(participation: Participation) -> tuple[Relation, str]:
    """Return the neighbours of a mechanism whose messages are seen one by one, and what is assumed, in words."""
    every = participation.separation
    when = "takes part in every round" if every == 1 else f"takes part once in {every} rounds"
    return "zero-out", f"no amplification: who takes part is known, and the worst client {when}"


def compose(*guarantees: Renyi) -> Renyi:
    """Return the guarantee of several mechanisms in each round, about the same neighbours."""
    first, *others = guarantees
    for other in others:
        about, mine = ((each.unit, each.relation, each.orders, each.every) for each in (other, first))
        if about != mine:
            raise ConfigError(f"{first.mechanism} and {other.mechanism} are about different neighbours")
    values = tuple(map(math.fsum, zip(*(each.values for each in guarantees), strict=True)))
    words = " and ".join(each.mechanism for each in guarantees)
    return replace(first, mechanism=words, values=values)


def _poisson(curve: Curve, rate: float, order: int) -> float:
    """Return the bound of Zhu and Wang for a whole order."""
    stay, join = math.log1p(-rate), math.log(rate)
    terms = [(order - 1) * stay + math.log((order - 1) * rate + 1)]
    terms += [
        (0 if j == 2 else math.log(3)) + _choose(order, j) + (order - j) * stay + j * join + (j - 1) * curve(j)
        for j in range(2, order + 1)
    ]
    return _log_sum(terms) / (order - 1)


def _fixed(curve: Curve, rate: float, order: int) -> float:
    """Return the bound of Wang, Balle and Kasiviswanathan for a whole order."""
    two, join = curve(2), math.log(rate)
    pairs = min(math.log(4) + _log_expm1(two), math.log(2) + two)
    terms = [0.0, _choose(order, 2) + 2 * join + pairs]
    terms += [_choose(order, j) + j * join + math.log(2) + (j - 1) * curve(j) for j in range(3, order + 1)]
    return _log_sum(terms) / (order - 1)


def _choose(n: int, k: int) -> float:
    """Return the logarithm of a binomial coefficient."""
    return math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)


def _log_expm1(x: float) -> float:
    """Return log(exp(x) - 1)."""
    return x + math.log(-math.expm1(-x)) if x > 0 else -math.inf


def _log_sum(terms: Sequence[float] | Iterable[float]) -> float:
    """Return the logarithm of a sum, given the logarithms of its terms."""
    logs = list(terms)
    top = max(logs)
    return top + math.log(math.fsum(math.exp(log - top) for log in logs)) if top < math.inf else math.inf
