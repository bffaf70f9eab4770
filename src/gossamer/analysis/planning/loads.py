"""What devices have to do in a round, what they may spend on it, and how much they must prune.

Where pruning saves a share s of its operations, computing takes (1 - s) of its seconds and joules. Sending b bits at
rate R with power p takes b / R seconds and p b / R joules. A device that keeps within its budgets saves at least

    max(0, (E_cmp + p b / R - energy) / E_cmp, (T_cmp + b / R - deadline) / T_cmp)

and as pruning only adds to the bound, it prunes no more than that takes (``gossamer.analysis.planning.loads``). More
power is faster and dearer: p / R rises with p, because R is concave and 0 where p is. So the powers that keep to both
budgets are those between the lowest that meets the deadline and the highest that the energy allows.

What pruning saves of computing, weight by weight.

A view that leaves out a share rho of each tensor leaves out floor(rho n) of its n entries, and what they take of the
operations is saved. So a share saves a little less than itself, and what no weight takes is never saved.
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

HALVINGS = 60


class PrunedTensor(NamedTuple):
    """A tensor that is pruned: its entries, and their part of all operations."""

    entries: int
    part: float


@dataclass(frozen=True)
class Pruning:
    """Which tensors are pruned, each by the same share.

    Args:
        tensors: their entries and their parts of the operations; without, any share saves just as much
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
        """Of a model, by the operations that a pass over some samples takes."""
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
        """What would be saved if all of the weights were pruned."""
        return sum(weights.part for weights in self.tensors) if self.tensors else 1.0

    def saved(self, ratio: float, operations: float = 0.0) -> float:
        """What a share saves for certain; of so many operations, if that is said, as whole ones are counted."""
        if not self.tensors:
            return ratio
        found = math.fsum(part * int(ratio * entries) / entries for entries, part in self.tensors)
        return max(0.0, found - (1 / operations if operations else 0.0))

    def least(self, wanted: float, largest: float, operations: float = 0.0) -> float:
        """The least share, up to the largest, that saves as much as is wanted; the largest, if none does."""
        if wanted <= 0 or not self.tensors:
            return min(max(wanted, 0.0), largest)
        low, high = 0.0, largest
        for _ in range(HALVINGS):
            middle = (low + high) / 2
            low, high = (low, middle) if self.saved(middle, operations) >= wanted else (middle, high)
        return high


Floats = npt.NDArray[np.float64]

LOWEST = 1e-6
"""Powers are looked at from this share of the largest on."""

ROUNDING = 1e-12
"""This share of a budget is not planned with, so that sums of rounded numbers keep to it."""


@dataclass(frozen=True)
class Load:
    """One device in a round.

    Args:
        name: what the device is called
        link: its uplink, at the most power that it may send with
        seconds: of computing, where nothing is pruned
        joules: of computing, where nothing is pruned
        energy: joules that it may spend
        deadline: seconds that it may take
        fixed: whether its power stays as it is
        flops: operations of computing, where nothing is pruned; 0: they are not known
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
        least = {name: getattr(self, name) for name in ("seconds", "joules", "flops")}
        budgets = {"energy": self.energy, "deadline": self.deadline}
        require(
            *((0 <= x < math.inf, f"Load.{name} must be a number from 0, got {x}") for name, x in least.items()),
            *((0 < x < math.inf, f"Load.{name} must be a positive number, got {x}") for name, x in budgets.items()),
        )


@dataclass(frozen=True, eq=False)
class Loads:
    """Many loads as arrays, whose last dimension has an entry for each.

    Args:
        each: the loads
        largest: the largest share that a device may prune
        pruning: what that saves
    """

    each: tuple[Load, ...]
    largest: float
    pruning: Pruning = Pruning()

    def __post_init__(self) -> None:
        require(
            (len(self.each) > 0, "a plan needs a device"),
            (0 <= self.largest < 1, f"the largest share that is pruned must be in [0, 1), got {self.largest}"),
        )

    @cached_property
    def most(self) -> Floats:
        """The largest power of each."""
        return self._of(lambda load: load.link.power)

    @cached_property
    def least(self) -> Floats:
        """The smallest power of each."""
        return self.most * self._of(lambda load: 1.0 if load.fixed else LOWEST)

    @cached_property
    def computing(self) -> tuple[Floats, Floats]:
        """Seconds and joules, where nothing is pruned."""
        return self._of(lambda load: load.seconds), self._of(lambda load: load.joules)

    @cached_property
    def budgets(self) -> tuple[Floats, Floats]:
        """Seconds and joules that each may take, less what rounding may add to them."""
        deadline, energy = self._of(lambda load: load.deadline), self._of(lambda load: load.energy)
        return deadline * (1 - ROUNDING), energy * (1 - ROUNDING)

    @cached_property
    def saved(self) -> Floats:
        """What part of computing each saves at the largest pruning."""
        return self._of(lambda load: self.pruning.saved(self.largest, load.flops))

    @cached_property
    def _links(self) -> tuple[Floats, Floats, Floats]:
        """Signal to noise at one watt, bandwidths and thresholds."""
        gains = self._of(lambda load: load.link.snr / load.link.power)
        return gains, self._of(lambda load: load.link.bandwidth), self._of(lambda load: load.link.threshold)

    def rates(self, powers: Floats) -> Floats:
        """Bits a second."""
        gains, bandwidths, _ = self._links
        return bandwidths * self._by_fading(efficiency, gains * powers)

    def outages(self, powers: Floats) -> Floats:
        """The chance that a message is lost."""
        gains, _, thresholds = self._links
        return self._by_fading(losses, thresholds / (gains * powers))

    def savings(self, powers: Floats, sending: Floats) -> Floats:
        """The part of computing that each has to save where sending takes so many seconds; more than 1: it cannot."""
        (seconds, joules), (deadline, energy) = self.computing, self.budgets
        late, dear = seconds + sending - deadline, joules + powers * sending - energy
        return np.maximum(0.0, np.maximum(_share(late, seconds), _share(dear, joules)))

    def ratios(self, powers: Floats, sending: Floats) -> Floats:
        """The share that each has to prune for that, where parts of weights could be; more than 1: it cannot."""
        return _share(self.savings(powers, sending), np.asarray(self.pruning.whole))

    def over(self, powers: Floats, sending: Floats) -> tuple[Floats, Floats]:
        """By how many seconds and joules each is over its budgets, at the largest pruning; below 0, it is not."""
        (seconds, joules), (deadline, energy), left = self.computing, self.budgets, 1 - self.saved
        return left * seconds + sending - deadline, left * joules + powers * sending - energy

    def excess(self, powers: Floats, sending: Floats) -> Floats:
        """By which part of a budget each is over it, at the largest pruning; of power it falls, then rises."""
        (late, dear), (deadline, energy) = self.over(powers, sending), self.budgets
        return np.asarray(np.maximum(late / deadline, dear / energy))

    def slowest(self, bits: float | Floats) -> Floats:
        """The lowest powers that meet the deadlines with messages of so many bits; full power, where none does."""
        return _edge(lambda powers: self._over(powers, bits)[0] <= 0, self.least, self.most)

    def dearest(self, bits: float | Floats) -> Floats:
        """The highest powers that the energy allows; the lowest of all, where it allows none."""
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
    """The power from which on something holds, on the way from the start, entry by entry; the end, if nowhere else."""
    outside, inside, first = start, end, holds(start)
    for _ in range(HALVINGS):
        middle = np.sqrt(outside * inside)
        there = holds(middle)
        outside, inside = np.where(there, outside, middle), np.where(there, middle, inside)
    return np.where(first, start, inside)


def _share(over: Floats, whole: Floats) -> Floats:
    """What part of the whole has to go; of nothing, nothing or more than there is."""
    with np.errstate(over="ignore"):  # of next to nothing, infinitely many parts
        part = over / np.where(whole > 0, whole, 1.0)
    return np.where(whole > 0, part, np.where(over <= 0, 0.0, np.inf))
