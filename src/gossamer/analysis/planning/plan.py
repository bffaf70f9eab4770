"""A plan: the power and the pruning ratio of each client, and the number of measurements; its file and its figure.

The file is JSON and may be edited: reading checks it, and a run uses power, ratio and measurements. It also records the
run that it was made for, and a different run is refused. This covers the fleet's digest, the number of clients, the
seeds (which draw the devices' positions), fading, the model size, operations per client, and bits per measurement.

``draw`` shows the trade-off: bound, outages and pruning as functions of the energy budget.
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
from gossamer.core.extras import need
from gossamer.core.specs import unknown
from gossamer.fleet.fleet import Fleet
from gossamer.fleet.radio import FADINGS
from gossamer.parts.channels.links import Wireless
from gossamer.runs.report.plots import COLOURS, INK

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Share:
    """The plan of one client, and its costs.

    Args:
        name: name of its device
        power: transmit power in watts
        ratio: pruning ratio
        outage: probability that its upload is lost
        rate: bits per second
        flops: operations per round without pruning; 0 if unknown
        computing_seconds: computing time per round
        sending_seconds: sending time per round
        computing_joules: computing energy per round
        sending_joules: sending energy per round, for received and lost uploads
        binding: what limits the bound: energy, deadline, power, power (fixed), several with +, or nothing
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
        """Time per round."""
        return self.computing_seconds + self.sending_seconds

    @property
    def joules(self) -> float:
        """Energy per round."""
        return self.computing_joules + self.sending_joules


@dataclass(frozen=True)
class Plan:
    """The plan of all clients.

    Args:
        measurements: number of measurements; a client sends their signs
        bits: bits per message
        terms: terms of the bound
        clients: the plan of each client
        fleet: digest of the fleet
        seed: seed of the run, which draws the devices' positions
        channel_seed: seed of the channel, which draws them too
        fading: fading of the links
        parameters: number of entries of the model
        each: bits per measurement
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
        """Sum of the terms."""
        return sum(self.terms.values())

    @property
    def powers(self) -> tuple[float, ...]:
        """Transmit powers of all clients, in watts."""
        return tuple(share.power for share in self.clients)

    @property
    def ratios(self) -> tuple[float, ...]:
        """Pruning ratios of all clients."""
        return tuple(share.ratio for share in self.clients)

    def power(self, client: int) -> float:
        """Return the transmit power of a client, in watts."""
        return self._of(client).power

    def ratio(self, client: int) -> float:
        """Return the pruning ratio of a client."""
        return self._of(client).ratio

    def _of(self, client: int) -> Share:
        most = len(self.clients) - 1
        require((0 <= client <= most, f"client must be from 0 to {most}, got {client}"))
        return self.clients[client]

    def check(self, channel: Wireless, clients: int, seed: int) -> None:
        """Refuse a run with other links than the plan's."""
        here, count, fixed = digest(channel.fleet), len(self.clients), not channel.fleet.drawn
        planned, there, elsewhere = "the plan is for", channel.seed, "devices are elsewhere: plan anew"
        faded = f"not for {channel.fading}: plan anew, with --fading {channel.fading}"
        placed = f"and with {there} {elsewhere}, with --channel-seed {there}"
        require(
            (
                self.fleet == here,
                f"{planned} another fleet: use --fleet with the file that was planned for, or plan anew",
            ),
            (count == clients, f"{planned} {count} clients, not for {clients}: plan anew, or use --clients {count}"),
            (self.seed == seed or fixed, f"{planned} --seed {self.seed}, and with {seed} {elsewhere}"),
            (self.channel_seed == there or fixed, f"{planned} wireless:seed={self.channel_seed}, {placed}"),
            (not channel.retries, f"{planned} one attempt per message: leave out wireless:retries={channel.retries}"),
            (self.fading == channel.fading, f"{planned} wireless:fading={self.fading}, {faded}"),
        )

    def write(self, path: str | Path) -> None:
        """Write the plan to a file."""
        files.write(Path(path), json.dumps(asdict(self), indent=1).encode() + b"\n")

    @classmethod
    def read(cls, path: str | Path) -> "Plan":
        """Read a plan from a file; list all mistakes."""
        try:
            entries = _values(files.parse_json(Path(path).read_text(encoding="utf-8")), Plan)
            shares, mistakes = [], []
            for number, entry in enumerate(entries["clients"]):
                try:
                    shares.append(Share(**_values(entry, Share)))
                except ConfigError as error:
                    mistakes += [f"client {number}: {mistake}" for mistake in error.mistakes]
            gather(mistakes)
            return cls(**{**entries, "clients": tuple(shares)})
        except OSError as error:
            raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
        except ConfigError as error:
            raise ConfigError(*(f"{path}: {mistake}" for mistake in error.mistakes)) from error
        except ValueError as error:
            raise ConfigError(f"{path}: is not JSON: {error}") from error

    @classmethod
    def of_text(cls, path: str) -> "Plan":
        """Read the plan of a file, for command-line flags."""
        return cls.read(path)


def digest(fleet: Fleet) -> str:
    """Return a digest of the fleet's content, independent of its file."""
    return hashlib.sha256(repr(fleet).encode()).hexdigest()[:16]


# Reading files.


def _values(entry: object, kind: type[Plan] | type[Share]) -> dict[str, Any]:
    """Return the values of one JSON object, with checked types."""
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


# The figure.

TICKS = (1 / 8, 1 / 4, 1 / 2, 1, 2, 4, 8)
"""Labelled budgets, as multiples of the marked one."""


def draw(energies: Sequence[float], plans: Sequence[Plan | None], chosen: float, path: Path) -> None:
    """Draw the trade-off to a file, in the format of its suffix; ``chosen`` is the marked budget."""
    drawn = io.BytesIO()
    figure(energies, plans, chosen).savefig(drawn, dpi=150, format=path.suffix[1:].lower())
    files.write(path, drawn.getvalue())


def figure(energies: Sequence[float], plans: Sequence[Plan | None], chosen: float) -> "Figure":
    """Return the figure: the bound on the left, means over clients on the right."""
    need("matplotlib")
    from matplotlib.figure import Figure  # it has no global state, unlike pyplot

    found = [(energy, plan) for energy, plan in zip(energies, plans, strict=True) if plan is not None]
    at = [energy for energy, _ in found]
    picture = Figure(figsize=(10, 4.2), layout="constrained")
    left, right = picture.subplots(1, 2)
    left.plot(at, [plan.bound for _, plan in found], color=COLOURS[0], marker="o", markersize=4)
    left.set(ylabel="terms of the bound")
    outages = [100 * sum(share.outage for share in plan.clients) / len(plan.clients) for _, plan in found]
    ratios = [100 * sum(plan.ratios) / len(plan.ratios) for _, plan in found]
    right.plot(at, outages, color=COLOURS[1], marker="o", markersize=4, label="lost messages")
    right.plot(at, ratios, color=COLOURS[2], marker="o", markersize=4, label="pruned weights")
    right.set(ylabel="mean over clients (%)", ylim=(0, None))
    right.legend(frameon=False, labelcolor=INK)
    ticks = [chosen * factor for factor in TICKS]
    for axes in (left, right):
        axes.set(xscale="log", xlabel="energy budget per client and round (J)", xlim=(min(energies), max(energies)))
        axes.set_xticks(ticks, [f"{tick:.3g}" for tick in ticks])
        axes.minorticks_off()
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
    return picture
