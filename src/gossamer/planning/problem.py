"""Everything that a plan for a fleet is made from.

Devices are where a run with the same seed over ``wireless`` has them. Where distance or interference are drawn anew in
each round, the plan is made for the larger end of the range: then budgets are kept in all rounds.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from gossamer.channels import Wireless
from gossamer.channels.wireless import Cell
from gossamer.device import Device, Span
from gossamer.errors import ConfigError, require
from gossamer.fleet import Fleet
from gossamer.planning.loads import Load
from gossamer.planning.make import Limits, make
from gossamer.planning.message import Message
from gossamer.planning.plan import Plan, digest
from gossamer.planning.target import Target
from gossamer.radio import Fading
from gossamer.random import key as make_key


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

    def __post_init__(self) -> None:
        require(
            (len(self.flops) > 0, "Problem.flops must have one entry for each client"),
            *((flops >= 0, f"Problem.flops must not be negative, got {flops}") for flops in self.flops),
            (self.parameters >= 1, f"Problem.parameters must be at least 1, got {self.parameters}"),
            (self.energy > 0, f"the energy budget must be positive, got {self.energy}"),
            (self.deadline > 0, f"the deadline must be positive, got {self.deadline}"),
            (self.most_power is None or self.most_power > 0, f"most_power must be positive, got {self.most_power}"),
        )

    def loads(self) -> tuple[Load, ...]:
        """What each client has to do."""
        cell = Wireless(self.fleet, self.fading).fit(len(self.flops), make_key(self.seed))
        return tuple(self._load(cell, client, flops) for client, flops in enumerate(self.flops))

    def _load(self, cell: Cell, client: int, flops: float) -> Load:
        device = cell.fleet.device(client, cell.clients)
        if device.draw == "round":
            link = _farthest(device).link(cell.key, cell.fading)
        else:
            link = cell.fleet.link(client, cell.clients, 0, cell.key, cell.fading)
        most, seconds = device.most_power or self.most_power, device.seconds(flops)
        link = replace(link, power=most or device.power)
        return Load(device.name, link, seconds, device.joules(seconds), self.energy, self.deadline, fixed=most is None)

    def solve(self) -> Plan:
        """The best plan."""
        plan = make(self.loads(), self.target, self.limits, self.message)
        return replace(plan, fleet=digest(self.fleet), seed=self.seed, parameters=self.parameters)

    def at_energies(self, energies: Sequence[float]) -> list[Plan | None]:
        """The best plans with other energy budgets; none where there is none."""
        return [_attempt(replace(self, energy=energy)) for energy in energies]


def _attempt(problem: Problem) -> Plan | None:
    try:
        return problem.solve()
    except ConfigError:
        return None


def _farthest(device: Device) -> Device:
    """The device with its ranges at their larger ends."""
    distance, interference = (
        value.high if isinstance(value, Span) else value for value in (device.distance, device.interference)
    )
    return replace(device, distance=distance, interference=interference)
