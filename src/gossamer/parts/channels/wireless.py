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
from dataclasses import dataclass

from gossamer.core.errors import Mistake, Setting, require, wrong
from gossamer.core.random import Key
from gossamer.fleet.fleet import Fleet
from gossamer.parts.channels.cell import Cell, FleetChannel

__all__ = ["Cell", "Wireless"]

OTHERS = ("up", "down", "up_trace", "down_trace", "availability", "on_leave", "idle_power")
"""Fields of devices that only the channel ``fleet`` uses."""


def not_radio(fleet: Fleet) -> list[str]:
    """Return which devices of a fleet are described by more than radio links and processors."""
    given = ((device, [name for name in device.changed if name in OTHERS]) for device in fleet.devices)
    return [f"{device.name} has {names[0]}" for device, names in given if names]


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
        rest, about = ", which this channel does not use: take the channel fleet", Setting("Wireless", "fleet")
        found = [Mistake(f": {text}{rest}", about) for text in not_radio(self.fleet)]
        require(
            *((False, mistake) for mistake in found[:1]),
            (all(0 < p < math.inf for p in self.powers), wrong(self, "powers", "must be positive")),
            (self.retries >= 0, wrong(self, "retries", "must not be negative")),
        )

    def fit(self, clients: int, key: Key) -> Cell:
        """Return the links and devices of a run. Drawn values depend on the run's key and on ``seed``."""
        count = len(self.powers)
        require((count in (0, 1, clients), f"Wireless.powers must have 1 or {clients} values, got {count}"))
        return Cell(self.fleet, self.fading, clients, self._drawn(key), self.powers, self.retries)
