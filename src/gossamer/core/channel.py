"""Channel interface: whether an upload arrives, and what communication and computation cost.

Only the simulator uses channels. In a deployment, the network itself delivers or loses messages. Under a schedule,
``clock.seconds`` is the virtual time at which a transfer or a computation starts; without one it is 0.
"""

from typing import NamedTuple, Protocol, TypeVar, runtime_checkable

from gossamer.core.availability import Availability
from gossamer.core.fields import CheckedFields
from gossamer.core.random import Key
from gossamer.core.types import Clock, Flops

T = TypeVar("T")


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


class Channel(Protocol):
    """The simulated links and devices of all clients."""

    def fit(self, clients: int, key: Key) -> "Channel":
        """Return the channel for a run, given the number of clients and the run's key. Called once per run."""
        ...

    def send(self, nbytes: int, clock: Clock, key: Key) -> Receipt:
        """Send an upload of ``nbytes`` from ``clock.client`` in ``clock.round``. The key decides random losses."""
        ...

    def receive(self, nbytes: int, clock: Clock, key: Key) -> Cost:
        """Return the cost of a download of ``nbytes`` to ``clock.client``. Downloads always arrive."""
        ...

    def work(self, flops: Flops, clock: Clock, key: Key) -> Cost:
        """Return the cost of the FLOPs that ``clock.client`` computes in ``clock.round``."""
        ...


@runtime_checkable
class DeviceChannel(Protocol):
    """A channel that knows more about devices, as schedules use it. Other channels have devices that never leave."""

    def availability(self, client: int) -> Availability:
        """Return when a client is available. Called for a channel that is fitted to its run."""
        ...

    def pauses(self, client: int) -> bool:
        """Return whether a client that leaves keeps its work, and goes on when it is back. Otherwise it is lost."""
        ...

    def idle_power(self, client: int) -> float:
        """Return the watts of a client that has finished its work and waits for the end of the round."""
        ...


class AnyDevice(CheckedFields):
    """Base of channels without a device model: computation and downloads cost nothing."""

    def fit(self: T, clients: int, key: Key) -> T:
        """Return the channel unchanged."""
        return self

    def receive(self, nbytes: int, clock: Clock, key: Key) -> Cost:
        """Return a cost of zero."""
        return Cost()

    def work(self, flops: Flops, clock: Clock, key: Key) -> Cost:
        """Return a cost of zero."""
        return Cost()
