"""FedScale's devices, ``client_device_capacity`` (Lai et al., 2022, https://arxiv.org/abs/2105.11367), as a fleet.

It is a pickle of a dictionary. Each client has ``computation``, the milliseconds of inference per sample, and
``communication``, the rate of both directions in kbit/s. FedScale takes three times the inference for a training step,
so the speed is the operations of a forward pass over its time. The file does not name the model that was measured:
``sample_flops`` are the operations of its forward pass, by default those of MobileNetV2, 300 million multiply-adds.

Half a million devices become at most ``SPEEDS`` times ``RATES`` types: groups of equal size, by speed and then by rate.
Each has the median speed of its group, and a range of rates.
"""

from itertools import pairwise
from pathlib import Path
from statistics import median

from gossamer.core.errors import ConfigError, require
from gossamer.fleet.converters.fedscale import entries
from gossamer.fleet.device import Device
from gossamer.fleet.fleet import Fleet
from gossamer.fleet.keys import Span

SPEEDS, RATES = 10, 3
SAMPLE_FLOPS = 6e8


def read_fedscale_capacity(path: str | Path, sample_flops: float = SAMPLE_FLOPS) -> Fleet:
    """Read the devices; those without a positive speed and rate are left out."""
    require((0 < sample_flops < 1e18, f"sample_flops must be positive, got {sample_flops}"))
    found = [
        (float(entry["computation"]), float(entry["communication"]))
        for entry in entries(path, ("computation", "communication")).values()
        if _positive(entry["computation"]) and _positive(entry["communication"])
    ]
    if not found:
        raise ConfigError(f"{path}: has no device with a positive speed and rate")
    groups = [_split(sorted(group, key=lambda pair: pair[1]), RATES) for group in _split(sorted(found), SPEEDS)]
    devices = [
        _device(f"device {speed}.{rate}", group, sample_flops)
        for speed, by_rate in enumerate(reversed(groups), start=1)
        for rate, group in enumerate(by_rate, start=1)
    ]
    return Fleet(tuple(devices))


def _device(name: str, group: list[tuple[float, float]], sample_flops: float) -> Device:
    milliseconds, kbits = median(pair[0] for pair in group), [pair[1] for pair in group]
    low, high = (float(f"{1000 * end:.3g}") for end in (min(kbits), max(kbits)))
    rate = Span(low, high) if low < high else low
    speed = float(f"{sample_flops / (milliseconds / 1000):.3g}")
    return Device(name, len(group), None, speed, up=rate, down=rate)


def _split(pairs: list[tuple[float, float]], count: int) -> list[list[tuple[float, float]]]:
    """Split a list into groups of equal size, without empty ones."""
    ends = [len(pairs) * k // count for k in range(count + 1)]
    return [pairs[start:end] for start, end in pairwise(ends) if start < end]


def _positive(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < 1e12
