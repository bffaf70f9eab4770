"""Wireless channel: radio links of a fleet, with outage, time and energy of transmission and computation.

Uplink: a message takes bits / rate seconds, and power times seconds in joules, whether it is lost or not. The rate is
averaged over fading. A message is lost with the outage probability of its link, independently of the others. With
``retries``, a lost message is sent again at once, and every attempt costs time and energy. Each device has its own
frequency band, so devices do not interfere with each other.

Downlink: the server's station sends with ``down_power`` over the same distance, in a band of ``down_bandwidth``.
Downloads always arrive. Their time costs the receiver's power. Without ``down_bandwidth`` they cost nothing.

Computation: FLOPs / speed seconds, which are seconds times frequency cycles. Each cycle takes capacitance times squared
frequency in joules. This is the usual model, E = kappa C K f^2 (1 - rho), for K samples of C cycles and a pruned share
rho. The cycles per sample follow from its FLOPs and the device's speed. Only FLOPs with weights that a client holds
count, so pruning saves time and energy.
"""

import math
from dataclasses import dataclass, replace

import torch

from gossamer.core.channel import Cost, Receipt
from gossamer.core.errors import require, wrong
from gossamer.core.fields import CheckedFields
from gossamer.core.random import Key, fold, uniform
from gossamer.core.random import key as make_key
from gossamer.core.types import Clock, Flops
from gossamer.fleet.fleet import PHONES, Fleet
from gossamer.fleet.radio import FADINGS, Fading, outage, rate


@dataclass(frozen=True)
class Wireless(CheckedFields):
    """Loses each message with the outage probability of its link, and computes time and energy.

    Args:
        fleet: the devices of the clients
        fading: the distribution of the channel gain: power, amplitude or none
        seed: the seed of values for which the fleet gives a range
        powers: transmit power of each client in watts, or one value for all; none uses those of the devices
        retries: how often a lost message is sent again
    """

    fleet: Fleet = PHONES
    fading: Fading = "power"
    seed: int = 0
    powers: tuple[float, ...] = ()
    retries: int = 0

    def __post_init__(self) -> None:
        require(
            (self.fading in FADINGS, wrong(self, "fading", "must be power, amplitude or none")),
            (self.seed >= 0, wrong(self, "seed", "must not be negative")),
            (all(0 < p < math.inf for p in self.powers), wrong(self, "powers", "must be positive")),
            (self.retries >= 0, wrong(self, "retries", "must not be negative")),
        )

    def fit(self, clients: int, key: Key) -> "Cell":
        """Return the links and devices of a run. Drawn values depend on the run's key and on ``seed``."""
        count = len(self.powers)
        require((count in (0, 1, clients), f"Wireless.powers must have 1 or {clients} values, got {count}"))
        return Cell(self.fleet, self.fading, clients, fold(key, "wireless", self.seed), self.powers, self.retries)

    def send(self, nbytes: int, clock: Clock, key: Key) -> Receipt:
        """Send a message outside of a run: with the fleet's number of clients, and the run's seed 0."""
        return self._default.send(nbytes, clock, key)

    def receive(self, nbytes: int, clock: Clock, key: Key) -> Cost:
        """Return the cost of a download outside of a run."""
        return self._default.receive(nbytes, clock, key)

    def work(self, flops: Flops, clock: Clock, key: Key) -> Cost:
        """Return the cost of FLOPs outside of a run."""
        return self._default.work(flops, clock, key)

    @property
    def _default(self) -> "Cell":
        return self.fit(self.fleet.clients, make_key(0))


@dataclass(frozen=True)
class Cell:
    """The links and devices of one run.

    Args:
        fleet: the devices of the clients
        fading: the distribution of the channel gain
        clients: the number of clients
        key: the random key of values for which the fleet gives a range
        powers: transmit powers in watts; none uses those of the devices
        retries: how often a lost message is sent again
    """

    fleet: Fleet
    fading: Fading
    clients: int
    key: Key
    powers: tuple[float, ...] = ()
    retries: int = 0

    def fit(self, clients: int, key: Key) -> "Cell":
        """Return the cell unchanged."""
        return self

    def send(self, nbytes: int, clock: Clock, key: Key) -> Receipt:
        """Send a message until it arrives or no retry is left: time from the rate, losses by draws from the key."""
        link = self.fleet.link(clock.client, self.clients, clock.round, self.key, self.fading)
        if self.powers:
            link = replace(link, power=self.powers[clock.client % len(self.powers)])
        arrives = uniform(key, 1 + self.retries, dtype=torch.float64) >= outage(link)
        delivered = bool(arrives.any())
        attempts = int(arrives.long().argmax()) + 1 if delivered else len(arrives)
        seconds = attempts * 8 * nbytes / rate(link)
        return Receipt(delivered, seconds, link.power * seconds)

    def receive(self, nbytes: int, clock: Clock, key: Key) -> Cost:
        """Return the cost of a download: time from the rate of the downlink, energy of the receiver."""
        link = self.fleet.downlink(clock.client, self.clients, clock.round, self.key, self.fading)
        seconds = 8 * nbytes / rate(link) if link else 0.0
        return Cost(seconds, self.fleet.device(clock.client, self.clients).receive_power * seconds)

    def work(self, flops: Flops, clock: Clock, key: Key) -> Cost:
        """Return the cost of FLOPs on the client's device."""
        device = self.fleet.device(clock.client, self.clients)
        seconds = device.seconds(flops.useful)
        return Cost(seconds, device.joules(seconds))
