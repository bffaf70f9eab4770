"""The keys of a device entry in a fleet file: how each value is read, and what a valid one is."""

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch

from gossamer.core.errors import require
from gossamer.core.random import Key, uniform
from gossamer.core.specs import texts, written
from gossamer.fleet.availability import AvailabilityModel, AvailabilityTrace, read_model
from gossamer.fleet.links import RateTrace
from gossamer.fleet.radio import Density
from gossamer.fleet.units import (
    DURATIONS,
    FREQUENCIES,
    LENGTHS,
    NONE,
    POWERS,
    RATES,
    SIZES,
    SPEEDS,
    Units,
    range_with_unit,
    read_density,
    read_frequency,
    read_length,
    read_power,
    read_rate,
    read_ratio,
    read_seconds,
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
        return self.written(None)

    def written(self, units: Units | None) -> str:
        """Return the range as a fleet file has it."""
        return range_with_unit(self.low, self.high, units or NONE)

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


def _trace(value: object) -> RateTrace:
    """Read the path of a rate trace."""
    if isinstance(value, RateTrace):
        return value
    if not isinstance(value, str) or not value:
        raise ValueError("not a path")
    return RateTrace.read(value)


def _model(value: object) -> AvailabilityModel:
    """Read an availability model."""
    if isinstance(value, AvailabilityModel):
        return value
    if not isinstance(value, str):
        raise ValueError("not a text")
    return read_model(value)


def _number(allowed: Callable[[float], bool], value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not allowed(value):
        raise ValueError("out of range")
    return float(value)


class FileKey(NamedTuple):
    """A key of a fleet file.

    Args:
        read: the reader of its value
        wanted: a description of valid values
        explains: whether the reader's own errors are shown, in place of the description
        units: units with which a value is written
    """

    read: Callable[[object], Any]
    wanted: str
    explains: bool = False
    units: Units | None = None


RATE = 'bits per second such as 1e6, "1 Mbit/s" or a range, "1..10 Mbit/s"'
TRACE = "the path of a file with a rate trace"
WATTS = 'watts such as 0.01, "10 mW" or "10 dBm"'

KEYS = {
    "name": FileKey(_name, "a text of one line"),
    "clients": FileKey(_count, "a whole number, at least 1"),
    "memory": FileKey(read_size, 'a whole number of bytes such as 64e6, "64 MB" or "2 GiB"', units=SIZES),
    "flops": FileKey(read_speed, 'operations per second such as 2e9 or "2 GFLOPS"', units=SPEEDS),
    "power": FileKey(partial(_spread, read_power, False), f'{WATTS}, or a range, "5..20 mW"', units=POWERS),
    "most_power": FileKey(read_power, WATTS, units=POWERS),
    "down_bandwidth": FileKey(read_frequency, 'hertz such as 20e6 or "20 MHz"', units=FREQUENCIES),
    "down_power": FileKey(read_power, WATTS, units=POWERS),
    "receive_power": FileKey(partial(read_power, zero=True), WATTS, units=POWERS),
    "distance": FileKey(
        partial(_spread, read_length, False), 'metres such as 250, "0.25 km" or a range, "0..500 m"', units=LENGTHS
    ),
    "exponent": FileKey(read_ratio, "a positive number such as 2"),
    "bandwidth": FileKey(
        partial(_spread, read_frequency, False),
        'hertz such as 1e6, "1 MHz" or a range, "0.5..2 MHz"',
        units=FREQUENCIES,
    ),
    "noise": FileKey(
        _noise, 'watts in the whole band such as 1e-14, a range, "10..20 fW", or a density, "-174 dBm/Hz"'
    ),
    "interference": FileKey(partial(_spread, read_power, True), 'watts such as 5e-8, "50 nW" or a range, "10..110 nW"'),
    "threshold": FileKey(
        partial(_spread, read_ratio, True), 'a ratio, at least 0, such as 1.08, "0.33 dB" or a range, "1..2"'
    ),
    "draw": FileKey(_choice("once", "round"), "once or round"),
    "frequency": FileKey(read_frequency, 'cycles per second such as 1e9 or "1 GHz"', units=FREQUENCIES),
    "capacitance": FileKey(read_ratio, "a positive number such as 1e-27"),
    "up": FileKey(partial(_spread, read_rate, False), RATE, units=RATES),
    "down": FileKey(partial(_spread, read_rate, False), RATE, units=RATES),
    "up_trace": FileKey(_trace, TRACE, explains=True),
    "down_trace": FileKey(_trace, TRACE, explains=True),
    "latency": FileKey(partial(read_seconds, zero=True), 'seconds such as 0.05 or "50 ms"', units=DURATIONS),
    "loss": FileKey(partial(_number, lambda x: 0 <= x < 1), "a probability, at least 0 and below 1"),
    "half_batch": FileKey(partial(_number, lambda x: 0 <= x < math.inf), "a number of samples, at least 0"),
    "idle_power": FileKey(partial(read_power, zero=True), WATTS, units=POWERS),
    "availability": FileKey(
        _model,
        'always, "markov:on=10min,off=30min", "daily:from=22h,to=7h,zones=-5+0+1+8" or "trace:FILE"',
        explains=True,
    ),
    "on_leave": FileKey(_choice("lost", "pause"), "lost or pause"),
}

RADIO = (
    ("up", ("distance", "bandwidth", "noise", "interference", "threshold", "exponent", "most_power")),
    ("down", ("down_bandwidth", "down_power")),
)
"""Keys of a radio link, which a rate or a trace in that direction replaces."""


def contradictions(given: Collection[str]) -> list[str]:
    """Return the mistakes of keys that exclude each other."""
    found = []
    for rate, radio in RADIO:
        trace = f"{rate}_trace"
        found += [f"{rate} and {trace} both give the rate: choose one"] if {rate, trace} <= {*given} else []
        if names := [name for name in (rate, trace) if name in given]:
            rule = f"describes a radio link, but {names[0]} gives the rate: leave one out"
            found += [f"{name} {rule}" for name in radio if name in given]
    fixed = {"up", "up_trace"} & {*given}
    if "loss" in given and not fixed:
        found.append("loss needs up or up_trace: the losses of a radio link follow from threshold")
    if fixed and "down_bandwidth" in given:
        found.append("down_bandwidth needs a radio link up: write down for the rate of downloads")
    return found


def located(entry: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Return an entry whose paths are relative to a folder, with full paths."""
    named = [(name, entry.get(name)) for name in ("up_trace", "down_trace")]
    paths = {name: str(folder / path) for name, path in named if isinstance(path, str) and path}
    model = entry.get("availability")
    if isinstance(model, str) and model.startswith("trace:"):
        fields = texts(model.removeprefix("trace:"), AvailabilityTrace)
        full = [written(name, str(folder / value) if name == "file" else value) for name, value in fields]
        paths["availability"] = f"trace:{','.join(full)}"
    return {**entry, **paths}
