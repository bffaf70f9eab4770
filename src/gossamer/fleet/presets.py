"""Fleets of plausible devices.

A preset has strata of computing speed, from slow to fast, and kinds of links, each with a share of the clients. A
stratum's speed is drawn within it, from the seed. Speed is log-normal, which is an assumption. Its standard deviation
of 0.6 is that of FedScale's simulator (Lai et al., 2022, https://arxiv.org/abs/2105.11367): the fastest phones are
about 8 times as fast as the slowest. Faster devices have more memory. Rates of phones on Wi-Fi span the means that
FLASH measured (Yang et al., 2021, https://arxiv.org/abs/2006.06983), 3 to 53 Mbit/s up and 19 to 139 Mbit/s down.
Phones are available at night, while they charge, as in Bonawitz et al., 2019 (https://arxiv.org/abs/1902.01046). All
other figures are rough: measure your own devices where they matter.
"""

import math
from dataclasses import dataclass
from statistics import NormalDist
from typing import Literal, NamedTuple

import torch

from gossamer.core.errors import ConfigError, require, wrong_argument
from gossamer.core.random import fold, key, uniform
from gossamer.core.specs import unknown
from gossamer.fleet.availability import read_model
from gossamer.fleet.device import Device
from gossamer.fleet.fleet import Fleet, shared_out
from gossamer.fleet.keys import Span


class LinkKind(NamedTuple):
    """A kind of link.

    Args:
        name: its name
        share: the share of the clients
        up: range of uploads in bits per second
        down: range of downloads
        latency: seconds
        loss: probability that an upload is lost
        power: watts of sending
        receive_power: watts of receiving
    """

    name: str
    share: float
    up: tuple[float, float]
    down: tuple[float, float]
    latency: float
    loss: float
    power: float
    receive_power: float


@dataclass(frozen=True)
class Preset:
    """A kind of fleet.

    Args:
        device: the name of its devices
        flops: median of the speed
        spread: standard deviation of the logarithm of the speed
        strata: number of different speeds
        memory: bytes for training of a device with the median speed
        watts: power of computing
        idle_power: power of waiting
        half_batch: batch size with half of the speed
        links: kinds of links
        availability: when clients are available
        on_leave: what their work becomes
    """

    device: str
    flops: float
    spread: float
    strata: int
    memory: float
    watts: float
    idle_power: float
    half_batch: float
    links: tuple[LinkKind, ...]
    availability: str
    on_leave: Literal["lost", "pause"] = "lost"


PRESETS = {
    "phones": Preset(
        device="phone",
        flops=8e9,
        spread=0.6,
        strata=12,
        memory=512e6,
        watts=2.0,
        idle_power=0.05,
        half_batch=4.0,
        links=(
            LinkKind("Wi-Fi", 0.75, (5e6, 50e6), (20e6, 140e6), 0.02, 0.01, 1.0, 0.8),
            LinkKind("4G", 0.2, (2e6, 10e6), (8e6, 40e6), 0.05, 0.02, 2.5, 1.5),
            LinkKind("3G", 0.05, (0.2e6, 1e6), (1e6, 5e6), 0.12, 0.05, 1.8, 1.2),
        ),
        availability="daily:from=22h,to=7h,zones=-8+-5+0+1+5.5+8,jitter=1h",
    ),
    "sensors": Preset(
        device="sensor",
        flops=1e8,
        spread=0.5,
        strata=8,
        memory=16e6,
        watts=0.3,
        idle_power=0.002,
        half_batch=0.0,
        links=(
            LinkKind("NB-IoT", 0.5, (20e3, 60e3), (20e3, 25e3), 1.5, 0.05, 0.7, 0.2),
            LinkKind("LTE-M", 0.3, (100e3, 375e3), (100e3, 300e3), 0.1, 0.03, 0.8, 0.25),
            LinkKind("gateway", 0.2, (100e3, 250e3), (100e3, 250e3), 0.05, 0.02, 0.1, 0.08),
        ),
        availability="markov:on=1h,off=3h",
        on_leave="pause",
    ),
    "hospitals": Preset(
        device="hospital",
        flops=4e12,
        spread=0.7,
        strata=10,
        memory=12e9,
        watts=250.0,
        idle_power=60.0,
        half_batch=16.0,
        links=(
            LinkKind("fibre", 0.7, (100e6, 500e6), (100e6, 900e6), 0.01, 0.0, 10.0, 10.0),
            LinkKind("DSL", 0.3, (10e6, 40e6), (50e6, 250e6), 0.03, 0.0, 10.0, 10.0),
        ),
        availability="markov:on=10d,off=4h",
        on_leave="pause",
    ),
}
"""Presets by name."""

TAIL = 1e-3
"""Speeds are drawn without the slowest and the fastest of a thousand."""


def sample(preset: str, clients: int, seed: int = 0) -> Fleet:
    """Return a fleet of plausible devices with a number of clients."""
    if preset not in PRESETS:
        raise ConfigError(unknown("fleet", preset, PRESETS))
    require(
        (clients >= 1, wrong_argument("clients", clients, "must be at least 1")),
        (seed >= 0, wrong_argument("seed", seed, "must not be negative")),
    )
    found, devices = PRESETS[preset], []
    strata, normal = found.strata, NormalDist(0, found.spread)
    places = uniform(fold(key(seed), "fleet", preset), strata, dtype=torch.float64).tolist()
    numbers = shared_out([round(1000 * link.share) for link in found.links], clients)
    for stratum, place in enumerate(places):
        faster = math.exp(normal.inv_cdf(min(max((stratum + place) / strata, TAIL), 1 - TAIL)))  # than the median
        for link, number in zip(found.links, numbers, strict=True):
            # The k-th of n clients is at (k + 1/2) / n of the range of speeds.
            if count := sum((2 * k + 1) * strata // (2 * number) == stratum for k in range(number)):
                devices.append(
                    Device(
                        f"{found.device} {stratum + 1}, {link.name}",
                        clients=count,
                        memory=int(_rounded(found.memory * faster, 2)),
                        flops=_rounded(found.flops * faster, 3),
                        power=link.power,
                        receive_power=link.receive_power,
                        capacitance=_rounded(found.watts * 1e-27, 3),  # watts at the default frequency of 1 GHz
                        up=Span(*link.up),
                        down=Span(*link.down),
                        latency=link.latency,
                        loss=link.loss,
                        half_batch=found.half_batch,
                        idle_power=found.idle_power,
                        availability=read_model(found.availability),
                        on_leave=found.on_leave,
                    )
                )
    return Fleet(tuple(devices))


def _rounded(value: float, digits: int) -> float:
    return float(f"{value:.{digits - 1}e}")
