"""A plan: for each client its power and the share that it prunes, for all the measurements; and its file.

The file is JSON. It may be changed by hand: what is read is checked, and what a run needs is power, ratio and
measurements. It says what it was made for, and a run that is another is refused: the fleet, by digest, how many clients
and which seeds, which put devices where they are, fading, the size of the model, the operations of each client, and
the bits of a measurement.

The trade-off as a picture: how the bound, outages and pruning change with the energy that clients may spend.
"""

import hashlib
import io
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gossamer.core import files
from gossamer.core.errors import ConfigError, gather, listed, require
from gossamer.core.specs import unknown
from gossamer.fleet.fleet import Fleet
from gossamer.fleet.radio import FADINGS
from gossamer.parts.channels.wireless import Wireless
from gossamer.runs.report.curves import COLOURS, INK

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Share:
    """What one client is to do, and what that comes to.

    Args:
        name: of its device
        power: what it sends with, in watts
        ratio: share of the weights that it prunes
        outage: the chance that its message is lost
        rate: bits a second
        flops: operations of a round, where nothing is pruned; 0: they are not known
        computing_seconds: of a round
        sending_seconds: of a round
        computing_joules: of a round
        sending_joules: of a round, heard or not
        binding: what keeps the bound from being smaller: energy, deadline, power, power (fixed), several with +, or
            nothing
    """

    name: str
    power: float
    ratio: float
    outage: float
    rate: float
    flops: float
    computing_seconds: float
    sending_seconds: float
    computing_joules: float
    sending_joules: float
    binding: str = "nothing"

    def __post_init__(self) -> None:
        spent = [field.name for field in fields(self) if field.name.endswith(("flops", "_seconds", "_joules"))]
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

    Args:
        measurements: of which a client sends the signs
        bits: of a message
        terms: what the bound adds up
        clients: what each is to do
        fleet: the digest of the fleet that it is for
        seed: of the run, which puts devices where they are
        channel_seed: of the channel, which does so too
        fading: of the links
        parameters: entries of the model
        each: bits a measurement
    """

    measurements: int
    bits: int
    terms: dict[str, float]
    clients: tuple[Share, ...]
    fleet: str = ""
    seed: int = 0
    channel_seed: int = 0
    fading: str = "power"
    parameters: int = 1
    each: int = 1

    def __post_init__(self) -> None:
        counts = {name: getattr(self, name) for name in ("parameters", "measurements", "bits", "each")}
        require(
            *((value >= 1, f"{name} must be at least 1, got {value}") for name, value in counts.items()),
            (len(self.clients) > 0, "clients must not be empty"),
            (self.fading in FADINGS, f"fading must be one of {listed(FADINGS)}, got {self.fading!r}"),
        )

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

    def check(self, channel: Wireless, clients: int, seed: int) -> None:
        """Refuse a run whose links are not those of the plan."""
        here, many, fixed = digest(channel.fleet), len(self.clients), not channel.fleet.drawn
        planned, there, elsewhere = "the plan is for", channel.seed, "devices are elsewhere: plan anew"
        faded = f"not for {channel.fading}: plan anew, with --fading {channel.fading}"
        placed = f"and with {there} {elsewhere}, with --channel-seed {there}"
        require(
            (self.fleet == here, f"{planned} the fleet {self.fleet}, not for {here}: plan anew"),
            (many == clients, f"{planned} {many} clients, not for {clients}: plan anew, or use --clients {many}"),
            (self.seed == seed or fixed, f"{planned} --seed {self.seed}, and with {seed} {elsewhere}"),
            (self.channel_seed == there or fixed, f"{planned} wireless:seed={self.channel_seed}, {placed}"),
            (self.fading == channel.fading, f"{planned} wireless:fading={self.fading}, {faded}"),
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


def draw(energies: Sequence[float], plans: Sequence[Plan | None], chosen: float, path: Path) -> None:
    """Draw to a picture file, in the format of its ending; ``chosen`` is the budget that is marked."""
    drawn = io.BytesIO()
    figure(energies, plans, chosen).savefig(drawn, dpi=150, format=path.suffix[1:].lower())
    files.write(path, drawn.getvalue())


def figure(energies: Sequence[float], plans: Sequence[Plan | None], chosen: float) -> "Figure":
    """The bound on the left, means over clients on the right; where there is no plan, nothing."""
    from matplotlib.figure import Figure  # here, so that the core needs torch and numpy alone; no global state

    found = [(energy, plan) for energy, plan in zip(energies, plans, strict=True) if plan is not None]
    at = [energy for energy, _ in found]
    picture = Figure(figsize=(10, 4.2), layout="constrained")
    left, right = picture.subplots(1, 2)
    left.plot(at, [plan.bound for _, plan in found], color=COLOURS[0], marker="o", markersize=4)
    left.set(ylabel="bound: what the plan adds to it")
    outages = [100 * sum(share.outage for share in plan.clients) / len(plan.clients) for _, plan in found]
    ratios = [100 * sum(plan.ratios) / len(plan.ratios) for _, plan in found]
    right.plot(at, outages, color=COLOURS[1], marker="o", markersize=4, label="lost messages")
    right.plot(at, ratios, color=COLOURS[2], marker="o", markersize=4, label="pruned weights")
    right.set(ylabel="mean over clients (%)", ylim=(0, None))
    right.legend(frameon=False, labelcolor=INK)
    for axes in (left, right):
        _dress(axes, energies, at, chosen)
    return picture


def _dress(axes: "Axes", energies: Sequence[float], at: Sequence[float], chosen: float) -> None:
    axes.set(xscale="log", xlabel="energy a client may spend in a round (J)", xlim=(min(energies), max(energies)))
    axes.axvline(chosen, color="#9aa5b1", linewidth=1, linestyle=(0, (4, 3)))
    if at[:1] != list(energies[:1]):
        axes.axvspan(min(energies), at[0] if at else max(energies), color="#eef1f5")
        axes.text(0.02, 0.03, "no plan", transform=axes.transAxes, color=INK)
    axes.grid(color="#e3e6ea", linewidth=0.8)
    axes.tick_params(color=INK, labelcolor=INK)
    axes.xaxis.label.set_color(INK)
    axes.yaxis.label.set_color(INK)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color("#9aa5b1")
