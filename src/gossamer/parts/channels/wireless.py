"""Radio uplinks, one for each device of a fleet: what a message takes, whether it arrives, and what training takes.

A message of so many bits takes bits / rate seconds and power times that in joules, lost or not, with the rate averaged
over fading. It is lost with the link's outage probability, by a draw of its own. Each device has a band of its own, so
they do not disturb each other; messages to clients always arrive, and cost them nothing.

Computing takes (operations / speed) seconds, which are frequency times as many cycles, of capacitance times squared
frequency joules each. That is the usual model, E = kappa C K f^2 (1 - rho) for K samples of C cycles of which a share
rho is pruned: the cycles of a sample follow from its operations and the device's speed. Only operations of weights
that a client holds count, so what is pruned saves time and energy.
"""

import math
from dataclasses import dataclass, replace

import torch

from gossamer.core.channel import Cost, Receipt
from gossamer.core.errors import require, wrong
from gossamer.core.random import Key, fold, uniform
from gossamer.core.random import key as make_key
from gossamer.core.types import Clock, Flops
from gossamer.fleet.fleet import Fleet
from gossamer.fleet.radio import FADINGS, Fading, outage, rate


@dataclass(frozen=True)
class Wireless:
    """Loses each message by the outage of its sender's link, and counts time and energy.

    Args:
        fleet: the clients' devices
        fading: what the gain of a link is: power, amplitude or none
        seed: another one draws other values, where the fleet has ranges
        powers: watts that each client sends with, or one for all; none are those of their devices
    """

    fleet: Fleet
    fading: Fading = "power"
    seed: int = 0
    powers: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        require(
            (self.fading in FADINGS, wrong(self, "fading", "must be power, amplitude or none")),
            (self.seed >= 0, wrong(self, "seed", "must not be negative")),
            (all(0 < p < math.inf for p in self.powers), wrong(self, "powers", "must be positive")),
        )

    def fit(self, clients: int, key: Key) -> "Cell":
        """The cell of a run; where its devices are follows from the run's seed, and from this one."""
        many = len(self.powers)
        require((many in (0, 1, clients), f"Wireless.powers: there are {many}, but {clients} clients"))
        return Cell(self.fleet, self.fading, clients, fold(key, "wireless", self.seed), self.powers)

    def send(self, nbytes: int, clock: Clock, key: Key) -> Receipt:
        """As in a run with as many clients as the fleet's file says, and seed 0."""
        return self._alone.send(nbytes, clock, key)

    def work(self, flops: Flops, clock: Clock, key: Key) -> Cost:
        """As in such a run."""
        return self._alone.work(flops, clock, key)

    @property
    def _alone(self) -> "Cell":
        return self.fit(self.fleet.clients, make_key(0))


@dataclass(frozen=True)
class Cell:
    """The uplinks of a run.

    Args:
        fleet: the clients' devices
        fading: what the gain of a link is
        clients: how many there are
        key: where ranges are drawn from
        powers: what clients send with, where that is not for their devices to say
    """

    fleet: Fleet
    fading: Fading
    clients: int
    key: Key
    powers: tuple[float, ...] = ()

    def fit(self, clients: int, key: Key) -> "Cell":
        """The cell as it is."""
        return self

    def send(self, nbytes: int, clock: Clock, key: Key) -> Receipt:
        """Bits over the rate; the key says whether it arrives."""
        link = self.fleet.link(clock.client, self.clients, clock.round, self.key, self.fading)
        if self.powers:
            link = replace(link, power=self.powers[clock.client % len(self.powers)])
        seconds = 8 * nbytes / rate(link)
        delivered = float(uniform(key, 1, dtype=torch.float64)[0]) >= outage(link)
        return Receipt(delivered, seconds, link.power * seconds)

    def work(self, flops: Flops, clock: Clock, key: Key) -> Cost:
        """Operations over the speed."""
        device = self.fleet.device(clock.client, self.clients)
        seconds = device.seconds(flops.useful)
        return Cost(seconds, device.joules(seconds))
