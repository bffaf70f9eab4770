"""Figures of a fleet: the speed, memory and rates of its clients, and how many are available at each hour."""

from bisect import bisect_left
from collections import Counter
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from gossamer.core.availability import SECOND
from gossamer.core.errors import require, wrong_argument
from gossamer.core.random import choice, fold, key
from gossamer.fleet.device import connect
from gossamer.fleet.fleet import Fleet
from gossamer.fleet.keys import Span
from gossamer.fleet.links import RateTrace
from gossamer.fleet.units import RATES, with_unit

DAYS = 7
ASKED = 2000
"""The largest number of clients whose figures are computed. They are drawn."""


@dataclass(frozen=True)
class FleetSummary:
    """Figures of the clients of a fleet, as a run with this seed has them.

    Args:
        clients: the number of clients
        kinds: name, number of clients, and values of each device type
        flops: operations per second of each client
        memory: bytes of each client whose memory is known
        up: mean rate of uploads of each client in bits per second
        down: that of downloads, for clients whose downloads are not free
        available: the share of clients that are available at each hour of the day, UTC, over a week
    """

    clients: int
    kinds: list[dict[str, Any]]
    flops: list[float]
    memory: list[float]
    up: list[float]
    down: list[float]
    available: list[float]

    def plain(self) -> dict[str, Any]:
        """Return the summary for JSON: with the quantiles of clients in place of each client."""
        spread = {name: quantiles(getattr(self, name)) for name in ("flops", "memory", "up", "down")}
        return {**asdict(self), **spread}


def quantiles(values: list[float]) -> dict[str, float] | None:
    """Return the least, the quartiles and the largest of values; none if there are none."""
    if not values:
        return None
    ranked, names = sorted(values), ("least", "quarter", "median", "three_quarters", "most")
    return {name: ranked[round(k / 4 * (len(ranked) - 1))] for k, name in enumerate(names)}


def summarise(fleet: Fleet, clients: int | None = None, seed: int = 0) -> FleetSummary:
    """Return the figures of a fleet with a number of clients, by default its own."""
    count = fleet.clients if clients is None else clients
    require((count >= 1, wrong_argument("clients", count, "must be at least 1")))
    names = Counter(fleet.device(client, count).name for client in range(count))
    asked = choice(fold(key(seed), "asked"), count, min(count, ASKED)).tolist()
    run = fold(key(seed), "wireless", 0)
    links = [connect(fleet.device(client, count), fleet.link_key(client, count, 0, run)) for client in asked]
    devices = [link.device for link in links]
    models = zip(asked, (device.availability for device in devices), strict=True)
    here = [model.of_client(client, fold(run, "availability", client)) for client, model in models]
    kinds = [
        {
            "name": device.name,
            "clients": names[device.name],
            "memory": device.memory,
            "flops": device.flops,
            "up": _rate(device.up, device.up_trace) or "radio",
            "down": _rate(device.down, device.down_trace) or ("radio" if device.down_bandwidth is not None else "free"),
            "availability": device.availability.to_text(),
        }
        for device in fleet.devices
    ]
    available = []
    for hour in range(24):
        middles = [((24 * day + hour) * 3600 + 1800) * SECOND for day in range(DAYS)]
        met = sum(client.interval(at).start <= at for client in here for at in middles)
        available.append(met / (DAYS * len(here)))
    return FleetSummary(
        clients=count,
        kinds=kinds,
        flops=[device.flops for device in devices],
        memory=[float(device.memory) for device in devices if device.memory is not None],
        up=[link.up.mean for link in links],
        down=[link.down.mean for link in links if link.down is not None],
        available=available,
    )


def _rate(rate: float | Span | None, trace: RateTrace | None) -> str:
    if trace is not None:
        return f"trace of {Path(trace.source).name or 'memory'}"
    if isinstance(rate, Span):
        return rate.written(RATES)
    return "" if rate is None else str(with_unit(rate, RATES))


class Bin(NamedTuple):
    """A bar of a histogram.

    Args:
        low: the smaller end
        high: the larger end, inclusive
        clients: the number of values
    """

    low: float
    high: float
    clients: int


def histogram(values: list[float], most: int = 8) -> list[Bin]:
    """Return bars of equal width on a logarithmic scale; a single one if all values are equal.

    >>> histogram([1.0, 10.0, 10.0, 100.0], 2)
    [Bin(low=1.0, high=10.0, clients=3), Bin(low=10.0, high=100.0, clients=1)]
    """
    low, high = min(values), max(values)
    if low == high:
        return [Bin(low, high, len(values))]
    edges = [low * (high / low) ** (k / most) for k in range(1, most)] + [high]
    counts = Counter(bisect_left(edges, value) for value in values)
    return [Bin(start, end, counts[k]) for k, (start, end) in enumerate(pairwise([low, *edges]))]
