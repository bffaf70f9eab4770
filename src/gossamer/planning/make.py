"""Makes a plan for some loads, or says which of them cannot have one, and by how much."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from gossamer.errors import ConfigError, require
from gossamer.planning.loads import Load, Loads
from gossamer.planning.message import Message
from gossamer.planning.plan import Plan, Share
from gossamer.planning.pruning import Pruning
from gossamer.planning.search import Found, Search
from gossamer.planning.shortfall import shortfalls, told
from gossamer.planning.target import Target
from gossamer.radio import outage, rate

TIGHT = 1e-4
"""A budget of which no more than this share is left binds."""


@dataclass(frozen=True)
class Limits:
    """What a plan may choose from.

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
    message: Message | None = None,
    pruning: Pruning | None = None,
) -> Plan:
    """The plan with the least bound; refused, with the reasons, where some device cannot keep to its budgets."""
    message, pruning = message or Message(), pruning or Pruning()
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


def _shares(loads: Loads, found: Found, bits: int) -> Iterator[Share]:
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


def _refusal(loads: Loads, measurements: int, message: Message) -> list[str]:
    """What to say of the devices that cannot have a plan."""
    bits = message.bits(measurements)
    enough, *lines = told(shortfalls(loads, bits), loads, bits)
    least = f"{measurements:,} measurements and {loads.largest:.0%} of the weights pruned"
    return [f"no plan keeps to the budgets, even with {least}: {enough}", *lines]
