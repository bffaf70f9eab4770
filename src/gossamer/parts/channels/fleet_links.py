"""Fleet channel: every device of a fleet with its own links, availability and speed.

An upload takes latency + bits / rate seconds. The rate is constant (``up``), follows a trace (``up_trace``), or is that
of the radio link, as in the channel ``wireless``. It is lost with the probability ``loss``, or with the outage
probability of the radio link. With ``retries``, a lost message is sent again, and every attempt costs time and energy.
Downloads take latency + bits / rate (``down``, ``down_trace`` or ``down_bandwidth``), or nothing, and always arrive.

Energy: ``power`` times the seconds of sending, ``receive_power`` times those of receiving, and computation as in the
channel ``wireless``. A device with ``half_batch`` h computes batches of b samples in 1 + h / b times the seconds.
"""

from dataclasses import dataclass, field

from gossamer.core.availability import Availability
from gossamer.core.errors import require, wrong
from gossamer.core.random import Key, fold
from gossamer.parts.channels.cell import Cell, FleetChannel

PLAUSIBLE = "sample:phones"
"""The fleet of a run without a fleet: plausible phones, as ``Fleet.sample`` draws them."""


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

    def fit(self, clients: int, key: Key) -> "FleetRun":
        """Return the links and devices of a run. Drawn values depend on the run's key and on ``seed``."""
        return FleetRun(self.fleet, self.fading, clients, self._drawn(key), retries=self.retries)


@dataclass(frozen=True)
class FleetRun(Cell):
    """The links and devices of one run, and when clients are available."""

    _available: dict[int, Availability] = field(default_factory=dict, init=False, repr=False, compare=False)

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
