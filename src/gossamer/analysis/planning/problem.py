"""The planning problem of a fleet, and its solution.

Devices have the positions of a run over ``wireless`` with the same seeds. If a range is drawn in every round, the plan
assumes its worst end, so that all rounds keep the budgets. Power that is drawn once is fixed, unless the plan may
choose it. Power that is drawn in every round must be chosen by the plan.

``make`` returns the best plan for some loads. If there is none, it reports which loads exceed their budgets, and by how
much.
"""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from gossamer.analysis.planning.loads import Load, Loads, Pruning
from gossamer.analysis.planning.plan import Plan, Share, digest
from gossamer.analysis.planning.search import Search, SearchResult, describe, shortfalls
from gossamer.analysis.planning.target import Target
from gossamer.analysis.planning.work import MessageSize
from gossamer.core.errors import ConfigError, require, wrong
from gossamer.core.random import key as make_key
from gossamer.fleet.device import Device
from gossamer.fleet.fleet import Fleet
from gossamer.fleet.keys import Span
from gossamer.fleet.radio import Fading, outage, rate
from gossamer.parts.channels.links import Wireless, not_radio

TIGHT = 1e-4
"""A budget binds if at most this fraction of it is left."""

MOST = 1e30
"""Upper limit of budgets and operations, against overflow."""


@dataclass(frozen=True)
class Limits:
    """Ranges of the plan's choices.

    Args:
        least: minimum number of measurements
        most: maximum number of measurements
        largest: maximum pruning ratio
    """

    least: int
    most: int
    largest: float = 0.9

    def __post_init__(self) -> None:
        require(
            (
                1 <= self.least <= self.most,
                f"Limits must have 1 <= least <= most, got {self.least} to {self.most}",
            ),
            (0 <= self.largest < 1, f"the largest pruning ratio must be in [0, 1), got {self.largest}"),
        )


@dataclass(frozen=True)
class Problem:
    """A fleet with its work, its budgets, and the limits of a plan.

    Args:
        fleet: the devices
        flops: operations of each client per round, without pruning
        parameters: number of entries of the model
        energy: energy budget per client and round, in joules
        deadline: time budget per client and round, in seconds
        target: the bound
        limits: ranges of the plan's choices
        message: length of messages
        seed: seed of the run
        fading: fading of the links
        most_power: maximum power in watts of devices without their own; none keeps their power
        pruning: what pruning saves
        channel_seed: seed of the channel
    """

    fleet: Fleet
    flops: tuple[float, ...]
    parameters: int
    energy: float
    deadline: float
    target: Target
    limits: Limits
    message: MessageSize = MessageSize()
    seed: int = 0
    fading: Fading = "power"
    most_power: float | None = None
    pruning: Pruning = Pruning()
    channel_seed: int = 0

    def __post_init__(self) -> None:
        power, least, most = self.most_power, min(self.flops, default=0.0), max(self.flops, default=0.0)
        count = len(self.flops)
        require(
            (len(self.flops) > 0, "Problem.flops must have one entry for each client"),
            (least >= 0, wrong(self, "flops", "must not be negative")),
            (most < MOST, wrong(self, "flops", f"must be less than {MOST:g}")),
            (self.parameters >= 1, wrong(self, "parameters", "must be at least 1")),
            (
                not self.target.entries or self.target.devices == count,
                f"Target.devices must be {count}, one per client",
            ),
            (0 < self.energy < MOST, f"energy must be a positive number of joules, got {self.energy}"),
            (0 < self.deadline < MOST, f"deadline must be a positive number of seconds, got {self.deadline}"),
            (power is None or 0 < power < math.inf, f"most_power must be a positive number, got {power}"),
            *(_choosable(device, power) for device in self.fleet.devices),
            *((False, f"{text}, but a plan is for radio links alone") for text in not_radio(self.fleet)[:1]),
        )

    def loads(self) -> tuple[Load, ...]:
        """Return the load of each client."""
        cell = Wireless(self.fleet, self.fading, self.channel_seed).fit(len(self.flops), make_key(self.seed))
        found = []
        for client, flops in enumerate(self.flops):
            device = cell.fleet.device(client, cell.clients)
            if device.draw == "round":
                link = device.weakest(cell.fading)  # so that all rounds keep the budgets
            else:
                link = cell.fleet.link(client, cell.clients, 0, cell.key, cell.fading)
            most, seconds = device.most_power or self.most_power, device.seconds(flops)
            link, spent = replace(link, power=most or link.power), (seconds, device.joules(seconds))
            found.append(Load(device.name, link, *spent, self.energy, self.deadline, most is None, flops))
        return tuple(found)

    def solve(self) -> Plan:
        """Return the best plan."""
        plan = make(self.loads(), self.target, self.limits, self.message, self.pruning)
        plan = replace(plan, fleet=digest(self.fleet), seed=self.seed, channel_seed=self.channel_seed)
        return replace(plan, fading=self.fading, parameters=self.parameters)

    def at_energies(self, energies: Sequence[float]) -> list[Plan | None]:
        """Return the best plans for other energy budgets; none where no plan is feasible."""
        found: list[Plan | None] = []
        for energy in energies:
            try:
                found.append(replace(self, energy=energy).solve())
            except ConfigError:
                found.append(None)
        return found


def _choosable(device: Device, most_power: float | None) -> tuple[bool, str]:
    """Check that a device's power is fixed, or that the plan may choose it; return the error message too."""
    moves = device.draw == "round" and isinstance(device.power, Span)
    if device.down_bandwidth is not None:
        return False, f"{device.name}: a plan does not count downloads: leave out down_bandwidth"
    if device.latency or device.half_batch:
        return False, f"{device.name}: a plan counts neither latency nor half_batch: leave them out"
    if device.most_power is not None or (most_power is None and not moves):
        return True, ""
    if most_power is None:
        return (
            False,
            f"{device.name}: its power is drawn in every round: set most_power for the plan to choose it",
        )
    least, power = f"most_power must be at least the power of {device.name}", device.full_power
    return power <= most_power, f"{least}, {power:g} W, got {most_power:g}"


def make(
    loads: Sequence[Load],
    target: Target,
    limits: Limits,
    message: MessageSize | None = None,
    pruning: Pruning | None = None,
) -> Plan:
    """Return the plan with the smallest bound; raise with all reasons if a device cannot keep its budgets."""
    message, pruning = message or MessageSize(), pruning or Pruning()
    alike = [replace(load, name="") for load in loads]
    counts = Counter(alike)
    search = Search(Loads(tuple(counts), limits.largest, pruning), tuple(counts.values()), target, message)
    if not search.best([limits.least]).kept:
        every, bits = Loads(tuple(loads), limits.largest, pruning), message.bits(limits.least)
        enough, *lines = describe(shortfalls(every, bits), every, bits)
        least = f"{limits.least:,} measurements and {limits.largest:.0%} of the weights pruned"
        raise ConfigError(f"no plan keeps the budgets, even with {least}: {enough}", *lines)
    measurements = search.measurements(limits.least, limits.most)
    found, weights, bits = search.best([measurements]), target.at(measurements), message.bits(measurements)
    each = dict(zip(counts, _shares(search.loads, found, bits), strict=True))
    clients = tuple(replace(each[key], name=load.name) for key, load in zip(alike, loads, strict=True))
    terms = {
        "pruning": weights.pruning * sum(share.ratio for share in clients),
        "outages": weights.outage * sum(share.outage for share in clients),
        "measuring": weights.measuring,
    }
    return Plan(measurements, bits, terms, clients, each=message.each)


def _shares(loads: Loads, found: SearchResult, bits: int) -> Iterator[Share]:
    """Yield the plan of each load; rates and times are exactly those of a run."""
    powers, pruning = found.powers[0], loads.pruning
    links = [replace(load.link, power=float(power)) for load, power in zip(loads.each, powers, strict=True)]
    rates = [rate(link) for link in links]
    savings = loads.savings(powers, bits / np.array(rates))
    for load, link, speed, wanted in zip(loads.each, links, rates, map(float, savings), strict=True):
        ratio, sending = pruning.least(wanted, loads.largest, load.flops), bits / speed
        left = 1 - pruning.saved(ratio, load.flops)
        spent = left * load.seconds, sending, left * load.joules, link.power * sending
        share = Share("", link.power, ratio, outage(link), speed, load.flops, *spent)
        yield replace(share, binding=_binding(share, load, 1 - wanted))


def _binding(share: Share, load: Load, left: float) -> str:
    """Return what limits the bound; ``left`` is the fraction of computing left without rounding to whole entries."""
    full = {
        "energy": left * load.joules + share.sending_joules >= load.energy * (1 - TIGHT),
        "deadline": left * load.seconds + share.sending_seconds >= load.deadline * (1 - TIGHT),
        "power (fixed)": load.fixed and share.outage > 0,
        "power": not load.fixed and share.power >= load.link.power * (1 - TIGHT),
    }
    return " + ".join(name for name, binds in full.items() if binds) or "nothing"
