"""Device types: memory, computing speed and links.

To add a key to fleet files, add a field to ``Device`` and a line to ``KEYS``. The defaults describe a cell as in
studies of wireless learning (Chen et al., 2021, https://arxiv.org/abs/1909.07972, and its code).
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, NamedTuple

from gossamer.core.errors import ConfigError, Mistakes, gather, require
from gossamer.core.random import Key, fold
from gossamer.core.specs import unknown
from gossamer.fleet.availability import AlwaysAvailable, AvailabilityModel, AvailabilityTrace
from gossamer.fleet.keys import KEYS, Span, contradictions
from gossamer.fleet.links import FixedRate, RateTrace, Transfer
from gossamer.fleet.radio import Density, Fading, Link, outage, rate

UNSAID = ("memory", "most_power", "down_bandwidth", "up", "down", "up_trace", "down_trace")
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
        up: rate of uploads in bits per second, in place of a radio link
        down: rate of downloads in bits per second
        up_trace: rate of uploads over time
        down_trace: rate of downloads over time
        latency: seconds that each transfer takes in addition
        loss: probability that an upload with a rate or a trace is lost
        half_batch: batch size with which training has half of the speed; 0 if the speed does not depend on it
        idle_power: power in watts of a device that has finished, and waits for the end of the round
        availability: when clients are available
        on_leave: what a client's work becomes when it leaves: it is lost, or goes on when the client is back (pause)
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
    up: float | Span | None = None
    down: float | Span | None = None
    up_trace: RateTrace | None = None
    down_trace: RateTrace | None = None
    latency: float = 0.0
    loss: float = 0.0
    half_batch: float = 0.0
    idle_power: float = 0.0
    availability: AvailabilityModel = AlwaysAvailable()
    on_leave: Literal["lost", "pause"] = "lost"

    def __post_init__(self) -> None:
        given = {name: value for name, value in vars(self).items() if value is not None or name not in UNSAID}
        values, mistakes = read(given)
        mistakes += [mistake(name, given[name]) for name, value in values.items() if value != given[name]]
        gather([f"Device.{text}" for text in mistakes] or [f"Device: {text}" for text in _clashes(self)])

    def seconds(self, flops: float, batch: float = 0.0) -> float:
        """Return the time for a number of operations, in batches of a size; 0 if that is not known."""
        require((flops >= 0, f"flops must not be negative, got {flops}"))
        slower = 1 + self.half_batch / batch if batch else 1.0
        return flops / self.flops * slower

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

    def rate(self, up: bool, key: Key) -> Transfer | None:
        """Return the rate or the trace of one direction, with ranges drawn by the key; none if there is neither."""
        trace, rate = (self.up_trace, self.up) if up else (self.down_trace, self.down)
        if trace is not None or rate is None:
            return trace
        return FixedRate(rate.drawn(fold(key, "up" if up else "down")) if isinstance(rate, Span) else rate)

    def sending_power(self, key: Key) -> float:
        """Return the transmit power; a range is drawn with the key."""
        return self.power.drawn(fold(key, "power")) if isinstance(self.power, Span) else self.power

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
    def radio(self) -> bool:
        """Whether uploads go over a radio link."""
        return self.up is None and self.up_trace is None

    @property
    def drawn(self) -> bool:
        """Whether a link depends on a seed."""
        return bool(self.spans) or any(isinstance(rate, Span) for rate in (self.up, self.down))

    @property
    def traces(self) -> list[str]:
        """Digests of the files that the device names."""
        found: list[object] = [self.up_trace, self.down_trace, self.availability]
        return [repr(trace) for trace in found if isinstance(trace, RateTrace | AvailabilityTrace)]

    @property
    def changed(self) -> list[str]:
        """The names of fields that differ from their defaults."""
        return [f.name for f in fields(self) if f.name in vars(Device) and getattr(self, f.name) != f.default]

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
    found.note(*contradictions(device.changed))
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
            except ValueError as error:
                shown = isinstance(error, ConfigError) and key.explains
                mistakes += [f"{name}: {error}" if shown else mistake(name, entry[name])]
    return values, mistakes


def mistake(name: str, value: object) -> str:
    """Return the message for an invalid value of a key."""
    return f"{name} must be {KEYS[name].wanted}, got {value!r}"


class Terminal(NamedTuple):
    """The device and the links of one client.

    Args:
        device: the device
        up: the uplink
        loss: the probability that an upload is lost
        power: the watts of sending
        down: the downlink; none if downloads are free
    """

    device: Device
    up: Transfer
    loss: float
    power: float
    down: Transfer | None


def connect(device: Device, key: Key, fading: Fading = "power", power: float | None = None) -> Terminal:
    """Return the links of a client. Ranges are drawn with the key; ``power`` replaces that of a radio link."""
    up, down = device.rate(True, key), device.rate(False, key)
    if up is not None:
        return Terminal(device, up, device.loss, device.sending_power(key), down)
    radio = device.link(key, fading)
    if down is None and (below := device.downlink(radio)) is not None:
        down = FixedRate(rate(below))
    link = radio if power is None else replace(radio, power=power)
    return Terminal(device, FixedRate(rate(link)), outage(link), link.power, down)
