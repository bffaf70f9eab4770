"""Makes a plan for some loads, or says which of them cannot have one, and by how much."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from gossamer.errors import ConfigError, require
from gossamer.planning.loads import Load, Loads
from gossamer.planning.message import Message
from gossamer.planning.plan import Plan, Share
from gossamer.planning.search import Found, Search
from gossamer.planning.shortfall import shortfalls
from gossamer.planning.target import Target

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


def make(loads: Sequence[Load], target: Target, limits: Limits, message: Message | None = None) -> Plan:
    """The plan with the least bound; refused, with the reasons, where some device cannot keep to its budgets."""
    message = message or Message()
    alike = [replace(load, name="") for load in loads]
    counts = Counter(alike)
    search = Search(Loads(tuple(counts), limits.largest), tuple(counts.values()), target, message)
    if not search.best([limits.least]).kept:
        raise ConfigError(*_refusal(loads, limits, message))
    measurements = search.measurements(limits.least, limits.most)
    found, weights, bits = search.best([measurements]), target.at(measurements), message.bits(measurements)
    each = dict(zip(counts, _shares(search.loads, found, bits), strict=True))
    clients = tuple(replace(each[key], name=load.name) for key, load in zip(alike, loads, strict=True))
    terms = {
        "pruning": weights.pruning * sum(share.ratio for share in clients),
        "outages": weights.outage * sum(share.outage for share in clients),
        "measuring": weights.measuring,
    }
    return Plan(measurements, bits, terms, clients)


def _shares(loads: Loads, found: Found, bits: int) -> Iterator[Share]:
    powers, rates, outages = (array[0] for array in (found.powers, found.rates, found.outages))
    ratios = np.minimum(loads.ratios(powers, bits / rates), loads.largest)
    for load, *row in zip(loads.each, powers, ratios, outages, rates, strict=True):
        power, ratio, outage, rate = map(float, row)
        left, sending = 1 - ratio, bits / rate
        share = Share("", power, ratio, outage, rate, left * load.seconds, sending, left * load.joules, power * sending)
        yield replace(share, binding=_binding(share, load))


def _binding(share: Share, load: Load) -> str:
    """What keeps the bound from being smaller."""
    full = {
        "energy": share.joules >= load.energy * (1 - TIGHT),
        "deadline": share.seconds >= load.deadline * (1 - TIGHT),
        "power": share.power >= load.link.power * (1 - TIGHT) and not load.fixed,
    }
    return " + ".join(name for name, binds in full.items() if binds) or "nothing"


def _refusal(loads: Sequence[Load], limits: Limits, message: Message) -> list[str]:
    """What to say of the devices that cannot have a plan, equal ones together."""
    short = shortfalls(Loads(tuple(loads), limits.largest), message.bits(limits.least))
    so = f"with {limits.least:,} measurements and {limits.largest:.0%} of the weights pruned"
    told = Counter(f"{less.load.name} cannot keep to its budgets: {so} it takes {less}" for less in short)
    return [f"{text} ({many} clients)" if many > 1 else text for text, many in told.items()]
