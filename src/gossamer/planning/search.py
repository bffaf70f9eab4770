"""The search for powers, shares that are pruned, and measurements that make the bound least.

For given measurements devices do not depend on each other, and for a given power the share that is pruned is known:
see :mod:`gossamer.planning.loads`. What is left is one number a device, its power. As a function of it the bound first
falls, while it is the deadline that makes the device prune, or nothing does: more power only helps. Then it is the
energy, and pruning rises with power while the outage falls. The outage falls slowly at first, where next to nothing is
heard, then fast, then slowly again, so that there can be two valleys: one where energy begins to bind, one further on.
Hence a grid, even in the logarithm of the power, and a golden section between the neighbours of the best point. Where
neither finds a power that keeps to both budgets, the lowest that meets the deadline does, or none.

More measurements tell more, and take longer to send. Their number is searched between the smallest and the largest that
are allowed, on a grid that is even in its logarithm, then on finer ones around the best number so far.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from gossamer.planning.loads import Floats, Loads
from gossamer.planning.message import Message
from gossamer.planning.target import Target

POWERS = 97
"""Points of the grid of powers."""

COUNTS, FINER, TIMES = 65, 13, 3
"""Points of the grid of measurements, of finer ones, and how many of these."""

STEPS = 26
"""Of a golden section: each leaves 0.62 of what was there."""

GOLDEN = (math.sqrt(5) - 1) / 2

BROKEN = 1e200
"""What breaks a budget counts as so much, and more the farther it is beyond."""


class Prices(NamedTuple):
    """For some numbers of measurements: the bits of a message, and what things cost in the bound."""

    bits: Floats
    pruning: Floats
    outage: Floats
    measuring: Floats

    def beside(self, powers: Floats) -> "Prices":
        """Shaped so that numbers of measurements are the first dimension of powers."""
        one, two, three, four = (price.reshape(-1, *(1,) * (powers.ndim - 1)) for price in self)
        return Prices(one, two, three, four)


class Found(NamedTuple):
    """Powers of all loads, rates, outages, and what each adds to the bound; a row for each number of measurements."""

    powers: Floats
    rates: Floats
    outages: Floats
    costs: Floats

    @property
    def kept(self) -> bool:
        """Whether all budgets are."""
        return bool((self.costs < BROKEN).all())

    def or_better(self, other: "Found") -> "Found":
        """Whatever costs less."""
        better = other.costs < self.costs
        powers, rates, outages, costs = (np.where(better, new, old) for new, old in zip(other, self, strict=True))
        return Found(powers, rates, outages, costs)


@dataclass(frozen=True, eq=False)
class Search:
    """The best for some loads.

    loads: the devices, equal ones once
    counts: how many devices each load stands for
    target: the bound
    message: how long messages are
    """

    loads: Loads
    counts: tuple[int, ...]
    target: Target
    message: Message

    def measurements(self, least: int, most: int) -> int:
        """The best number between two."""
        tried = _spread(least, most, COUNTS)
        prices = self._prices(tried)
        bounds = self._bounds(prices, self._rough(prices))
        for _ in range(TIMES):
            best = int(bounds.argmin())
            low, high = (tried[min(max(best + by, 0), len(tried) - 1)] for by in (-1, 1))
            tried = sorted({tried[best], *(min(self.message.filled(n), most) for n in _spread(low, high, FINER))})
            bounds = self._bounds(self._prices(tried), self.best(tried))
        return tried[int(bounds.argmin())]

    def best(self, tried: Sequence[int]) -> Found:
        """The best powers for some numbers of measurements."""
        prices = self._prices(tried)
        rough, ends = self._rough(prices), (np.log(self.loads.least), np.log(self.loads.most))
        step = (ends[1] - ends[0]) / (POWERS - 1)
        low, high = (np.clip(np.log(rough.powers) + by, *ends) for by in (-step, step))
        finer = self._at(prices, np.exp(golden(lambda logs: self._at(prices, np.exp(logs)).costs, low, high)))
        found = rough.or_better(finer)
        return found if found.kept else found.or_better(self._at(prices, self.loads.slowest(prices.bits[:, None])))

    def _prices(self, tried: Sequence[int]) -> Prices:
        weights = [self.target.at(number) for number in tried]
        pruning, outage, measuring = (np.array(column) for column in zip(*weights, strict=True))
        return Prices(np.array([float(self.message.bits(number)) for number in tried]), pruning, outage, measuring)

    @cached_property
    def _grid(self) -> tuple[Floats, Floats, Floats]:
        """Powers, and rates and outages at them."""
        powers = self.loads.most * (self.loads.least / self.loads.most) ** np.linspace(1, 0, POWERS)[:, None]
        return powers, self.loads.rates(powers), self.loads.outages(powers)

    def _rough(self, prices: Prices) -> Found:
        """The best powers of the grid."""
        powers, rates, outages = self._grid
        costs = self._costs(prices, powers[None], rates[None], outages[None])
        best, columns = costs.argmin(1), np.arange(costs.shape[2])
        least = np.take_along_axis(costs, best[:, None], 1)[:, 0]
        return Found(powers[best, columns], rates[best, columns], outages[best, columns], least)

    def _at(self, prices: Prices, powers: Floats) -> Found:
        rates, outages = self.loads.rates(powers), self.loads.outages(powers)
        return Found(powers, rates, outages, self._costs(prices, powers, rates, outages))

    def _costs(self, prices: Prices, powers: Floats, rates: Floats, outages: Floats) -> Floats:
        """What each load adds to the bound."""
        bits, pruning, outage, _ = prices.beside(powers)
        sending = bits / rates
        over, ratios = self.loads.excess(powers, sending), np.minimum(self.loads.ratios(powers, sending), 1.0)
        return np.where(over > 0, BROKEN * (1 + over), pruning * ratios + outage * outages)

    def _bounds(self, prices: Prices, found: Found) -> Floats:
        """The bound for each number of measurements; where a budget is broken, the worst that breaks one."""
        worst = found.costs.max(1)
        total = (np.minimum(found.costs, BROKEN) * np.array(self.counts)).sum(1) + prices.measuring
        return np.asarray(np.where(worst >= BROKEN, worst, total))


def _spread(low: int, high: int, many: int) -> list[int]:
    """Whole numbers between two, even in their logarithms."""
    return sorted({int(number) for number in np.geomspace(low, high, many).round()})


def golden(value: Callable[[Floats], Floats], low: Floats, high: Floats) -> Floats:
    """Where functions of one valley are least, entry by entry, between two ends."""
    left, right = high - GOLDEN * (high - low), low + GOLDEN * (high - low)
    at_left, at_right = value(left), value(right)
    for _ in range(STEPS):
        down = at_left <= at_right
        low, high = np.where(down, low, left), np.where(down, right, high)
        new = np.where(down, high - GOLDEN * (high - low), low + GOLDEN * (high - low))
        at_new = value(new)
        left, right = np.where(down, new, right), np.where(down, left, new)
        at_left, at_right = np.where(down, at_new, at_right), np.where(down, at_left, at_new)
    return np.where(at_left <= at_right, left, right)
