"""The devices of all clients, from a file with the number and properties of each device type.

    [[device]]
    name = "phone"
    clients = 60
    memory = "512 MB"
    flops = "8 GFLOPS"
    power = "10 mW"
    distance = "0..500 m"

A client trains the largest candidate fraction of the model that fits its memory. ``gossamer.tasks.memory`` computes the
memory of each fraction. ``gossamer.fleet.radio`` computes radio links, ``gossamer.fleet.availability`` the times at
which clients are available. Paths in a fleet file are relative to it.
"""

import hashlib
import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cache, cached_property, lru_cache
from pathlib import Path
from typing import Any

from gossamer.core import files
from gossamer.core.errors import ConfigError, gather, require
from gossamer.core.random import Key, fold
from gossamer.core.specs import unknown
from gossamer.fleet import device as kinds
from gossamer.fleet.availability import AvailabilityModel, AvailabilityTrace
from gossamer.fleet.capacity import SHARES, Capacities, Needs, Room, Shares, largest_share
from gossamer.fleet.device import Device
from gossamer.fleet.keys import KEYS, Span, contradictions, located
from gossamer.fleet.links import RateTrace
from gossamer.fleet.radio import Density, Fading, Link
from gossamer.fleet.units import with_unit

__all__ = ["AIR", "PHONES", "Device", "Fleet", "Span"]

SAMPLE, SAMPLED = "sample:", 1000
"""The beginning of the text of a drawn fleet, and its number of clients, which a run scales to its own."""

AIR = "for links alone name the fleet in the channel: --channel wireless:FILE or fleet:FILE"
"""Advice for a fleet that only describes links, without an effect on the method."""


@dataclass(frozen=True)
class Fleet:
    """A fleet of devices.

    Args:
        devices: the device types, with unique names
    """

    devices: tuple[Device, ...]
    source: str = field(default="", init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        gather(_clashes([device.name for device in self.devices]))

    @classmethod
    def of_text(cls, text: str) -> "Fleet":
        """Read the fleet of a file; with a digest as in ``to_text``, refuse a file that has changed.

        ``phones`` is the fleet ``PHONES``, and ``sample:NAME`` a fleet of plausible devices, as ``sample`` draws it.
        """
        if text == PHONES.source:
            return PHONES
        if text.startswith(SAMPLE):
            return cls.sample(text.removeprefix(SAMPLE), SAMPLED)._from(text)
        digest = match[0] if (match := re.search("@[0-9a-f]{16}$", text)) else ""
        path = text.removesuffix(digest)
        fleet = cls.read(path)
        what = f"{path}, or a trace that it names," if any(device.traces for device in fleet.devices) else path
        changed = f"{what} was changed since the run was started: put it back as it was, or start a new run"
        require((fleet.source.endswith(digest), changed))
        return fleet

    def to_text(self) -> str:
        """Return the path and a digest of the file; without a file, the content."""
        return self.source or repr(self)

    @classmethod
    def read(cls, path: str | Path) -> "Fleet":
        """Read a fleet from a file; list all mistakes."""
        try:
            content = Path(path).read_bytes()
            table = tomllib.loads(content.decode())
        except OSError as error:
            raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
        except ValueError as error:
            raise ConfigError(f"{path}: is not TOML: {error}") from error
        try:
            fleet = cls(_devices(table, Path(path).resolve().parent))
        except ConfigError as error:
            raise ConfigError(*(f"{path}: {mistake}" for mistake in error.mistakes)) from error
        traces = "".join(dict.fromkeys(text for device in fleet.devices for text in device.traces))
        digest = hashlib.sha256(content + traces.encode()).hexdigest()[:16]
        return fleet._from(f"{Path(path).resolve()}@{digest}")

    def _from(self, source: str) -> "Fleet":
        """Note where a new fleet is from, and return it."""
        object.__setattr__(self, "source", source)  # the dataclass is frozen, but not in use yet
        return self

    @classmethod
    def sample(cls, preset: str, clients: int, seed: int = 0) -> "Fleet":
        """Return a fleet of plausible devices: ``phones``, ``sensors`` or ``hospitals``."""
        from gossamer.fleet.presets import sample  # imported here: presets are made of fleets

        return sample(preset, clients, seed)

    def write(self, path: str | Path, comment: str = "") -> None:
        """Write the fleet to a file, after a comment.

        Paths of traces are relative to the file where they are in its folder or below.
        """
        folder = Path(path).resolve().parent
        lines = [f"# {line}".rstrip() for line in comment.splitlines()]
        for device in self.devices:
            lines += [*([""] if lines else []), "[[device]]"]
            for name in ("name", "clients", "memory", "flops", *device.changed):
                if (value := getattr(device, name)) is not None:
                    # Printable text has the same syntax in JSON and TOML.
                    lines.append(f"{name} = {json.dumps(_plain(name, value, folder), ensure_ascii=False)}")
        files.write(Path(path), "\n".join([*lines, ""]).encode())

    def device(self, client: int, clients: int) -> Device:
        """Return the device of a client, given the number of clients.

        If that is the fleet's own number, each type has its stated number of clients. Otherwise all numbers are scaled
        and rounded down. Remaining clients go to the types with the largest remainders, earlier types first, so a rare
        type may have none. Each type is spread evenly over the client numbers.
        """
        require((0 <= client < clients, f"client must be from 0 to {clients - 1}, got {client}"))
        return self.devices[_dealt(self._counts, clients)[client]]

    def link(self, client: int, clients: int, round: int, key: Key, fading: Fading = "power") -> Link:
        """Return the uplink of a client in a round; ranges are drawn with the run's key."""
        return self.device(client, clients).link(self.link_key(client, clients, round, key), fading)

    def link_key(self, client: int, clients: int, round: int, key: Key) -> Key:
        """Return the key with which ranges of a client's links are drawn in a round."""
        at = fold(key, "link", client)
        return at if self.device(client, clients).draw == "once" else fold(at, round)

    def downlink(self, client: int, clients: int, round: int, key: Key, fading: Fading = "power") -> Link | None:
        """Return the downlink of a client in a round, at the position of its uplink; none if downloads are free."""
        return self.device(client, clients).downlink(self.link(client, clients, round, key, fading))

    def memories(self, clients: int) -> tuple[int, ...]:
        """Return the memory of each client in bytes; raise if one is unknown."""
        gather([_unknown_memory(device) for device in self.devices if device.memory is None])
        return tuple(self.devices[kind].memory or 0 for kind in _dealt(self._counts, clients))

    def capacities(self, clients: int, needs: Needs, shares: Sequence[float] = SHARES) -> Shares:
        """Return the largest fraction of the model that fits each client; raise if none fits a device."""
        needs, found = cache(needs), []
        mistakes: list[str] = []
        for device in self.devices:
            if device.memory is None:
                mistakes.append(_unknown_memory(device))
                continue
            try:
                found.append(largest_share(device.memory, needs, shares, name=device.name))
            except ConfigError as error:
                mistakes += error.mistakes
        gather(list(dict.fromkeys(mistakes)))  # report equal mistakes once
        return tuple(found[kind] for kind in _dealt(self._counts, clients))

    @property
    def drawn(self) -> bool:
        """Whether the uplinks depend on a seed."""
        return any(device.drawn for device in self.devices)

    @property
    def clients(self) -> int:
        """Number of clients in the file."""
        return sum(self._counts)

    @cached_property
    def _counts(self) -> tuple[int, ...]:
        return tuple(device.clients for device in self.devices)


def fitting(capacities: Capacities, fleet: Fleet | None, clients: int, needs: Needs) -> Shares:
    """Return capacities as fractions: those that fit the memory of a fleet's devices, or the given ones.

    A memory size among the given ones becomes the largest fraction that fits into it.
    """
    needs = cache(needs)
    if fleet is not None:
        return fleet.capacities(clients, needs)
    return tuple(largest_share(each.size, needs) if isinstance(each, Room) else float(each) for each in capacities)


def _unknown_memory(device: Device) -> str:
    return f'{device.name}: how much of the model fits is not known without its memory: add it, such as "64 MB"'


def shared_out(counts: Sequence[int], clients: int) -> list[int]:
    """Return numbers in proportion to ``counts`` that sum to ``clients``: rounded down, then by largest remainder."""
    scaled = [count * clients for count in counts]
    dealt = [share // sum(counts) for share in scaled]
    lost = sorted(range(len(counts)), key=lambda kind: -(scaled[kind] % sum(counts)))
    for kind in lost[: clients - sum(dealt)]:
        dealt[kind] += 1
    return dealt


@lru_cache
def _dealt(counts: tuple[int, ...], clients: int) -> tuple[int, ...]:
    """Return the device type of each client; the k-th of n clients of a type is at (k + 1/2) / n of the range."""
    require((clients >= 1, f"clients must be at least 1, got {clients}"))
    dealt = shared_out(counts, clients)
    positions = [(Fraction(2 * k + 1, 2 * n), kind) for kind, n in enumerate(dealt) for k in range(n)]
    return tuple(kind for _, kind in sorted(positions))


# Reading and writing files.


def _devices(table: Mapping[str, Any], folder: Path) -> tuple[Device, ...]:
    mistakes = [unknown("key", key, ["device"]) for key in table if key != "device"]
    entries = table.get("device", [])
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise ConfigError(*mistakes, "device must be entries that begin with [[device]], in double brackets")
    found, names = [], []
    for number, entry in enumerate(entries, start=1):
        values, wrong = kinds.read(located(entry, folder))
        where = f"device {number} ({values['name']})" if "name" in values else f"device {number}"
        wrong += contradictions(entry)
        try:
            found += [] if wrong else [Device(**{"memory": None, **values})]
        except ConfigError as error:  # the values contradict each other
            wrong = [text.removeprefix("Device: ") for text in error.mistakes]
        mistakes += [f"{where}: {text}" for text in wrong]
        names.append(values.get("name"))
    gather(mistakes + _clashes(names))
    return tuple(found)


def _clashes(names: Sequence[str | None]) -> list[str]:
    if not names:
        return ["a fleet must have a device: write an entry [[device]] for each kind"]
    twice = sorted({name for name in names if name is not None and names.count(name) > 1})
    return [f"two devices are called {name!r}: give each kind a unique name" for name in twice]


def _plain(name: str, value: object, folder: Path) -> object:
    if isinstance(value, RateTrace):
        require((bool(value.source), "a rate trace without a file cannot be written: write it, and read it back"))
        return _below(value.source, folder)
    if isinstance(value, AvailabilityTrace):
        return value.written(_below(value.file.source, folder))
    if isinstance(value, AvailabilityModel):
        return value.to_text()
    units = KEYS[name].units
    if isinstance(value, Span):
        return value.written(units)
    if units and isinstance(value, int | float):
        return with_unit(value, units)
    return str(value) if isinstance(value, Density) else value


def _below(path: str, folder: Path) -> str:
    return str(Path(path).relative_to(folder)) if Path(path).is_relative_to(folder) else path


PHONES = Fleet((Device("phone", clients=1, memory=None, flops=8e9),))._from("phones")
"""The fleet of a channel without a fleet file: phones with the defaults of ``Device``, and 8 GFLOPS."""
