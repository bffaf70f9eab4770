"""The search for powers, shares that are pruned, and measurements that make the bound least.

For given measurements devices do not depend on each other, and for a given power the share that is pruned is known:
see ``gossamer.analysis.planning.loads``. What is left is one number a device, its power. As a function of it the
bound first falls, while it is the deadline that makes the device prune, or nothing does: more power only helps. Then it
is the energy, and pruning rises with power while the outage falls. The outage falls slowly at first, where next to
nothing is heard, then fast, then slowly again, so that there can be two valleys: one where energy begins to bind, one
further on. Hence a grid, even in the logarithm of the power, and a golden section between the neighbours of the best
point. Where neither finds a power that keeps to both budgets, the lowest that meets the deadline does, or none.

More measurements tell more, and take longer to send. Their number is searched between the smallest and the largest that
are allowed, on a grid that is even in its logarithm, then on finer ones around the best number so far.

Who cannot have a plan, by how much, and which budgets would do; at the fewest measurements and most pruning.
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

FIGURES = 4
"""Of a budget that would do."""

LISTED = 20
"""So many ranges of client numbers are written at most."""


class Shortfall(NamedTuple):
    """What a client takes at least.

    Args:
        client: its number
        load: its device, and what it may take
        seconds: at full power
        joules: at the lowest power, however long that takes
        in_time: joules at the lowest power that meets the deadline; none, if none does
        allowed: seconds at the highest power that the energy allows; none, if it allows none
    """

    client: int
    load: Load
    seconds: float
    joules: float
    in_time: float | None
    allowed: float | None

    @property
    def misses(self) -> dict[str, float]:
        """By how much, for each budget that it cannot keep to, in words."""
        load, energy = self.load, f"the energy of {self.load.energy:g} J"
        if self.in_time is not None and self.allowed is not None:
            return {f"{energy} within {load.deadline:g} s": self.in_time - load.energy}
        full, least = ("its fixed power",) * 2 if load.fixed else ("full power", "the least power")
        late = {f"the deadline of {load.deadline:g} s at {full}": self.seconds - load.deadline}
        dear = {f"{energy} at {least}": self.joules - load.energy}
        return (late if self.in_time is None else {}) | (dear if self.allowed is None else {})


def shortfalls(loads: Loads, bits: int) -> list[Shortfall]:
    """The loads that cannot keep to their budgets with messages of so many bits; those are clients 0, 1, ..."""
    powers = (loads.most, loads.least, loads.slowest(bits), loads.dearest(bits))
    over = [loads.over(at, bits / loads.rates(at)) for at in powers]
    rows = zip(loads.each, over[0][0], over[1][1], over[2][1], over[3][0], strict=True)
    found = []
    for client, (load, *amounts) in enumerate(rows):
        late, dear, in_time, allowed = map(float, amounts)
        if max(late, dear, in_time) > 0:
            within, after = load.energy + in_time if late <= 0 else None, load.deadline + allowed if dear <= 0 else None
            found.append(Shortfall(client, load, load.deadline + late, load.energy + dear, within, after))
    return found


def told(short: Sequence[Shortfall], loads: Loads, bits: int) -> list[str]:
    """What to say of them: which budgets would do for all, and a line for each kind of device and way to fail."""
    groups: dict[tuple[str, ...], list[Shortfall]] = {}
    for less in short:
        groups.setdefault((less.load.name, *less.misses), []).append(less)
    return [_enough(short, loads, bits), *(_line(name, group) for (name, *_), group in groups.items())]


def _line(name: str, group: Sequence[Shortfall]) -> str:
    clients = [less.client for less in group]
    who = f"client {clients[0]}" if len(clients) == 1 else f"clients {ranges(clients, LISTED)}; {len(clients)} of them"
    missed = [f"{what} by {_amounts(what, group)}" for what in group[0].misses]
    return f"{name} ({who}) misses {', and '.join(missed)}"


def _amounts(what: str, group: Sequence[Shortfall]) -> str:
    """The largest and the smallest that is missing, and whose that is."""
    unit = "s" if "deadline" in what else "J"
    by = sorted((less.misses[what], less.client) for less in group)
    (best, nearest), (worst, farthest) = by[0], by[-1]
    if f"{best:.3g}" == f"{worst:.3g}":
        return f"{worst:.3g} {unit}"
    return f"{worst:.3g} {unit} (client {farthest}) to {best:.3g} {unit} (client {nearest})"


def _enough(short: Sequence[Shortfall], loads: Loads, bits: int) -> str:
    """The one budget that would do for all, or both."""
    energy, deadline = _most(less.in_time for less in short), _most(less.allowed for less in short)
    single = [] if energy is None else [f"an energy of {energy:g} J"]
    single += [] if deadline is None else [f"a deadline of {deadline:g} s"]
    if single:
        return f"{' or '.join(single)} would do for all, the other budget as it is"
    later = _most(less.seconds for less in short)
    assert later is not None  # what it takes at full power is always known
    patient = replace(loads, each=tuple(replace(load, deadline=max(later, load.deadline)) for load in loads.each))
    dearer = _most(less.in_time for less in shortfalls(patient, bits))
    return f"neither budget alone would do for all: it takes a deadline of {later:g} s and an energy of {dearer:g} J"


def _most(amounts: Iterable[float | None]) -> float | None:
    """The largest, with a few figures, rounded up; none, if one of them is not known."""
    known = list(amounts)
    if None in known:
        return None
    largest = max(amount for amount in known if amount is not None)
    unit = 10.0 ** (math.floor(math.log10(largest)) - FIGURES + 1)
    return float(f"{math.ceil(largest / unit * (1 + 1e-9)) * unit:.{FIGURES}g}")


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

    def companion(self, powers: Floats) -> "Prices":
        """Shaped so that numbers of measurements are the first dimension of powers."""
        one, two, three, four = (price.reshape(-1, *(1,) * (powers.ndim - 1)) for price in self)
        return Prices(one, two, three, four)


class SearchResult(NamedTuple):
    """Powers of all loads, rates, outages, and what each adds to the bound; a row for each number of measurements."""

    powers: Floats
    rates: Floats
    outages: Floats
    costs: Floats

    @property
    def kept(self) -> bool:
        """Whether all budgets are."""
        return bool((self.costs < BROKEN).all())

    def or_better(self, other: "SearchResult") -> "SearchResult":
        """Whatever costs less."""
        better = other.costs < self.costs
        powers, rates, outages, costs = (np.where(better, new, old) for new, old in zip(other, self, strict=True))
        return SearchResult(powers, rates, outages, costs)


@dataclass(frozen=True, eq=False)
class Search:
    """The best for some loads.

    Args:
        loads: the devices, equal ones once
        counts: how many devices each load stands for
        target: the bound
        message: how long messages are
    """

    loads: Loads
    counts: tuple[int, ...]
    target: Target
    message: MessageSize

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

    def best(self, tried: Sequence[int]) -> SearchResult:
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

    def _rough(self, prices: Prices) -> SearchResult:
        """The best powers of the grid."""
        powers, rates, outages = self._grid
        costs = self._costs(prices, powers[None], rates[None], outages[None])
        best, columns = costs.argmin(1), np.arange(costs.shape[2])
        least = np.take_along_axis(costs, best[:, None], 1)[:, 0]
        return SearchResult(powers[best, columns], rates[best, columns], outages[best, columns], least)

    def _at(self, prices: Prices, powers: Floats) -> SearchResult:
        rates, outages = self.loads.rates(powers), self.loads.outages(powers)
        return SearchResult(powers, rates, outages, self._costs(prices, powers, rates, outages))

    def _costs(self, prices: Prices, powers: Floats, rates: Floats, outages: Floats) -> Floats:
        """What each load adds to the bound."""
        bits, pruning, outage, _ = prices.companion(powers)
        sending = bits / rates
        over, ratios = self.loads.excess(powers, sending), np.minimum(self.loads.ratios(powers, sending), 1.0)
        return np.where(over > 0, BROKEN * (1 + over), pruning * ratios + outage * outages)

    def _bounds(self, prices: Prices, found: SearchResult) -> Floats:
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
