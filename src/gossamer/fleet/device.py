"""Device types: memory, computing speed and radio.

To add a key to fleet files, add a field to ``Device`` and a line to ``KEYS``. The defaults describe a cell as in
studies of wireless learning (Chen et al., 2021, https://arxiv.org/abs/1909.07972, and its code).
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any, Literal, NamedTuple

import torch

from gossamer.core.errors import Mistakes, gather, require
from gossamer.core.random import Key, fold, uniform
from gossamer.core.specs import unknown
from gossamer.fleet.radio import Density, Fading, Link
from gossamer.fleet.units import (
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
    """A quantity that is drawn from the uniform distribution between two ends.

    Args:
        low: the smaller end, exclusive
        high: the larger end, inclusive
    """

    low: float
    high: float

    def __post_init__(self) -> None:
        ends = f"Span must have 0 <= low < high, got {self.low} to {self.high}"
        require((0 <= self.low < self.high < math.inf, ends))

    def __str__(self) -> str:
        return f"{self.low!r}..{self.high!r}"

    def drawn(self, key: Key) -> float:
        """Draw a value; the same key gives the same value."""
        return self.high - (self.high - self.low) * float(uniform(key, 1, dtype=torch.float64)[0])

    @property
    def least(self) -> float:
        """The smallest value that can be drawn."""
        return self.high - (self.high - self.low) * (1 - 2.0**-53)


# Readers of values in a fleet file; each raises ValueError for an invalid value.


def _count(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError("not a count")
    return value


def _name(value: object) -> str:
    if not isinstance(value, str) or not value.strip() or not value.isprintable():
        raise ValueError("not a name")
    return value


def _spread(read: Callable[..., float], zero: bool, value: object) -> float | Span:
    """Read a single value, which may be 0 if ``zero``, or a range, which may begin with 0."""
    if isinstance(value, Span):
        return value
    ends = split_range(value)
    return Span(*(read(end, zero=True) for end in ends)) if ends else read(value, zero=zero)


def _noise(value: object) -> float | Density | Span:
    """Read watts, a range of watts, or a density."""
    if isinstance(value, Density):
        return value
    density = str(value).endswith("/Hz") and split_range(value) is None
    return Density(read_density(value)) if density else _spread(read_power, False, value)


def _choice(*known: str) -> Callable[[object], str]:
    def read(value: object) -> str:
        if value not in known:
            raise ValueError("not one of these")
        return str(value)

    return read


class FileKey(NamedTuple):
    """A key of a fleet file: the reader of its value, and a description of valid values."""

    read: Callable[[object], Any]
    wanted: str


WATTS = 'watts such as 0.01, "10 mW" or "10 dBm"'

KEYS = {
    "name": FileKey(_name, "a text of one line"),
    "clients": FileKey(_count, "a whole number, at least 1"),
    "memory": FileKey(read_size, 'a whole number of bytes such as 64e6, "64 MB" or "2 GiB"'),
    "flops": FileKey(read_speed, 'operations per second such as 2e9 or "2 GFLOPS"'),
    "power": FileKey(partial(_spread, read_power, False), f'{WATTS}, or a range, "5..20 mW"'),
    "most_power": FileKey(read_power, WATTS),
    "down_bandwidth": FileKey(read_frequency, 'hertz such as 20e6 or "20 MHz"'),
    "down_power": FileKey(read_power, WATTS),
    "receive_power": FileKey(partial(read_power, zero=True), WATTS),
    "distance": FileKey(partial(_spread, read_length, False), 'metres such as 250, "0.25 km" or a range, "0..500 m"'),
    "exponent": FileKey(read_ratio, "a positive number such as 2"),
    "bandwidth": FileKey(
        partial(_spread, read_frequency, False), 'hertz such as 1e6, "1 MHz" or a range, "0.5..2 MHz"'
    ),
    "noise": FileKey(
        _noise, 'watts in the whole band such as 1e-14, a range, "10..20 fW", or a density, "-174 dBm/Hz"'
    ),
    "interference": FileKey(partial(_spread, read_power, True), 'watts such as 5e-8, "50 nW" or a range, "10..110 nW"'),
    "threshold": FileKey(
        partial(_spread, read_ratio, True), 'a ratio, at least 0, such as 1.08, "0.33 dB" or a range, "1..2"'
    ),
    "draw": FileKey(_choice("once", "round"), "once or round"),
    "frequency": FileKey(read_frequency, 'cycles per second such as 1e9 or "1 GHz"'),
    "capacitance": FileKey(read_ratio, "a positive number such as 1e-27"),
}

UNSAID = ("memory", "most_power", "down_bandwidth")
"""Keys without a default value."""


SENT = ("power", "distance", "bandwidth", "noise", "interference", "threshold", "exponent")
"""Fields of the uplink."""


@dataclass(frozen=True)
class Device:
    """A device type.

    Args:
        name: name in messages
        clients: number of clients with this device
        memory: bytes that training may take; none if unknown
        flops: floating-point operations per second
        power: transmit power in watts
        distance: distance to the server in metres
        bandwidth: bandwidth of the uplink in hertz
        noise: noise power in the whole band in watts, or noise density
        interference: interference power in the whole band in watts
        threshold: signal-to-noise ratio that a packet needs; with 0 no packet is lost
        exponent: path loss exponent
        draw: when ranges are drawn: once per client, or in every round
        frequency: processor cycles per second
        capacitance: effective capacitance of the processor: joules per cycle and squared frequency
        most_power: maximum transmit power in watts that a plan may set; none keeps the power
        down_bandwidth: bandwidth of the downlink in hertz; none for downloads that take neither time nor energy
        down_power: transmit power of the server's station in watts
        receive_power: power of the device's receiver in watts
    """

    name: str
    clients: int
    memory: int | None
    flops: float
    power: float | Span = 0.01
    distance: float | Span = Span(0.0, 500.0)
    bandwidth: float | Span = 1e6
    noise: float | Density | Span = 1e-14
    interference: float | Span = Span(1e-8, 1.1e-7)
    threshold: float | Span = 1.08
    exponent: float = 2.0
    draw: Literal["once", "round"] = "once"
    frequency: float = 1e9
    capacitance: float = 1e-27
    most_power: float | None = None
    down_bandwidth: float | None = None
    down_power: float = 1.0
    receive_power: float = 0.0

    def __post_init__(self) -> None:
        given = {name: value for name, value in vars(self).items() if value is not None or name not in UNSAID}
        values, mistakes = read(given)
        mistakes += [mistake(name, given[name]) for name, value in values.items() if value != given[name]]
        gather([f"Device.{text}" for text in mistakes] or [f"Device: {text}" for text in _clashes(self)])

    def seconds(self, flops: float) -> float:
        """Return the time for a number of operations."""
        require((flops >= 0, f"flops must not be negative, got {flops}"))
        return flops / self.flops

    def joules(self, seconds: float) -> float:
        """Return the energy of computing: capacitance times squared frequency per cycle."""
        return self.capacitance * self.frequency**2 * (self.frequency * seconds)

    def link(self, key: Key, fading: Fading = "power") -> Link:
        """Return the uplink; ranges are drawn with the key."""
        drawn = {name: span.drawn(fold(key, name)) for name, span in self.spans.items()}
        return Link(**{**self._sent, **drawn}, fading=fading)

    def downlink(self, up: Link) -> Link | None:
        """Return the downlink over the distance of an uplink, with its noise and interference; none if it is free."""
        if self.down_bandwidth is None:
            return None
        noise = self.noise if isinstance(self.noise, Density) else up.noise
        return replace(up, power=self.down_power, bandwidth=self.down_bandwidth, noise=noise)

    def weakest(self, fading: Fading = "power") -> Link:
        """Return the slowest uplink with the most losses within the ranges."""
        ends = {name: span.least if name in ("power", "bandwidth") else span.high for name, span in self.spans.items()}
        if isinstance(self.noise, Density) and isinstance(self.bandwidth, Span):
            ends["noise"] = self.noise.watts * self.bandwidth.high  # a wider band has more noise
        return Link(**{**self._sent, **ends}, fading=fading)

    def strongest(self) -> Link:
        """Return the uplink with the strongest signal within the ranges, at the maximum power."""
        ends = {name: span.least for name, span in self.spans.items()}
        return Link(**{**self._sent, **ends, "power": max(self.full_power, self.most_power or 0.0)})

    @property
    def full_power(self) -> float:
        """The maximum power, unless a plan sets more."""
        return self.power.high if isinstance(self.power, Span) else self.power

    @property
    def spans(self) -> dict[str, Span]:
        """Ranges by name."""
        return {name: value for name, value in self._sent.items() if isinstance(value, Span)}

    @property
    def _sent(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in SENT}


def _clashes(device: Device) -> list[str]:
    """Return contradictions between a device's values: impossible links at either end of its ranges."""
    power, most, found = device.full_power, device.most_power, Mistakes()
    if most is not None and most < power:
        found.note(f"most_power must be at least the power, {power:g} W, got {most:g}")
    found.attempt(device.strongest)
    found.attempt(device.weakest)
    return [text.removeprefix("Link: ") for text in found.found]


def read(entry: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return the valid values of one device entry, and the mistakes of the others."""
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
    """Return the message for an invalid value of a key."""
    return f"{name} must be {KEYS[name].wanted}, got {value!r}"
