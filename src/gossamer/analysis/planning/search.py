"""Search for the powers, pruning ratios and number of measurements with the smallest bound.

For given measurements devices are independent, and the power determines the pruning ratio: see
``gossamer.analysis.planning.loads``. So one number per device is left, its power. As a function of power the bound
first decreases, while the deadline or nothing requires pruning. Then energy requires pruning, which increases with
power while the outage decreases. The outage decreases slowly, then fast, then slowly again. So there can be two minima:
one where energy begins to bind, and one at a higher power. The search uses a logarithmic grid of powers, and a golden
section search next to the best grid point. If neither finds a feasible power, it tries the lowest that meets the
deadline.

More measurements are more accurate, but take longer to send. Their number is searched on a logarithmic grid within its
limits, then on finer grids around the best number.

If no plan is feasible, ``shortfalls`` lists the clients that exceed their budgets with the fewest measurements and the
most pruning, and ``describe`` names sufficient budgets.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from gossamer.analysis.planning.loads import Floats, Load, Loads
from gossamer.analysis.planning.target import Target
from gossamer.analysis.planning.work import MessageSize
from gossamer.runs.report.text import ranges

POWERS = 97
"""Number of grid points for powers."""

COUNTS, FINER, TIMES = 65, 13, 3
"""Grid points for measurements, grid points of finer grids, and the number of finer grids."""

STEPS = 26
"""Steps of the golden section search; each keeps 0.62 of the interval."""

GOLDEN = (math.sqrt(5) - 1) / 2

BROKEN = 1e200
"""Cost of exceeding a budget; it grows with the excess."""

FIGURES = 4
"""Significant digits of a sufficient budget in a message."""

LISTED = 20
"""Maximum number of ranges of client numbers in a message."""


class Prices(NamedTuple):
    """For some numbers of measurements: the bits of a message, and the weights of the bound's terms."""

    bits: Floats
    pruning: Floats
    outage: Floats
    measuring: Floats

    def companion(self, powers: Floats) -> "Prices":
        """Reshape so that the numbers of measurements are the first dimension of powers."""
        one, two, three, four = (price.reshape(-1, *(1,) * (powers.ndim - 1)) for price in self)
        return Prices(one, two, three, four)


class SearchResult(NamedTuple):
    """Powers, rates, outages and costs of all loads, with one row per number of measurements."""

    powers: Floats
    rates: Floats
    outages: Floats
    costs: Floats

    @property
    def kept(self) -> bool:
        """Whether all budgets are kept."""
        return bool((self.costs < BROKEN).all())

    def or_better(self, other: "SearchResult") -> "SearchResult":
        """Return the cheaper result, elementwise."""
        better = other.costs < self.costs
        powers, rates, outages, costs = (np.where(better, new, old) for new, old in zip(other, self, strict=True))
        return SearchResult(powers, rates, outages, costs)


@dataclass(frozen=True, eq=False)
class Search:
    """The search for some loads.

    Args:
        loads: the distinct devices
        counts: number of devices per load
        target: the bound
        message: length of messages
    """

    loads: Loads
    counts: tuple[int, ...]
    target: Target
    message: MessageSize

    def measurements(self, least: int, most: int) -> int:
        """Return the best number of measurements between two limits."""
        tried = _spread(least, most, COUNTS)
        prices = self._prices(tried)
        bounds = self._bounds(prices, self._rough(prices))
        for _ in range(TIMES):
            best = int(bounds.argmin())
            low, high = (tried[min(max(best + by, 0), len(tried) - 1)] for by in (-1, 1))
            tried = sorted({tried[best], *(min(self.message.filled(n), most) for n in _spread(low, high, FINER))})
            bounds = self._bounds(self._prices(tried), self.best(tried))
        return tried[int(bounds.argmin())]

    def best(self, tried: Sequence[int]) -> SearchResult:
        """Return the best powers for some numbers of measurements."""
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
        """Powers of the grid, with their rates and outages."""
        powers = self.loads.most * (self.loads.least / self.loads.most) ** np.linspace(1, 0, POWERS)[:, None]
        return powers, self.loads.rates(powers), self.loads.outages(powers)

    def _rough(self, prices: Prices) -> SearchResult:
        """Return the best powers of the grid."""
        powers, rates, outages = self._grid
        costs = self._costs(prices, powers[None], rates[None], outages[None])
        best, columns = costs.argmin(1), np.arange(costs.shape[2])
        least = np.take_along_axis(costs, best[:, None], 1)[:, 0]
        return SearchResult(powers[best, columns], rates[best, columns], outages[best, columns], least)

    def _at(self, prices: Prices, powers: Floats) -> SearchResult:
        rates, outages = self.loads.rates(powers), self.loads.outages(powers)
        return SearchResult(powers, rates, outages, self._costs(prices, powers, rates, outages))

    def _costs(self, prices: Prices, powers: Floats, rates: Floats, outages: Floats) -> Floats:
        """Return the cost of each load: its terms of the bound."""
        bits, pruning, outage, _ = prices.companion(powers)
        sending = bits / rates
        over, ratios = self.loads.excess(powers, sending), np.minimum(self.loads.ratios(powers, sending), 1.0)
        return np.where(over > 0, BROKEN * (1 + over), pruning * ratios + outage * outages)

    def _bounds(self, prices: Prices, found: SearchResult) -> Floats:
        """Return the bound for each number of measurements; if a budget is exceeded, the largest cost."""
        worst = found.costs.max(1)
        total = (np.minimum(found.costs, BROKEN) * np.array(self.counts)).sum(1) + prices.measuring
        return np.asarray(np.where(worst >= BROKEN, worst, total))


def _spread(low: int, high: int, count: int) -> list[int]:
    """Return integers between two limits, evenly spaced in the logarithm."""
    return sorted({int(number) for number in np.geomspace(low, high, count).round()})


def golden(value: Callable[[Floats], Floats], low: Floats, high: Floats) -> Floats:
    """Return the minima of functions with a single minimum between two ends, elementwise."""
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


class Shortfall(NamedTuple):
    """The minimum costs of a client that exceeds its budgets.

    Args:
        client: its number
        load: its device and its budgets
        seconds: time at full power
        joules: energy at the lowest power, ignoring the deadline
        in_time: energy at the lowest power that meets the deadline; none if none does
        allowed: time at the highest power that the energy allows; none if it allows none
    """

    client: int
    load: Load
    seconds: float
    joules: float
    in_time: float | None
    allowed: float | None

    @property
    def misses(self) -> dict[str, float]:
        """Excess over each budget that cannot be kept, by a description of the budget."""
        load, energy = self.load, f"the energy of {self.load.energy:g} J"
        if self.in_time is not None and self.allowed is not None:
            return {f"{energy} within {load.deadline:g} s": self.in_time - load.energy}
        full, least = ("its fixed power",) * 2 if load.fixed else ("full power", "the least power")
        late = {f"the deadline of {load.deadline:g} s at {full}": self.seconds - load.deadline}
        costly = {f"{energy} at {least}": self.joules - load.energy}
        return (late if self.in_time is None else {}) | (costly if self.allowed is None else {})


def shortfalls(loads: Loads, bits: int) -> list[Shortfall]:
    """Return the loads that exceed their budgets with messages of ``bits``; loads are clients 0, 1, ..."""
    powers = (loads.most, loads.least, loads.slowest(bits), loads.dearest(bits))
    over = [loads.over(at, bits / loads.rates(at)) for at in powers]
    rows = zip(loads.each, over[0][0], over[1][1], over[2][1], over[3][0], strict=True)
    found = []
    for client, (load, *amounts) in enumerate(rows):
        late, costly, in_time, allowed = map(float, amounts)
        if max(late, costly, in_time) > 0:
            within, after = (
                load.energy + in_time if late <= 0 else None,
                load.deadline + allowed if costly <= 0 else None,
            )
            found.append(Shortfall(client, load, load.deadline + late, load.energy + costly, within, after))
    return found


def describe(short: Sequence[Shortfall], loads: Loads, bits: int) -> list[str]:
    """Return sufficient budgets, and one line per type of device and type of excess."""
    groups: dict[tuple[str, ...], list[Shortfall]] = {}
    for less in short:
        groups.setdefault((less.load.name, *less.misses), []).append(less)
    lines = [_enough(short, loads, bits)]
    for (name, *_), group in groups.items():
        clients, missed = [less.client for less in group], []
        for what in group[0].misses:  # the largest and the smallest excess, with their clients
            unit = "s" if "deadline" in what else "J"
            by = sorted((less.misses[what], less.client) for less in group)
            (best, nearest), (worst, farthest) = by[0], by[-1]
            amounts = f"{worst:.3g} {unit}"
            if f"{best:.3g}" != f"{worst:.3g}":
                amounts += f" (client {farthest}) to {best:.3g} {unit} (client {nearest})"
            missed.append(f"{what} by {amounts}")
        who = f"clients {ranges(clients, LISTED)}; {len(clients)} of them"
        who = f"client {clients[0]}" if len(clients) == 1 else who
        lines.append(f"{name} ({who}) misses {', and '.join(missed)}")
    return lines


def _enough(short: Sequence[Shortfall], loads: Loads, bits: int) -> str:
    """Describe a single budget that suffices for all, or both."""
    energy, deadline = _most(less.in_time for less in short), _most(less.allowed for less in short)
    single = [] if energy is None else [f"an energy of {energy:g} J"]
    single += [] if deadline is None else [f"a deadline of {deadline:g} s"]
    if single:
        return f"{' or '.join(single)} would suffice for all, with the other budget unchanged"
    later = _most(less.seconds for less in short)
    assert later is not None  # the time at full power is always known
    patient = replace(loads, each=tuple(replace(load, deadline=max(later, load.deadline)) for load in loads.each))
    more_energy = _most(less.in_time for less in shortfalls(patient, bits))
    return (
        f"neither budget alone suffices for all: they need a deadline of {later:g} s and an energy of {more_energy:g} J"
    )


def _most(amounts: Iterable[float | None]) -> float | None:
    """Return the maximum, rounded up to a few digits; none if one amount is unknown."""
    known = list(amounts)
    if None in known:
        return None
    largest = max(amount for amount in known if amount is not None)
    unit = 10.0 ** (math.floor(math.log10(largest)) - FIGURES + 1)
    return float(f"{math.ceil(largest / unit * (1 + 1e-9)) * unit:.{FIGURES}g}")
