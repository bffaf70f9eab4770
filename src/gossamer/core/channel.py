"""Channel interface: whether an upload arrives, what communication and computation cost, and when devices are there.

Only the simulator uses channels. In a deployment, the network itself delivers or loses messages. Under a schedule,
``clock.seconds`` is the virtual time at which a transfer or a computation starts; without one it is 0.

A complete channel that loses every third upload of a client:

    @dataclass(frozen=True)
    class EveryThird(Channel):
        def send(self, nbytes, clock, key):
            return Receipt(delivered=clock.round % 3 != 2)
"""

from abc import ABC, abstractmethod
from typing import NamedTuple

from gossamer.core.availability import ALWAYS, Availability
from gossamer.core.fields import CheckedFields
from gossamer.core.random import Key
from gossamer.core.types import Clock, Flops


class Cost(NamedTuple):
    """Time and energy.

    Args:
        seconds: the time
        joules: the energy
    """

    seconds: float = 0.0
    joules: float = 0.0


class Receipt(NamedTuple):
    """Whether a message was delivered, and what its transmission cost.

    Args:
        delivered: whether the message arrived
        seconds: the transmission time
        joules: the transmission energy
    """

    delivered: bool
    seconds: float = 0.0
    joules: float = 0.0


class Channel(CheckedFields, ABC):
    """The simulated links and devices of all clients. By default, devices cost nothing and never leave."""

    def fit(self, clients: int, key: Key) -> "Channel":
        """Return the channel for a run, given the number of clients and the run's key. Called once per run."""
        return self

    @abstractmethod
    def send(self, nbytes: int, clock: Clock, key: Key) -> Receipt:
        """Send an upload of ``nbytes`` from ``clock.client`` in ``clock.round``. The key decides random losses."""

    def receive(self, nbytes: int, clock: Clock, key: Key) -> Cost:
        """Return the cost of a download of ``nbytes`` to ``clock.client``. Downloads always arrive."""
        return Cost()

    def work(self, flops: Flops, clock: Clock, key: Key) -> Cost:
        """Return the cost of the FLOPs that ``clock.client`` computes in ``clock.round``."""
        return Cost()

    # What schedules ask a channel that is fitted to its run.

    def availability(self, client: int) -> Availability:
        """Return when a client is available."""
        return ALWAYS

    def pauses(self, client: int) -> bool:
        """Return whether a client that leaves keeps its work, and goes on when it is back. Otherwise it is lost."""
        return False

    def idle_power(self, client: int) -> float:
        """Return the watts of a client that has finished its work and waits for the end of the round."""
        return 0.0
