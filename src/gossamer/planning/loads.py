"""What devices have to do in a round, what they may spend on it, and how much they must prune.

With a share rho pruned, computing takes (1 - rho) of its seconds and joules. Sending b bits at rate R with power p
takes b / R seconds and p b / R joules. A device that keeps within its budgets prunes at least

    max(0, (E_cmp + p b / R - energy) / E_cmp, (T_cmp + b / R - deadline) / T_cmp)

and as pruning only adds to the bound, it prunes no more than that. More power is faster and dearer: p / R rises with p,
because R is concave and 0 where p is.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from gossamer.errors import require
from gossamer.radio import Fading, Link, efficiency, losses

Floats = npt.NDArray[np.float64]

LOWEST = 1e-6
"""Powers are looked at from this share of the largest on."""


@dataclass(frozen=True)
class Load:
    """One device in a round.

    name: what the device is called
    link: its uplink, at the most power that it may send with
    seconds: of computing, where nothing is pruned
    joules: of computing, where nothing is pruned
    energy: joules that it may spend
    deadline: seconds that it may take
    fixed: whether its power stays as it is
    """

    name: str
    link: Link
    seconds: float
    joules: float
    energy: float
    deadline: float
    fixed: bool = False

    def __post_init__(self) -> None:
        computing = {"seconds": self.seconds, "joules": self.joules}
        budgets = {"energy": self.energy, "deadline": self.deadline}
        require(
            *((0 <= x < math.inf, f"Load.{name} must not be negative, got {x}") for name, x in computing.items()),
            *((x > 0, f"Load.{name} must be positive, got {x}") for name, x in budgets.items()),
        )


@dataclass(frozen=True, eq=False)
class Loads:
    """Many loads as arrays, whose last dimension has an entry for each.

    each: the loads
    largest: the largest share that a device may prune
    """

    each: tuple[Load, ...]
    largest: float

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
        """Seconds and joules that each may take."""
        return self._of(lambda load: load.deadline), self._of(lambda load: load.energy)

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

    def ratios(self, powers: Floats, sending: Floats) -> Floats:
        """The share that each has to prune where sending takes so many seconds; more than 1 where that is no help."""
        (seconds, joules), (deadline, energy) = self.computing, self.budgets
        late, dear = seconds + sending - deadline, joules + powers * sending - energy
        return np.maximum(0.0, np.maximum(_share(late, seconds), _share(dear, joules)))

    def excess(self, powers: Floats, sending: Floats) -> Floats:
        """By which part of a budget each is over it, at the largest pruning; of power it falls, then rises."""
        (seconds, joules), (deadline, energy), left = self.computing, self.budgets, 1 - self.largest
        late, dear = (left * seconds + sending) / deadline, (left * joules + powers * sending) / energy
        return np.asarray(np.maximum(late, dear) - 1)

    def _of(self, value: Callable[[Load], float]) -> Floats:
        return np.array([value(load) for load in self.each])

    def _by_fading(self, find: Callable[[Floats, Fading], Floats], values: Floats) -> Floats:
        found = np.empty_like(values)
        for fading in {load.link.fading for load in self.each}:
            rows = [load.link.fading == fading for load in self.each]
            found[..., rows] = find(values[..., rows], fading)
        return found


def _share(over: Floats, whole: Floats) -> Floats:
    """What part of the whole has to go; of nothing, nothing or more than there is."""
    with np.errstate(over="ignore"):  # of next to nothing, infinitely many parts
        part = over / np.where(whole > 0, whole, 1.0)
    return np.where(whole > 0, part, np.where(over <= 0, 0.0, np.inf))
