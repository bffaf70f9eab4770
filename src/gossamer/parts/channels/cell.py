"""The devices and links of one run: time, energy and losses of transfers, and time and energy of computation.

Channels of a fleet return one when they are fitted to a run.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Self

import torch

from gossamer.core.channel import Cost, Receipt
from gossamer.core.errors import require, wrong
from gossamer.core.fields import CheckedFields
from gossamer.core.random import Key, fold, uniform
from gossamer.core.random import key as make_key
from gossamer.core.types import Clock, Flops
from gossamer.fleet.device import Device, Terminal, connect
from gossamer.fleet.fleet import PHONES, Fleet
from gossamer.fleet.radio import FADINGS, Fading


@dataclass(frozen=True)
class Cell:
    """The links and devices of one run.

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

    def fit(self, clients: int, key: Key) -> Self:
        """Return the cell unchanged."""
        return self

    def send(self, nbytes: int, clock: Clock, key: Key) -> Receipt:
        """Send a message until it arrives or no retry is left: time from the link, losses by draws from the key."""
        terminal = self.terminal(clock.client, clock.round)
        delivered, attempts = _attempts(terminal.loss, self.retries, key)
        latency = terminal.device.latency
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

    def device(self, client: int) -> Device:
        """Return the device of a client."""
        return self.fleet.device(client, self.clients)

    def terminal(self, client: int, round: int) -> Terminal:
        """Return the device and links of a client. They are kept, unless ranges are drawn in every round."""
        if (kept := self._terminals.get(client)) is not None:
            return kept
        found = self._connected(client, round)
        if found.device.draw == "once":
            self._terminals[client] = found
        return found

    def _connected(self, client: int, round: int) -> Terminal:
        at = self.fleet.link_key(client, self.clients, round, self.key)
        power = self.powers[client % len(self.powers)] if self.powers else None
        return connect(self.device(client), at, self.fading, power)


def _attempts(loss: float, retries: int, key: Key) -> tuple[bool, int]:
    """Return whether one of the attempts arrives, and their number."""
    if loss == 0:
        return True, 1
    for attempt, drawn in enumerate(uniform(key, 1 + retries, dtype=torch.float64).tolist(), start=1):
        if drawn >= loss:
            return True, attempt
    return False, 1 + retries


@dataclass(frozen=True)
class FleetChannel(CheckedFields, ABC):
    """Base of channels with the devices of a fleet.

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
