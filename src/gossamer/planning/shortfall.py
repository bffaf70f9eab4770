"""Who cannot have a plan, by how much, and which budgets would do; at the fewest measurements and most pruning."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

from gossamer.planning.loads import Load, Loads
from gossamer.report.text import ranges

FIGURES = 4
"""Of a budget that would do."""

LISTED = 20
"""So many ranges of client numbers are written at most."""


class Shortfall(NamedTuple):
    """What a client takes at least.

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
