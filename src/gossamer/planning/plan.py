"""A plan: for each client its power and the share that it prunes, for all the measurements; and its file.

The file is JSON. It may be changed by hand: what is read is checked, and what a run needs is power, ratio and
measurements. It says which fleet it was made for, by digest, and with how many clients and which seed: another seed
would put devices elsewhere.
"""

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from gossamer import files
from gossamer.device import Span
from gossamer.errors import ConfigError, gather, require
from gossamer.fleet import Fleet
from gossamer.specs import unknown


@dataclass(frozen=True)
class Share:
    """What one client is to do, and what that comes to.

    name: of its device
    power: what it sends with, in watts
    ratio: share of the weights that it prunes
    outage: the chance that its message is lost
    rate: bits a second
    computing_seconds: of a round
    sending_seconds: of a round
    computing_joules: of a round
    sending_joules: of a round, heard or not
    binding: what keeps the bound from being smaller: energy, deadline, power, several with +, or nothing
    """

    name: str
    power: float
    ratio: float
    outage: float
    rate: float
    computing_seconds: float
    sending_seconds: float
    computing_joules: float
    sending_joules: float
    binding: str = "nothing"

    def __post_init__(self) -> None:
        spent = [field.name for field in fields(self) if field.name.endswith(("_seconds", "_joules"))]
        values = {name: getattr(self, name) for name in spent}
        require(
            (0 < self.power < math.inf, f"power must be a positive number, got {self.power}"),
            (0 <= self.ratio < 1, f"ratio must be in [0, 1), got {self.ratio}"),
            (0 <= self.outage <= 1, f"outage must be in [0, 1], got {self.outage}"),
            (0 < self.rate < math.inf, f"rate must be a positive number, got {self.rate}"),
            *((0 <= value < math.inf, f"{name} must not be negative, got {value}") for name, value in values.items()),
        )

    @property
    def seconds(self) -> float:
        """Of a round."""
        return self.computing_seconds + self.sending_seconds

    @property
    def joules(self) -> float:
        """Of a round."""
        return self.computing_joules + self.sending_joules


@dataclass(frozen=True)
class Plan:
    """What all clients are to do.

    measurements: of which a client sends the signs
    bits: of a message
    terms: what the bound adds up
    clients: what each is to do
    fleet: the digest of the fleet that it is for
    seed: of the run, which puts devices where they are
    parameters: entries of the model
    """

    measurements: int
    bits: int
    terms: dict[str, float]
    clients: tuple[Share, ...]
    fleet: str = ""
    seed: int = 0
    parameters: int = 1

    def __post_init__(self) -> None:
        for name in ("parameters", "measurements", "bits"):
            value = getattr(self, name)
            require((value >= 1, f"{name} must be at least 1, got {value}"))
        require((len(self.clients) > 0, "clients must not be empty"))

    @property
    def bound(self) -> float:
        """What the terms add up to."""
        return sum(self.terms.values())

    @property
    def powers(self) -> tuple[float, ...]:
        """Of all clients, in watts."""
        return tuple(share.power for share in self.clients)

    @property
    def ratios(self) -> tuple[float, ...]:
        """Of all clients."""
        return tuple(share.ratio for share in self.clients)

    def power(self, client: int) -> float:
        """What a client sends with, in watts."""
        return self._of(client).power

    def ratio(self, client: int) -> float:
        """The share of the weights that a client prunes."""
        return self._of(client).ratio

    def _of(self, client: int) -> Share:
        most = len(self.clients) - 1
        require((0 <= client <= most, f"client must be from 0 to {most}, got {client}"))
        return self.clients[client]

    def check(self, fleet: Fleet, clients: int, seed: int) -> None:
        """Refuse a run that the plan is not for."""
        here, many = digest(fleet), len(self.clients)
        require(
            (self.fleet == here, f"the plan is for the fleet {self.fleet}, not for {here}: plan anew"),
            (many == clients, f"the plan is for {many} clients, not for {clients}: plan anew, or use --clients {many}"),
            (
                self.seed == seed or not drawn(fleet),
                f"the plan is for --seed {self.seed}, and with {seed} devices are elsewhere: plan anew",
            ),
        )

    def write(self, path: str | Path) -> None:
        """Make a file of the plan, or replace one."""
        files.write(Path(path), json.dumps(asdict(self), indent=1).encode() + b"\n")

    @classmethod
    def read(cls, path: str | Path) -> "Plan":
        """The plan of a file; every mistake in it is listed."""
        try:
            return _plan(json.loads(Path(path).read_text(encoding="utf-8")))
        except OSError as error:
            raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
        except ConfigError as error:
            raise ConfigError(*(f"{path}: {mistake}" for mistake in error.mistakes)) from error
        except ValueError as error:
            raise ConfigError(f"{path}: is not JSON: {error}") from error

    @classmethod
    def of_text(cls, path: str) -> "Plan":
        """The plan of a file, as a flag names it."""
        return cls.read(path)


def digest(fleet: Fleet) -> str:
    """What tells fleets apart, whatever their files look like."""
    return hashlib.sha256(repr(fleet).encode()).hexdigest()[:16]


def drawn(fleet: Fleet) -> bool:
    """Whether it takes a seed to say where devices are."""
    return any(isinstance(value, Span) for kind in fleet.devices for value in (kind.distance, kind.interference))


# The file.


def _plan(value: object) -> Plan:
    entries = _values(value, Plan)
    shares, mistakes = [], []
    for number, entry in enumerate(entries["clients"]):
        try:
            shares.append(Share(**_values(entry, Share)))
        except ConfigError as error:
            mistakes += [f"client {number}: {mistake}" for mistake in error.mistakes]
    gather(mistakes)
    return Plan(**{**entries, "clients": tuple(shares)})


def _values(entry: object, kind: type[Plan] | type[Share]) -> dict[str, Any]:
    """The values of one object, each of the type that it should have."""
    if not isinstance(entry, dict):
        raise ConfigError(f"must be an object in braces, got {entry!r}")
    names = {field.name: field.type for field in fields(kind)}
    mistakes = [unknown("name", name, names) for name in entry if name not in names]
    mistakes += [f"{name} is missing" for name in names if name not in entry]
    for name, wanted in names.items():
        if name in entry and not _fits(entry[name], wanted):
            mistakes.append(f"{name} cannot be {entry[name]!r}")
    gather(mistakes)
    return {name: float(entry[name]) if names[name] is float else entry[name] for name in names}


def _fits(value: object, wanted: Any) -> bool:
    if isinstance(value, bool):
        return False
    if wanted is float:
        return isinstance(value, int | float) and math.isfinite(value)
    if wanted in (int, str):
        return isinstance(value, wanted)
    if wanted == dict[str, float]:
        return isinstance(value, Mapping) and all(_fits(number, float) for number in value.values())
    return isinstance(value, list)
