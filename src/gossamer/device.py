"""A kind of device: what it can hold, how fast it computes, and how it sends.

A new key of a fleet's file is a field of ``Device`` and a line in ``KEYS``. Of a key that is left out, the default is
that of a cell as studies of wireless learning have it (Chen et al., 2021, and the code to it).
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from functools import partial
from typing import Any, Literal, NamedTuple

import torch

from gossamer.errors import gather, require
from gossamer.radio import Density, Fading, Link
from gossamer.random import Key as Seed
from gossamer.random import fold, uniform
from gossamer.specs import unknown
from gossamer.units import (
    read_density,
    read_frequency,
    read_length,
    read_power,
    read_ratio,
    read_size,
    read_speed,
    split_range,
)


@dataclass(frozen=True)
class Span:
    """A quantity that is drawn, with equal chances for all values between two ends.

    low: the smaller end, which is itself not drawn
    high: the larger end
    """

    low: float
    high: float

    def __post_init__(self) -> None:
        ends = f"Span must go up from a number that is not negative, got {self.low} to {self.high}"
        require((0 <= self.low < self.high < math.inf, ends))

    def __str__(self) -> str:
        return f"{self.low!r}..{self.high!r}"

    def drawn(self, key: Seed) -> float:
        """One value; the same for the same key."""
        return self.high - (self.high - self.low) * float(uniform(key, 1, dtype=torch.float64)[0])


# What a key may hold: each reads what the file says, and raises ValueError if it is nothing of the kind.


def _count(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError("not a count")
    return value


def _name(value: object) -> str:
    if not isinstance(value, str) or not value.strip() or not value.isprintable():
        raise ValueError("not a name")
    return value


def _spread(read: Callable[..., float], zero: bool, value: object) -> float | Span:
    """A fixed value, which may be 0 if that is said, or a range, which may begin with 0."""
    if isinstance(value, Span):
        return value
    ends = split_range(value)
    return Span(*(read(end, zero=True) for end in ends)) if ends else read(value, zero=zero)


def _noise(value: object) -> float | Density:
    if isinstance(value, Density):
        return value
    return Density(read_density(value)) if str(value).endswith("/Hz") else read_power(value)


def _choice(*known: str) -> Callable[[object], str]:
    def read(value: object) -> str:
        if value not in known:
            raise ValueError("not one of these")
        return str(value)

    return read


class Key(NamedTuple):
    """A key of the file: how its value is read, and what it should be, in words."""

    read: Callable[[object], Any]
    wanted: str


WATTS = 'watts such as 0.01, "10 mW" or "10 dBm"'

KEYS = {
    "name": Key(_name, "a text of one line"),
    "clients": Key(_count, "a whole number from 1"),
    "memory": Key(read_size, 'a whole number of bytes such as 64e6, "64 MB" or "2 GiB"'),
    "flops": Key(read_speed, 'operations a second such as 2e9 or "2 GFLOPS"'),
    "power": Key(read_power, WATTS),
    "most_power": Key(read_power, WATTS),
    "distance": Key(partial(_spread, read_length, False), 'metres such as 250, "0.25 km" or a range, "0..500 m"'),
    "exponent": Key(read_ratio, "a positive number such as 2"),
    "bandwidth": Key(read_frequency, 'hertz such as 1e6 or "1 MHz"'),
    "noise": Key(_noise, 'watts in the whole band such as 1e-14, or a density such as "-174 dBm/Hz"'),
    "interference": Key(partial(_spread, read_power, True), 'watts such as 5e-8, "50 nW" or a range, "10..110 nW"'),
    "threshold": Key(partial(read_ratio, zero=True), 'a ratio from 0 such as 1.08 or "0.33 dB"'),
    "draw": Key(_choice("once", "round"), "once or round"),
    "frequency": Key(read_frequency, 'cycles a second such as 1e9 or "1 GHz"'),
    "capacitance": Key(read_ratio, "a positive number such as 1e-27"),
}

UNSAID = ("memory", "most_power")
"""Keys without which nothing is assumed."""


@dataclass(frozen=True)
class Device:
    """A kind of device.

    name: what it is called, in messages too
    clients: how many clients are such devices
    memory: bytes that training may take; none: it is not known
    flops: floating-point operations it does in a second
    power: what it sends with, in watts
    distance: how far it sends, in metres
    bandwidth: of its uplink, in hertz
    noise: in the whole band, in watts; or its density
    interference: in the whole band, in watts
    threshold: the ratio of what arrives to what disturbs it that a packet needs; with 0 none is lost
    exponent: power falls with the distance to this power
    draw: when ranges of distance and interference are drawn: once for each client, or anew each round
    frequency: cycles of its processor in a second
    capacitance: effective, of its processor: joules a cycle and squared frequency
    most_power: the most that power may be set to, in watts; none: it stays as it is
    """

    name: str
    clients: int
    memory: int | None
    flops: float
    power: float = 0.01
    distance: float | Span = Span(0.0, 500.0)
    bandwidth: float = 1e6
    noise: float | Density = 1e-14
    interference: float | Span = Span(1e-8, 1.1e-7)
    threshold: float = 1.08
    exponent: float = 2.0
    draw: Literal["once", "round"] = "once"
    frequency: float = 1e9
    capacitance: float = 1e-27
    most_power: float | None = None

    def __post_init__(self) -> None:
        given = {name: value for name, value in vars(self).items() if value is not None or name not in UNSAID}
        values, mistakes = read(given)
        mistakes += [mistake(name, given[name]) for name, value in values.items() if value != given[name]]
        gather([f"Device.{text}" for text in mistakes])

    def seconds(self, flops: float) -> float:
        """How long it takes to do so many operations."""
        require((flops >= 0, f"flops must not be negative, got {flops}"))
        return flops / self.flops

    def joules(self, seconds: float) -> float:
        """What computing for so long takes: capacitance times squared frequency, for each of the cycles."""
        return self.capacitance * self.frequency**2 * (self.frequency * seconds)

    def link(self, key: Seed, fading: Fading = "power") -> Link:
        """Its uplink; what is a range is drawn, by the key alone."""
        distance, interference = (
            value.drawn(fold(key, name)) if isinstance(value, Span) else value
            for name, value in (("distance", self.distance), ("interference", self.interference))
        )
        return Link(
            self.power, distance, self.bandwidth, self.noise, interference, self.threshold, fading, self.exponent
        )


def read(entry: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """The values of one device that can be read, and what is wrong with the others."""
    needed = [field.name for field in fields(Device) if field.name not in vars(Device) and field.name not in UNSAID]
    mistakes = [unknown("key", key, KEYS) for key in entry if key not in KEYS]
    mistakes += [f"{name} is missing: it must be {KEYS[name].wanted}" for name in needed if name not in entry]
    values = {}
    for name, key in KEYS.items():
        if name in entry:
            try:
                values[name] = key.read(entry[name])
            except ValueError:
                mistakes.append(mistake(name, entry[name]))
    return values, mistakes


def mistake(name: str, value: object) -> str:
    """What to say of a value that a key cannot have."""
    return f"{name} must be {KEYS[name].wanted}, got {value!r}"
