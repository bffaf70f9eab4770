"""Traces of other simulators, as files of this one.

FedScale's availability trace, ``client_behave_trace`` (Lai et al., 2022, https://arxiv.org/abs/2105.11367), is a pickle
of a dictionary. Each client has the lists ``active`` and ``inactive``, the seconds at which it comes and leaves, and
``finish_time``, after which they repeat.

FedScale's devices, ``client_device_capacity``, become a fleet. Each client has ``computation``, the milliseconds of
inference per sample, and ``communication``, the rate of both directions in kbit/s. FedScale takes three times the
inference for a training step, so the speed is the operations of a forward pass over its time. The file does not name
the model that was measured: ``sample_flops`` are the operations of its forward pass, by default those of MobileNetV2,
300 million multiply-adds. Half a million devices become at most ``SPEEDS`` times ``RATES`` types: groups of equal size,
by speed and then by rate. Each has the median speed of its group, and a range of rates.

FLASH's state traces, ``state_traces.json`` (Yang et al., 2021, https://arxiv.org/abs/2006.06983), are a JSON object.
Each device has ``messages``: lines with a time and a change of its state, separated by a tab:

    2020-01-29 23:49:18	battery_charged_on
    2020-01-29 23:51:02	wifi

As in FLASH, a device is available while it is locked, on Wi-Fi and charging, its times count from 2020-01-02, and the
trace repeats from its first to its last message. States that say nothing about this are left out and counted.

A pickle makes plain containers and numbers, and nothing else: no code of a pickle is called. Its operations are listed
before any is carried out, and only those of containers, texts and numbers are allowed. Of names, only those of NumPy's
numbers are, and they stand for objects of this module.
"""

import io
import pickle
import pickletools
import struct
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from gossamer.core.errors import ConfigError, require
from gossamer.core.files import parse_json
from gossamer.fleet.device import Device
from gossamer.fleet.fleet import Fleet
from gossamer.fleet.keys import Span
from gossamer.fleet.tables import content

__all__ = ["ConvertedTrace", "read_fedscale", "read_fedscale_capacity", "read_flash"]

Times = list[tuple[float, float]]
"""Starts and ends, in seconds."""


@dataclass
class ConvertedTrace:
    """The times of each client, which repeat after a period.

    Args:
        clients: times and period of each client, by name
        left_out: the number of clients that were left out, by reason
        notes: what else was left out, and how often
    """

    clients: dict[str, tuple[Times, float]] = field(default_factory=dict)
    left_out: Counter[str] = field(default_factory=Counter)
    notes: Counter[str] = field(default_factory=Counter)

    def add(self, name: str, times: Iterable[tuple[float, float]], period: float) -> None:
        """Add a client; a client without any time is left out."""
        if found := merged(times, period):
            self.clients[name] = (found, period)
        else:
            self.left_out["never available"] += 1

    def csv(self) -> str:
        """Return the content of an availability trace."""
        if not self.clients:
            reasons = ", ".join(f"{count} {reason}" for reason, count in self.left_out.items())
            raise ConfigError(f"no client of the trace is ever available: {reasons or 'it has no clients'}")
        lines = [
            f"{_quoted(name)},{_plain(start)},{_plain(end)},{_plain(period)}"
            for name, (times, period) in self.clients.items()
            for start, end in times
        ]
        return "\n".join(["client,start,end,repeat", *lines, ""])

    @property
    def share(self) -> float:
        """The mean share of time that a client is available."""
        shares = (sum(end - start for start, end in times) / period for times, period in self.clients.values())
        return sum(shares) / max(len(self.clients), 1)


def merged(times: Iterable[tuple[float, float]], period: float) -> Times:
    """Return times within a period, sorted, without overlaps and without those that end before they start."""
    found: Times = []
    for start, end in sorted((max(start, 0), min(end, period)) for start, end in times):
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(end, found[-1][1]))
        elif start < end:
            found.append((start, end))
    return found


def _plain(seconds: float) -> str:
    return str(int(seconds)) if seconds == int(seconds) else repr(float(seconds))


def _quoted(name: str) -> str:
    return '"{}"'.format(name.replace('"', '""')) if any(sign in name for sign in ',"#') else name


def read_fedscale(path: str | Path) -> ConvertedTrace:
    """Read a trace; clients without valid times are left out and counted."""
    trace = ConvertedTrace()
    for name, entry in entries(path, ("active", "inactive", "finish_time")).items():
        come, leave, period = entry["active"], entry["inactive"], entry["finish_time"]
        if not (_numbers(come) and _numbers(leave) and _numbers([period]) and period > 0):
            trace.left_out["without valid times"] += 1
            continue
        trace.add(name, zip(come, leave, strict=False), period)
    return trace


def entries(path: str | Path, keys: tuple[str, ...]) -> dict[str, dict[str, Any]]:
    """Return the entries of a pickle of FedScale by client; refuse a pickle whose entries lack a key."""
    try:
        found = read_pickle(content(path))
    except ConfigError as error:
        raise ConfigError(*(f"{path}: {text}" for text in error.mistakes)) from error
    plain = isinstance(found, dict) and all(isinstance(name, int | str) for name in found)
    fits = plain and all(isinstance(entry, dict) and {*keys} <= entry.keys() for entry in found.values())
    if not fits or not found:
        raise ConfigError(f"{path}: is not a dictionary of clients, each with {', '.join(keys)}")
    return {str(name): entry for name, entry in found.items()}


def _numbers(values: object) -> bool:
    return isinstance(values, list | tuple) and all(
        isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e12 for value in values
    )


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
    devices = []
    for nth, by_rate in enumerate(reversed(groups), start=1):
        for place, group in enumerate(by_rate, start=1):
            milliseconds, kbits = median(pair[0] for pair in group), [pair[1] for pair in group]
            low, high = (float(f"{1000 * end:.3g}") for end in (min(kbits), max(kbits)))
            rate = Span(low, high) if low < high else low
            speed = float(f"{sample_flops / (milliseconds / 1000):.3g}")
            devices.append(Device(f"device {nth}.{place}", len(group), None, speed, up=rate, down=rate))
    return Fleet(tuple(devices))


def _split(pairs: list[tuple[float, float]], count: int) -> list[list[tuple[float, float]]]:
    """Split a list into groups of equal size, without empty ones."""
    ends = [len(pairs) * k // count for k in range(count + 1)]
    return [pairs[start:end] for start, end in pairwise(ends) if start < end]


def _positive(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < 1e12


START = datetime(2020, 1, 2)
FORMAT = "%Y-%m-%d %H:%M:%S"

CHANGES = {
    "battery_charged_on": ("charging", True),
    "battery_charged_off": ("charging", False),
    "wifi": ("wifi", True),
    **dict.fromkeys(("unknown", "2g", "3g", "4g", "5g"), ("wifi", False)),
    "screen_lock": ("locked", True),
    "screen_unlock": ("locked", False),
}
"""What a state changes: a condition of being available, and its value."""


def read_flash(path: str | Path) -> ConvertedTrace:
    """Read a trace; devices without valid messages are left out and counted."""
    try:
        found = parse_json(content(path))
    except ValueError as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(f"{path}: is not JSON: {error}") from error
    if not isinstance(found, dict) or not found or not all(isinstance(entry, dict) for entry in found.values()):
        raise ConfigError(f"{path}: is not a JSON object of devices, each with messages")
    trace = ConvertedTrace()
    for name, entry in found.items():
        try:
            messages = list(_messages(str(entry.get("messages", ""))))
        except ValueError:
            trace.left_out["with a line that is not a time and a state"] += 1
            continue
        if not messages or messages[0][0] >= messages[-1][0]:
            trace.left_out["without messages at two times"] += 1
            continue
        trace.add(name, _available(messages, trace.notes), messages[-1][0] - messages[0][0])
    return trace


def _messages(text: str) -> Iterator[tuple[float, str]]:
    """Yield seconds from the start, and the state."""
    for line in filter(str.strip, text.split("\n")):
        time, state = line.strip().split("\t")
        yield (datetime.strptime(time.strip(), FORMAT) - START).total_seconds(), state.strip().lower()


def _available(messages: list[tuple[float, str]], notes: Counter[str]) -> Iterator[tuple[float, float]]:
    """Yield the times at which all conditions hold, within a period that begins with a multiple of its length."""
    period, since = messages[-1][0] - messages[0][0], None
    holds = {"charging": False, "wifi": False, "locked": False}
    for time, state in messages:
        if state in CHANGES:
            condition, value = CHANGES[state]
            holds[condition] = value
        elif not (state.endswith("%") or state in ("screen_on", "screen_off")):
            notes[f"state {state[:40]!r}"] += 1
        if all(holds.values()) and since is None:
            since = time
        elif since is not None and not all(holds.values()):
            start, length = since % period, time - since
            yield start, start + length
            yield 0.0, start + length - period  # what reaches into the next period
            since = None


LARGEST = 2**30
"""The largest size of a pickle in bytes."""

OPERATIONS = frozenset(
    {
        *("PROTO", "FRAME", "STOP", "MARK", "POP_MARK", "MEMOIZE", "PUT", "BINPUT", "LONG_BINPUT"),
        *("GET", "BINGET", "LONG_BINGET", "EMPTY_DICT", "EMPTY_LIST", "EMPTY_TUPLE", "DICT", "LIST", "TUPLE", "TUPLE1"),
        *("TUPLE2", "TUPLE3", "SETITEM", "SETITEMS", "APPEND", "APPENDS", "NONE", "NEWTRUE", "NEWFALSE", "INT"),
        *("BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT", "STRING", "BINSTRING"),
        *("SHORT_BINSTRING", "UNICODE", "SHORT_BINUNICODE", "BINUNICODE", "BINBYTES", "SHORT_BINBYTES"),
        *("GLOBAL", "STACK_GLOBAL", "REDUCE", "BUILD"),
    }
)
REMEMBERED = frozenset(("PUT", "BINPUT", "LONG_BINPUT"))
FORMATS = {"f8": "<d", "f4": "<f", "i8": "<q", "i4": "<i", "i2": "<h", "i1": "<b", "u8": "<Q", "u4": "<I", "u2": "<H"}


class _Kind:
    """The data type of a NumPy number."""

    __slots__ = ("code",)

    def __init__(self, code: object) -> None:
        self.code = code

    def __setstate__(self, state: object) -> None:
        """Refuse another byte order."""
        if not isinstance(state, tuple) or len(state) < 2 or state[1] not in ("<", "|"):
            raise ValueError("a number of NumPy in another byte order")


class _Function:
    """Stands for a function of a pickle. It has no state that a pickle could change."""

    __slots__ = ()

    def __setstate__(self, state: object) -> None:
        raise ValueError("an object that is no container or number")


class _Dtype(_Function):
    __slots__ = ()

    def __call__(self, code: object, *rest: object) -> _Kind:
        return _Kind(code)


class _Scalar(_Function):
    __slots__ = ()

    def __call__(self, kind: object, data: object) -> float:
        if not isinstance(kind, _Kind) or kind.code not in FORMATS or not isinstance(data, bytes | str):
            raise ValueError("a number of NumPy of an unknown type")
        raw = data.encode("latin1") if isinstance(data, str) else data
        number: float = struct.unpack(FORMATS[str(kind.code)], raw)[0]
        return number


class _Encode(_Function):
    __slots__ = ()

    def __call__(self, text: object, encoding: object = "latin1") -> bytes:
        if not isinstance(text, str) or encoding != "latin1":
            raise ValueError("bytes in an unknown encoding")
        return text.encode("latin1")


NAMES: dict[tuple[str, str], _Function] = {
    ("numpy", "dtype"): _Dtype(),
    ("numpy.core.multiarray", "scalar"): _Scalar(),
    ("numpy._core.multiarray", "scalar"): _Scalar(),
    ("_codecs", "encode"): _Encode(),
}


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        """Return what stands for a name, and refuse all but a few."""
        if (module, name) not in NAMES:
            raise ValueError(f"it names {module}.{name}")
        return NAMES[module, name]


def read_pickle(data: bytes) -> Any:
    """Return the containers and numbers of a pickle; raise ``ConfigError`` for anything else."""
    if len(data) > LARGEST:
        raise ConfigError(f"it has {len(data):,} bytes, more than the {LARGEST:,} that are read")
    try:
        for count, (operation, argument, _) in enumerate(pickletools.genops(data)):
            if operation.name not in OPERATIONS:
                raise ValueError(f"it has the operation {operation.name}")
            # A place far beyond the number of operations would make the table of places take all memory.
            if operation.name in REMEMBERED and not 0 <= int(argument or 0) <= count:
                raise ValueError(f"it has more places in memory than operations: {argument}")
        return _Unpickler(io.BytesIO(data), encoding="latin1").load()
    except Exception as error:  # a damaged pickle fails in many ways
        cause = str(error) or type(error).__name__
        raise ConfigError(f"is not a pickle of containers and numbers alone: {cause}") from error
