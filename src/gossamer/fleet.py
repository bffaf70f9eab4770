"""Which devices the clients are: a file that says how many there are of each kind, and what they have.

    [[device]]
    name = "phone"
    clients = 60
    memory = "512 MB"
    flops = "8 GFLOPS"

Of the shares of a model that a client might train, it gets the largest whose training fits its memory. How much each
share needs is for others to say, :mod:`gossamer.memory` for one.

A new key of the file is a field of ``Device`` and a line in ``KEYS``.
"""

import json
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from fractions import Fraction
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from gossamer import files
from gossamer.capacity import SHARES, Needs, Shares, largest_share
from gossamer.errors import ConfigError, gather, require
from gossamer.specs import unknown
from gossamer.units import read_size, read_speed

# What a key may hold: each reads what the file says, and raises ValueError if it is nothing of the kind.


def _count(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError("not a count")
    return value


def _name(value: object) -> str:
    if not isinstance(value, str) or not value.strip() or not value.isprintable():
        raise ValueError("not a name")
    return value


class Key(NamedTuple):
    """A key of the file: how its value is read, and what it should be, in words."""

    read: Callable[[object], Any]
    wanted: str


KEYS = {
    "name": Key(_name, "a text of one line"),
    "clients": Key(_count, "a whole number from 1"),
    "memory": Key(read_size, 'a whole number of bytes such as 64e6, "64 MB" or "2 GiB"'),
    "flops": Key(read_speed, 'operations a second such as 2e9 or "2 GFLOPS"'),
}


@dataclass(frozen=True)
class Device:
    """A kind of device.

    name: what it is called, in messages too
    clients: how many clients are such devices
    memory: bytes that training may take
    flops: floating-point operations it does in a second
    """

    name: str
    clients: int
    memory: int
    flops: float

    def __post_init__(self) -> None:
        values, mistakes = _read({field.name: getattr(self, field.name) for field in fields(self)})
        wrong = [name for name, value in values.items() if value != getattr(self, name)]
        gather([f"Device.{text}" for text in mistakes + [_mistake(name, getattr(self, name)) for name in wrong]])

    def seconds(self, flops: float) -> float:
        """How long it takes to do so many operations."""
        require((flops >= 0, f"flops must not be negative, got {flops}"))
        return flops / self.flops


@dataclass(frozen=True)
class Fleet:
    """All kinds of devices.

    devices: the kinds, each with a name of its own
    """

    devices: tuple[Device, ...]

    def __post_init__(self) -> None:
        gather(_clashes([device.name for device in self.devices]))

    @classmethod
    def of_text(cls, path: str) -> "Fleet":
        """The fleet of a file, as a flag names it."""
        return cls.read(path)

    @classmethod
    def read(cls, path: str | Path) -> "Fleet":
        """The fleet of a file; every mistake in it is listed."""
        try:
            return cls(_devices(_table(Path(path))))
        except ConfigError as error:
            raise ConfigError(*(f"{path}: {mistake}" for mistake in error.mistakes)) from error

    def write(self, path: str | Path) -> None:
        """Make a file of the fleet, or replace one."""
        files.write(Path(path), "\n".join(map(_entry, self.devices)).encode())

    def device(self, client: int, clients: int) -> Device:
        """The device of a client, when there are so many clients.

        If the fleet has just so many devices, each kind has the clients it says. Else all numbers are scaled alike and
        rounded down, and the clients that are left go one each to the kinds that lost most, the earlier one of equals;
        so a rare kind may have none. The kinds take turns: each has its clients evenly spread over all numbers.
        """
        require((0 <= client < clients, f"client must be from 0 to {clients - 1}, got {client}"))
        return self.devices[_dealt(self._counts, clients)[client]]

    def memories(self, clients: int) -> tuple[int, ...]:
        """The memory of each client, in bytes."""
        return tuple(self.devices[kind].memory for kind in _dealt(self._counts, clients))

    def capacities(self, clients: int, needs: Needs, shares: Sequence[float] = SHARES) -> Shares:
        """For each client the largest share of the model that fits; refused if on any device not even one does."""
        needs, found = cache(needs), []
        mistakes: list[str] = []
        for device in self.devices:
            try:
                found.append(largest_share(device.memory, needs, shares, name=device.name))
            except ConfigError as error:
                mistakes += error.mistakes
        gather(list(dict.fromkeys(mistakes)))  # once, what is wrong for all devices alike
        return tuple(found[kind] for kind in _dealt(self._counts, clients))

    @property
    def _counts(self) -> tuple[int, ...]:
        return tuple(device.clients for device in self.devices)


@lru_cache
def _dealt(counts: tuple[int, ...], clients: int) -> tuple[int, ...]:
    """For each client the number of its kind; the k-th of n in a kind is (k + 1/2) / n of the way through."""
    require((clients >= 1, f"clients must be at least 1, got {clients}"))
    scaled = [count * clients for count in counts]
    dealt = [share // sum(counts) for share in scaled]
    lost = sorted(range(len(counts)), key=lambda kind: -(scaled[kind] % sum(counts)))
    for kind in lost[: clients - sum(dealt)]:
        dealt[kind] += 1
    places = [(Fraction(2 * k + 1, 2 * n), kind) for kind, n in enumerate(dealt) for k in range(n)]
    return tuple(kind for _, kind in sorted(places))


# The file.


def _table(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise ConfigError(f"is not TOML: {error}") from error


def _devices(table: Mapping[str, Any]) -> tuple[Device, ...]:
    mistakes = [unknown("key", key, ["device"]) for key in table if key != "device"]
    entries = table.get("device", [])
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise ConfigError(*mistakes, "device must be entries that begin with [[device]], in double brackets")
    found = []
    for number, entry in enumerate(entries, start=1):
        values, wrong = _read(entry)
        where = f"device {number} ({values['name']})" if "name" in values else f"device {number}"
        mistakes += [f"{where}: {text}" for text in wrong]
        found.append(values)
    gather(mistakes + _clashes([values.get("name") for values in found]))
    return tuple(Device(**values) for values in found)


def _clashes(names: Sequence[str | None]) -> list[str]:
    if not names:
        return ["a fleet must have a device: write an entry [[device]] for each kind"]
    twice = sorted({name for name in names if name is not None and names.count(name) > 1})
    return [f"two devices are called {name!r}: give each kind a name of its own" for name in twice]


def _read(entry: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """The values of one device that can be read, and what is wrong with the others."""
    needed = [field.name for field in fields(Device) if field.name not in vars(Device)]
    mistakes = [unknown("key", key, KEYS) for key in entry if key not in KEYS]
    mistakes += [f"{name} is missing: it must be {KEYS[name].wanted}" for name in needed if name not in entry]
    values = {}
    for name, key in KEYS.items():
        if name in entry:
            try:
                values[name] = key.read(entry[name])
            except ValueError:
                mistakes.append(_mistake(name, entry[name]))
    return values, mistakes


def _mistake(name: str, value: object) -> str:
    return f"{name} must be {KEYS[name].wanted}, got {value!r}"


def _entry(device: Device) -> str:
    values = {field.name: getattr(device, field.name) for field in fields(device)}
    # A printable text is written alike in JSON and in TOML.
    lines = [f"{name} = {json.dumps(value, ensure_ascii=False)}" for name, value in values.items()]
    return "\n".join(["[[device]]", *lines, ""])
