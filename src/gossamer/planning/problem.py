"""Everything that a plan for a fleet is made from.

Devices are where a run with the same seeds over ``wireless`` has them. Where something is drawn anew in each round, the
plan is made for the end of the range that is worst: then budgets are kept in all rounds. Power that is drawn once stays
as it is drawn, unless the plan may choose it; power that is drawn anew in each round must be for the plan to choose.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from gossamer.channels import Wireless
from gossamer.channels.wireless import Cell
from gossamer.device import Device, Span
from gossamer.errors import ConfigError, require, wrong
from gossamer.fleet import Fleet
from gossamer.planning.loads import Load
from gossamer.planning.make import Limits, make
from gossamer.planning.message import Message
from gossamer.planning.plan import Plan, digest
from gossamer.planning.pruning import Pruning
from gossamer.planning.target import Target
from gossamer.radio import Fading
from gossamer.random import key as make_key

MOST = 1e30
"""Budgets and operations are less: nothing overflows."""


@dataclass(frozen=True)
class Problem:
    """A fleet, what it has to do, and what it may take.

    fleet: the devices
    flops: operations of each client in a round, where nothing is pruned
    parameters: entries of the model
    energy: joules that a client may spend in a round
    deadline: seconds that it may take
    target: the bound
    limits: what may be chosen
    message: how long messages are
    seed: of the run
    fading: of the links
    most_power: in watts, of devices that say nothing of it; none: their power stays as it is
    pruning: what it saves of the operations
    channel_seed: of the channel
    """

    fleet: Fleet
    flops: tuple[float, ...]
    parameters: int
    energy: float
    deadline: float
    target: Target
    limits: Limits
    message: Message = Message()
    seed: int = 0
    fading: Fading = "power"
    most_power: float | None = None
    pruning: Pruning = Pruning()
    channel_seed: int = 0

    def __post_init__(self) -> None:
        power, least, most = self.most_power, min(self.flops, default=0.0), max(self.flops, default=0.0)
        require(
            (len(self.flops) > 0, "Problem.flops must have one entry for each client"),
            (least >= 0, wrong(self, "flops", "must not be negative")),
            (most < MOST, wrong(self, "flops", f"must be less than {MOST:g}")),
            (self.parameters >= 1, wrong(self, "parameters", "must be at least 1")),
            (0 < self.energy < MOST, f"energy must be a positive number of joules, got {self.energy}"),
            (0 < self.deadline < MOST, f"deadline must be a positive number of seconds, got {self.deadline}"),
            (power is None or 0 < power < math.inf, f"most_power must be a positive number, got {power}"),
            *(_choosable(device, power) for device in self.fleet.devices),
        )

    def loads(self) -> tuple[Load, ...]:
        """What each client has to do."""
        cell = Wireless(self.fleet, self.fading, self.channel_seed).fit(len(self.flops), make_key(self.seed))
        return tuple(self._load(cell, client, flops) for client, flops in enumerate(self.flops))

    def _load(self, cell: Cell, client: int, flops: float) -> Load:
        device = cell.fleet.device(client, cell.clients)
        if device.draw == "round":
            link = device.weakest(cell.fading)
        else:
            link = cell.fleet.link(client, cell.clients, 0, cell.key, cell.fading)
        most, seconds = device.most_power or self.most_power, device.seconds(flops)
        link, spent = replace(link, power=most or link.power), (seconds, device.joules(seconds))
        return Load(device.name, link, *spent, self.energy, self.deadline, most is None, flops)

    def solve(self) -> Plan:
        """The best plan."""
        plan = make(self.loads(), self.target, self.limits, self.message, self.pruning)
        plan = replace(plan, fleet=digest(self.fleet), seed=self.seed, channel_seed=self.channel_seed)
        return replace(plan, fading=self.fading, parameters=self.parameters)

    def at_energies(self, energies: Sequence[float]) -> list[Plan | None]:
        """The best plans with other energy budgets; none where there is none."""
        return [_attempt(replace(self, energy=energy)) for energy in energies]


def _attempt(problem: Problem) -> Plan | None:
    try:
        return problem.solve()
    except ConfigError:
        return None


def _choosable(device: Device, most_power: float | None) -> tuple[bool, str]:
    """That a device's power is one number, or one that the plan may choose; and what to say if not."""
    moves = device.draw == "round" and isinstance(device.power, Span)
    if device.most_power is not None or (most_power is None and not moves):
        return True, ""
    if most_power is None:
        return False, f"{device.name}: its power is drawn anew in each round: say most_power, for the plan to choose it"
    least, power = f"most_power must be at least the power of {device.name}", device.full_power
    return power <= most_power, f"{least}, {power:g} W, got {most_power:g}"
