"""Costs and budgets of devices in a round, and the pruning that follows.

If pruning saves a fraction s of the operations, computing takes (1 - s) of its seconds and joules. Sending b bits at
rate R with power p takes b / R seconds and p b / R joules. To keep its budgets a device saves at least

    max(0, (E_cmp + p b / R - energy) / E_cmp, (T_cmp + b / R - deadline) / T_cmp)

Pruning only increases the bound, so a device prunes no more than necessary. More power is faster and takes more energy:
p / R increases with p, because R is concave in p and 0 at p = 0. So the feasible powers are those between the lowest
that meets the deadline and the highest that the energy allows.

A view that prunes a fraction rho of each tensor removes floor(rho n) of its n entries, and saves their operations. So
it saves slightly less than rho, and never saves operations without weights.
"""

import math
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from gossamer.core.errors import require
from gossamer.core.types import Params
from gossamer.fleet.radio import Fading, Link, efficiency, losses
from gossamer.tasks.objective import Objective

Floats = npt.NDArray[np.float64]

HALVINGS = 60

LOWEST = 1e-6
"""Smallest power of the search, as a fraction of the maximum power."""

ROUNDING = 1e-12
"""Fraction of a budget that is not used, so that sums of rounded numbers stay within it."""


@dataclass(frozen=True)
class Load:
    """The work and the budgets of one device in a round.

    Args:
        name: name of the device
        link: its uplink, at maximum power
        seconds: computing time without pruning
        joules: computing energy without pruning
        energy: energy budget in joules
        deadline: time budget in seconds
        fixed: whether the power is fixed
        flops: operations without pruning; 0 if unknown
    """

    name: str
    link: Link
    seconds: float
    joules: float
    energy: float
    deadline: float
    fixed: bool = False
    flops: float = 0.0

    def __post_init__(self) -> None:
        spent = {name: getattr(self, name) for name in ("seconds", "joules", "flops")}
        budgets = {"energy": self.energy, "deadline": self.deadline}
        require(
            *((0 <= x < math.inf, f"Load.{n} must be finite and not negative, got {x}") for n, x in spent.items()),
            *((0 < x < math.inf, f"Load.{name} must be a positive number, got {x}") for name, x in budgets.items()),
        )


class PrunedTensor(NamedTuple):
    """A pruned tensor: its number of entries, and their fraction of all operations."""

    entries: int
    part: float


@dataclass(frozen=True)
class Pruning:
    """The tensors that are pruned, all by the same fraction.

    Args:
        tensors: their entries and fractions of the operations; without tensors, pruning saves exactly its ratio
    """

    tensors: tuple[PrunedTensor, ...] = ()

    def __post_init__(self) -> None:
        whole = sum(weights.part for weights in self.tensors)
        require(
            (all(weights.entries >= 1 for weights in self.tensors), "Pruning.tensors: each must have an entry"),
            (all(weights.part >= 0 for weights in self.tensors), "Pruning.tensors: parts must not be negative"),
            (whole < 1 + 1e-9, f"Pruning.tensors: parts must be 1 at most together, got {whole}"),
        )

    @classmethod
    def of(cls, objective: Objective, rows: Tensor) -> "Pruning":
        """Create it for a model, from the operations of a pass over some samples."""
        model, layers = objective.initial(), defaultdict[str, Params](dict)
        for name in objective.trained:
            if model[name].dim() > 1:
                layers[name.rpartition(".")[0]][name] = torch.zeros_like(model[name])
        tensors = []
        for without in layers.values():
            passed, entries = objective.flops(model, rows, without), sum(t.numel() for t in without.values())
            part = (passed.done - passed.useful) / max(1, passed.done)
            tensors += [PrunedTensor(tensor.numel(), part * tensor.numel() / entries) for tensor in without.values()]
        return cls(tuple(tensors))

    @property
    def whole(self) -> float:
        """Fraction of operations that pruning all weights would save."""
        return sum(weights.part for weights in self.tensors) if self.tensors else 1.0

    def saved(self, ratio: float, operations: float = 0.0) -> float:
        """Return the fraction of operations that a ratio saves; ``operations`` bounds the rounding error of counts."""
        if not self.tensors:
            return ratio
        found = math.fsum(part * int(ratio * entries) / entries for entries, part in self.tensors)
        return max(0.0, found - (1 / operations if operations else 0.0))

    def least(self, wanted: float, largest: float, operations: float = 0.0) -> float:
        """Return the smallest ratio, up to ``largest``, that saves the wanted fraction; ``largest`` if none does."""
        if wanted <= 0 or not self.tensors:
            return min(max(wanted, 0.0), largest)
        low, high = 0.0, largest
        for _ in range(HALVINGS):
            middle = (low + high) / 2
            low, high = (low, middle) if self.saved(middle, operations) >= wanted else (middle, high)
        return high


@dataclass(frozen=True, eq=False)
class Loads:
    """Many loads as arrays; the last dimension has one entry per load.

    Args:
        each: the loads
        largest: the largest ratio that a device may prune
        pruning: what pruning saves
    """

    each: tuple[Load, ...]
    largest: float
    pruning: Pruning = Pruning()

    def __post_init__(self) -> None:
        require(
            (len(self.each) > 0, "a plan needs a device"),
            (0 <= self.largest < 1, f"the largest pruning ratio must be in [0, 1), got {self.largest}"),
        )

    @cached_property
    def most(self) -> Floats:
        """The maximum power of each load."""
        return self._of(lambda load: load.link.power)

    @cached_property
    def least(self) -> Floats:
        """The minimum power of each load."""
        return self.most * self._of(lambda load: 1.0 if load.fixed else LOWEST)

    @cached_property
    def computing(self) -> tuple[Floats, Floats]:
        """Seconds and joules of computing without pruning."""
        return self._of(lambda load: load.seconds), self._of(lambda load: load.joules)

    @cached_property
    def budgets(self) -> tuple[Floats, Floats]:
        """Budgets in seconds and joules, minus the reserve for rounding."""
        deadline, energy = self._of(lambda load: load.deadline), self._of(lambda load: load.energy)
        return deadline * (1 - ROUNDING), energy * (1 - ROUNDING)

    @cached_property
    def saved(self) -> Floats:
        """Fraction of computing that each saves at the largest ratio."""
        return self._of(lambda load: self.pruning.saved(self.largest, load.flops))

    @cached_property
    def _links(self) -> tuple[Floats, Floats, Floats]:
        """Signal-to-noise ratios at one watt, bandwidths and thresholds."""
        gains = self._of(lambda load: load.link.snr / load.link.power)
        return gains, self._of(lambda load: load.link.bandwidth), self._of(lambda load: load.link.threshold)

    def rates(self, powers: Floats) -> Floats:
        """Return the rates in bits per second."""
        gains, bandwidths, _ = self._links
        return bandwidths * self._by_fading(efficiency, gains * powers)

    def outages(self, powers: Floats) -> Floats:
        """Return the outage probabilities."""
        gains, _, thresholds = self._links
        return self._by_fading(losses, thresholds / (gains * powers))

    def savings(self, powers: Floats, sending: Floats) -> Floats:
        """Return the fraction of computing that each has to save if sending takes ``sending`` seconds.

        A fraction above 1 is infeasible.
        """
        (seconds, joules), (deadline, energy) = self.computing, self.budgets
        late, costly = seconds + sending - deadline, joules + powers * sending - energy
        return np.maximum(0.0, np.maximum(_share(late, seconds), _share(costly, joules)))

    def ratios(self, powers: Floats, sending: Floats) -> Floats:
        """Return the ratio that each has to prune for that, ignoring whole entries; above 1 is infeasible."""
        return _share(self.savings(powers, sending), np.asarray(self.pruning.whole))

    def over(self, powers: Floats, sending: Floats) -> tuple[Floats, Floats]:
        """Return the seconds and joules above the budgets at the largest ratio; negative within the budgets."""
        (seconds, joules), (deadline, energy), left = self.computing, self.budgets, 1 - self.saved
        return left * seconds + sending - deadline, left * joules + powers * sending - energy

    def excess(self, powers: Floats, sending: Floats) -> Floats:
        """Return the relative excess over the budgets at the largest ratio; over power it falls, then rises."""
        (late, costly), (deadline, energy) = self.over(powers, sending), self.budgets
        return np.asarray(np.maximum(late / deadline, costly / energy))

    def slowest(self, bits: float | Floats) -> Floats:
        """Return the lowest powers that meet the deadlines with messages of ``bits``; the maximum if none does."""
        return _edge(lambda powers: self._over(powers, bits)[0] <= 0, self.least, self.most)

    def dearest(self, bits: float | Floats) -> Floats:
        """Return the highest powers that the energy allows; the minimum if it allows none."""
        return _edge(lambda powers: self._over(powers, bits)[1] <= 0, self.most, self.least)

    def _over(self, powers: Floats, bits: float | Floats) -> tuple[Floats, Floats]:
        return self.over(powers, bits / self.rates(powers))

    def _of(self, value: Callable[[Load], float]) -> Floats:
        return np.array([value(load) for load in self.each])

    def _by_fading(self, find: Callable[[Floats, Fading], Floats], values: Floats) -> Floats:
        found = np.empty_like(values)
        for fading in {load.link.fading for load in self.each}:
            rows = [load.link.fading == fading for load in self.each]
            found[..., rows] = find(values[..., rows], fading)
        return found


def _edge(holds: Callable[[Floats], npt.NDArray[np.bool_]], start: Floats, end: Floats) -> Floats:
    """Return the first power from ``start`` to ``end`` where a condition holds, elementwise; else the end."""
    outside, inside, first = start, end, holds(start)
    for _ in range(HALVINGS):
        middle = np.sqrt(outside * inside)
        inside_now = holds(middle)
        outside, inside = np.where(inside_now, outside, middle), np.where(inside_now, middle, inside)
    return np.where(first, start, inside)


def _share(over: Floats, whole: Floats) -> Floats:
    """Return the fraction ``over / whole``; if ``whole`` is 0, 0 or infinity."""
    with np.errstate(over="ignore"):  # a tiny whole gives infinity
        part = over / np.where(whole > 0, whole, 1.0)
    return np.where(whole > 0, part, np.where(over <= 0, 0.0, np.inf))
