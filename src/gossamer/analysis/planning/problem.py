"""Everything that a plan for a fleet is made from.

Devices are where a run with the same seeds over ``wireless`` has them. Where something is drawn anew in each round, the
plan is made for the end of the range that is worst: then budgets are kept in all rounds. Power that is drawn once stays
as it is drawn, unless the plan may choose it; power that is drawn anew in each round must be for the plan to choose.

Makes a plan for some loads, or says which of them cannot have one, and by how much.
"""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from gossamer.analysis.planning.loads import Load, Loads, Pruning
from gossamer.analysis.planning.plan import Plan, Share, digest
from gossamer.analysis.planning.search import Search, SearchResult, shortfalls, told
from gossamer.analysis.planning.target import Target
from gossamer.analysis.planning.work import MessageSize
from gossamer.core.errors import ConfigError, require, wrong
from gossamer.core.random import key as make_key
from gossamer.fleet.device import Device, Span
from gossamer.fleet.fleet import Fleet
from gossamer.fleet.radio import Fading, outage, rate
from gossamer.parts.channels.wireless import Cell, Wireless

TIGHT = 1e-4
"""A budget of which no more than this share is left binds."""


@dataclass(frozen=True)
class Limits:
    """What a plan may choose from.

    Args:
        least: of measurements
        most: of measurements
        largest: share that a device may prune
    """

    least: int
    most: int
    largest: float = 0.9

    def __post_init__(self) -> None:
        require(
            (1 <= self.least <= self.most, f"measurements must go up from 1 or more, got {self.least} to {self.most}"),
            (0 <= self.largest < 1, f"the largest share that is pruned must be in [0, 1), got {self.largest}"),
        )


def make(
    loads: Sequence[Load],
    target: Target,
    limits: Limits,
    message: MessageSize | None = None,
    pruning: Pruning | None = None,
) -> Plan:
    """The plan with the least bound; refused, with the reasons, where some device cannot keep to its budgets."""
    message, pruning = message or MessageSize(), pruning or Pruning()
    alike = [replace(load, name="") for load in loads]
    counts = Counter(alike)
    search = Search(Loads(tuple(counts), limits.largest, pruning), tuple(counts.values()), target, message)
    if not search.best([limits.least]).kept:
        raise ConfigError(*_refusal(Loads(tuple(loads), limits.largest, pruning), limits.least, message))
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
    """What each is to do; rates and seconds are those that a run has, to the last digit."""
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
    """What keeps the bound from being smaller; of computing so much would be left, could parts of weights be pruned."""
    full = {
        "energy": left * load.joules + share.sending_joules >= load.energy * (1 - TIGHT),
        "deadline": left * load.seconds + share.sending_seconds >= load.deadline * (1 - TIGHT),
        "power (fixed)": load.fixed and share.outage > 0,
        "power": not load.fixed and share.power >= load.link.power * (1 - TIGHT),
    }
    return " + ".join(name for name, binds in full.items() if binds) or "nothing"


def _refusal(loads: Loads, measurements: int, message: MessageSize) -> list[str]:
    """What to say of the devices that cannot have a plan."""
    bits = message.bits(measurements)
    enough, *lines = told(shortfalls(loads, bits), loads, bits)
    least = f"{measurements:,} measurements and {loads.largest:.0%} of the weights pruned"
    return [f"no plan keeps to the budgets, even with {least}: {enough}", *lines]


MOST = 1e30
"""Budgets and operations are less: nothing overflows."""


@dataclass(frozen=True)
class Problem:
    """A fleet, what it has to do, and what it may take.

    Args:
        fleet: the devices
        flops: operations of each client in a round, where nothing is pruned
        parameters: entries of the model
        energy: joules that a client may spend in a round
        deadline: seconds that it may take
        target: the bound
        limits: what may be chosen
        message: how long messages are
        seed: of the run
        fading: of the links
        most_power: in watts, of devices that say nothing of it; none: their power stays as it is
        pruning: what it saves of the operations
        channel_seed: of the channel
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
        require(
            (len(self.flops) > 0, "Problem.flops must have one entry for each client"),
            (least >= 0, wrong(self, "flops", "must not be negative")),
            (most < MOST, wrong(self, "flops", f"must be less than {MOST:g}")),
            (self.parameters >= 1, wrong(self, "parameters", "must be at least 1")),
            (0 < self.energy < MOST, f"energy must be a positive number of joules, got {self.energy}"),
            (0 < self.deadline < MOST, f"deadline must be a positive number of seconds, got {self.deadline}"),
            (power is None or 0 < power < math.inf, f"most_power must be a positive number, got {power}"),
            *(_choosable(device, power) for device in self.fleet.devices),
        )

    def loads(self) -> tuple[Load, ...]:
        """What each client has to do."""
        cell = Wireless(self.fleet, self.fading, self.channel_seed).fit(len(self.flops), make_key(self.seed))
        return tuple(self._load(cell, client, flops) for client, flops in enumerate(self.flops))

    def _load(self, cell: Cell, client: int, flops: float) -> Load:
        device = cell.fleet.device(client, cell.clients)
        if device.draw == "round":
            link = device.weakest(cell.fading)
        else:
            link = cell.fleet.link(client, cell.clients, 0, cell.key, cell.fading)
        most, seconds = device.most_power or self.most_power, device.seconds(flops)
        link, spent = replace(link, power=most or link.power), (seconds, device.joules(seconds))
        return Load(device.name, link, *spent, self.energy, self.deadline, most is None, flops)

    def solve(self) -> Plan:
        """The best plan."""
        plan = make(self.loads(), self.target, self.limits, self.message, self.pruning)
        plan = replace(plan, fleet=digest(self.fleet), seed=self.seed, channel_seed=self.channel_seed)
        return replace(plan, fading=self.fading, parameters=self.parameters)

    def at_energies(self, energies: Sequence[float]) -> list[Plan | None]:
        """The best plans with other energy budgets; none where there is none."""
        return [_attempt(replace(self, energy=energy)) for energy in energies]


def _attempt(problem: Problem) -> Plan | None:
    try:
        return problem.solve()
    except ConfigError:
        return None


def _choosable(device: Device, most_power: float | None) -> tuple[bool, str]:
    """That a device's power is one number, or one that the plan may choose; and what to say if not."""
    moves = device.draw == "round" and isinstance(device.power, Span)
    if device.most_power is not None or (most_power is None and not moves):
        return True, ""
    if most_power is None:
        return False, f"{device.name}: its power is drawn anew in each round: say most_power, for the plan to choose it"
    least, power = f"most_power must be at least the power of {device.name}", device.full_power
    return power <= most_power, f"{least}, {power:g} W, got {most_power:g}"
