"""Why a device cannot have a plan, and by how much: at the fewest measurements and the largest pruning."""

from typing import NamedTuple

import numpy as np

from gossamer.planning.loads import Floats, Load, Loads

HALVINGS = 60


class Shortfall(NamedTuple):
    """What a device takes at least.

    load: the device, and what it may take
    seconds: at full power
    joules: at the lowest power, however long that takes
    in_time: joules at the lowest power that meets the deadline; none, if none does
    """

    load: Load
    seconds: float
    joules: float
    in_time: float | None

    def __str__(self) -> str:
        load, late = self.load, f"at least {self.seconds:.3g} s and has {self.load.deadline:g} s"
        dear = f"at least {self.joules:.3g} J and has {load.energy:g} J"
        if self.in_time is None:
            return f"{late}, and {dear}" if self.joules > load.energy else late
        if self.joules > load.energy:
            return dear
        within = f"at least {self.in_time:.3g} J within {load.deadline:g} s and has {load.energy:g} J"
        return f"{within}; with more time it could be {self.joules:.3g} J"


def shortfalls(loads: Loads, bits: int) -> list[Shortfall]:
    """The loads that cannot keep to their budgets with messages of so many bits."""
    fastest = loads.rates(loads.most)
    seconds = _spent(loads, 0) + bits / fastest
    joules = _spent(loads, 1) + bits * loads.least / loads.rates(loads.least)
    slowest = _slowest(loads, bits)
    in_time = _spent(loads, 1) + bits * slowest / loads.rates(slowest)
    deadline, energy = loads.budgets
    found = []
    for row, load in enumerate(loads.each):
        late = bool(seconds[row] > deadline[row])
        if late or in_time[row] > energy[row]:
            least = None if late else float(in_time[row])
            found.append(Shortfall(load, float(seconds[row]), float(joules[row]), least))
    return found


def _spent(loads: Loads, what: int) -> Floats:
    """Seconds (0) or joules (1) of computing, at the largest pruning."""
    return np.asarray((1 - loads.largest) * loads.computing[what])


def _slowest(loads: Loads, bits: int) -> Floats:
    """The lowest powers that meet the deadlines, or full power, by halving intervals of their logarithms."""
    low, high = np.log(loads.least), np.log(loads.most)
    time = loads.budgets[0] - _spent(loads, 0)
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        fits = bits / loads.rates(np.exp(middle)) <= time
        low, high = np.where(fits, low, middle), np.where(fits, middle, high)
    return np.asarray(np.exp(high))
