"""Simulated links and devices: time, energy and losses of transfers, and time and energy of computation.

    Perfect       every message arrives, at no cost
    Lossy         independent message losses with a fixed probability
    Wireless      radio links of a fleet, with outage
    FleetLinks    every device of a fleet with its own links, availability and speed

**Wireless.** Uplink: a message takes bits / rate seconds, and power times seconds in joules, whether it is lost or not.
The rate is averaged over fading. A message is lost with the outage probability of its link, independently of the
others. With ``retries``, a lost message is sent again at once, and every attempt costs time and energy. Each device has
its own frequency band, so devices do not interfere with each other. Downlink: the server's station sends with
``down_power`` over the same distance, in a band of ``down_bandwidth``. Downloads always arrive. Their time costs the
receiver's power. Without ``down_bandwidth`` they cost nothing.

Computation: FLOPs / speed seconds, which are seconds times frequency cycles. Each cycle takes capacitance times squared
frequency in joules. This is the usual model, E = kappa C K f^2 (1 - rho), for K samples of C cycles and a pruned share
rho. The cycles per sample follow from its FLOPs and the device's speed. Only FLOPs with weights that a client holds
count, so pruning saves time and energy.

**FleetLinks.** An upload takes latency + bits / rate seconds. The rate is constant (``up``), follows a trace
(``up_trace``), or is that of the radio link. It is lost with the probability ``loss``, or with the outage probability
of the radio link. Downloads take latency + bits / rate (``down``, ``down_trace`` or ``down_bandwidth``), or nothing.
Energy: ``power`` times the seconds of sending, ``receive_power`` times those of receiving, and computation as above. A
device with ``half_batch`` h computes batches of b samples in 1 + h / b times the seconds.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, field

import torch

from gossamer.core.availability import Availability
from gossamer.core.channel import Channel, Cost, Receipt
from gossamer.core.errors import Mistake, Setting, require, wrong
from gossamer.core.random import Key, fold, uniform
from gossamer.core.random import key as make_key
from gossamer.core.types import Clock, Flops
from gossamer.fleet.device import Device, Terminal, connect
from gossamer.fleet.fleet import PHONES, Fleet
from gossamer.fleet.radio import FADINGS, Fading

PLAUSIBLE = "sample:phones"
"""The fleet of a run without a fleet: plausible phones, as ``Fleet.sample`` draws them."""

OTHERS = ("up", "down", "up_trace", "down_trace", "availability", "on_leave", "idle_power")
"""Fields of devices that only the channel ``fleet`` uses."""


@dataclass(frozen=True)
class Perfect(Channel):
    """Delivers every message at no cost."""

    def send(self, nbytes: int, clock: Clock, key: Key) -> Receipt:
        """Deliver the message."""
        return Receipt(delivered=True)


@dataclass(frozen=True)
class Lossy(Channel):
    """Loses each message with the same probability.

    Args:
        loss: the probability that a message never arrives
    """

    loss: float

    def __post_init__(self) -> None:
        require((0 <= self.loss <= 1, wrong(self, "loss", "must be in [0, 1]")))

    def send(self, nbytes: int, clock: Clock, key: Key) -> Receipt:
        """Deliver the message with probability ``1 - loss``."""
        return Receipt(delivered=uniform(key, 1).item() >= self.loss)


@dataclass(frozen=True)
class Cell(Channel):
    """The links and devices of one run, to which a channel of a fleet is fitted.

    Args:
        fleet: the devices of the clients
        fading: the distribution of the channel gain of radio links
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
    _terminals: dict[int, Terminal] = field(default_factory=dict, init=False, repr=False, compare=False)
    _available: dict[int, Availability] = field(default_factory=dict, init=False, repr=False, compare=False)

    def send(self, nbytes: int, clock: Clock, key: Key) -> Receipt:
        """Send a message until it arrives or no retry is left: time from the link, losses by draws from the key."""
        terminal = self.terminal(clock.client, clock.round)
        delivered, attempts, latency = True, 1, terminal.device.latency
        if terminal.loss:
            arrives = uniform(key, 1 + self.retries, dtype=torch.float64) >= terminal.loss
            delivered = bool(arrives.any())
            attempts += int(arrives.int().argmax()) if delivered else self.retries
        sending = terminal.up.sending(8 * nbytes, clock.seconds, attempts, latency)
        return Receipt(delivered, sending + attempts * latency, terminal.power * sending)

    def receive(self, nbytes: int, clock: Clock, key: Key) -> Cost:
        """Return the cost of a download: time from the downlink, energy of the receiver."""
        terminal = self.terminal(clock.client, clock.round)
        if terminal.down is None:
            return Cost()
        receiving = terminal.down.sending(8 * nbytes, clock.seconds)
        return Cost(receiving + terminal.device.latency, terminal.device.receive_power * receiving)

    def work(self, flops: Flops, clock: Clock, key: Key) -> Cost:
        """Return the cost of FLOPs on the client's device."""
        device = self.device(clock.client)
        seconds = device.seconds(flops.useful, flops.batch)
        return Cost(seconds, device.joules(seconds))

    def availability(self, client: int) -> Availability:
        """Return when a client is available."""
        if client not in self._available:
            model = self.device(client).availability
            self._available[client] = model.of_client(client, fold(self.key, "availability", client))
        return self._available[client]

    def pauses(self, client: int) -> bool:
        """Return whether a client that leaves keeps its work."""
        return self.device(client).on_leave == "pause"

    def idle_power(self, client: int) -> float:
        """Return the watts of a client that has finished its work."""
        return self.device(client).idle_power

    def device(self, client: int) -> Device:
        """Return the device of a client."""
        return self.fleet.device(client, self.clients)

    def terminal(self, client: int, round: int) -> Terminal:
        """Return the device and links of a client. They are kept, unless ranges are drawn in every round."""
        if (kept := self._terminals.get(client)) is not None:
            return kept
        at = self.fleet.link_key(client, self.clients, round, self.key)
        power = self.powers[client % len(self.powers)] if self.powers else None
        found = connect(self.device(client), at, self.fading, power)
        if found.device.draw == "once":
            self._terminals[client] = found
        return found


@dataclass(frozen=True)
class FleetChannel(Channel, ABC):
    """Base of channels with the devices of a fleet, which become a ``Cell`` when they are fitted to a run.

    Args:
        fleet: the devices of the clients
        fading: the distribution of the channel gain of radio links: power, amplitude or none
        seed: the seed of values for which the fleet gives a range
    """

    fleet: Fleet = PHONES
    fading: Fading = "power"
    seed: int = 0

    def __post_init__(self) -> None:
        require(
            (self.fading in FADINGS, wrong(self, "fading", "must be power, amplitude or none")),
            (self.seed >= 0, wrong(self, "seed", "must not be negative")),
        )

    @abstractmethod
    def fit(self, clients: int, key: Key) -> Cell:
        """Return the links and devices of a run. Drawn values depend on the run's key and on ``seed``."""

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
    def _default(self) -> Cell:
        return self.fit(self.fleet.clients, make_key(0))

    def _drawn(self, key: Key) -> Key:
        """Return the key of drawn values. It is common to all channels, so that they have the same radio links."""
        return fold(key, "wireless", self.seed)


@dataclass(frozen=True)
class Wireless(FleetChannel):
    """Loses each message with the outage probability of its link, and computes time and energy.

    Args:
        fleet: the devices of the clients
        fading: the distribution of the channel gain: power, amplitude or none
        seed: the seed of values for which the fleet gives a range
        powers: transmit power of each client in watts, or one value for all; none uses those of the devices
        retries: how often a lost message is sent again
    """

    powers: tuple[float, ...] = ()
    retries: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        about, rest = Setting("Wireless", "fleet"), ", which this channel does not use: take the channel fleet"
        require(
            *((False, Mistake(f": {text}{rest}", about)) for text in not_radio(self.fleet)[:1]),
            (all(0 < p < math.inf for p in self.powers), wrong(self, "powers", "must be positive")),
            (self.retries >= 0, wrong(self, "retries", "must not be negative")),
        )

    def fit(self, clients: int, key: Key) -> Cell:
        """Return the links and devices of a run. Drawn values depend on the run's key and on ``seed``."""
        count = len(self.powers)
        require((count in (0, 1, clients), f"Wireless.powers must have 1 or {clients} values, got {count}"))
        return Cell(self.fleet, self.fading, clients, self._drawn(key), self.powers, self.retries)


def not_radio(fleet: Fleet) -> list[str]:
    """Return which devices of a fleet are described by more than radio links and processors."""
    given = ((device, [name for name in device.changed if name in OTHERS]) for device in fleet.devices)
    return [f"{device.name} has {names[0]}" for device, names in given if names]


@dataclass(frozen=True)
class FleetLinks(FleetChannel):
    """Links, computation and availability of a fleet's devices.

    Args:
        fleet: the devices of the clients
        fading: the distribution of the channel gain of radio links: power, amplitude or none
        seed: the seed of values for which the fleet gives a range, and of availability
        retries: how often a lost message is sent again
    """

    retries: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        require((self.retries >= 0, wrong(self, "retries", "must not be negative")))

    def fit(self, clients: int, key: Key) -> Cell:
        """Return the links and devices of a run. Drawn values depend on the run's key and on ``seed``."""
        return Cell(self.fleet, self.fading, clients, self._drawn(key), retries=self.retries)
