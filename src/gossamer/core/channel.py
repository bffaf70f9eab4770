"""What a channel is."""

from typing import NamedTuple, Protocol, TypeVar

from gossamer.core.random import Key
from gossamer.core.types import Clock, Flops

T = TypeVar("T")


class Cost(NamedTuple):
    """What something takes."""

    seconds: float = 0.0
    joules: float = 0.0


class Receipt(NamedTuple):
    """What became of a message, and what sending it cost."""

    delivered: bool
    seconds: float = 0.0
    joules: float = 0.0


class Channel(Protocol):
    """Carries a client's message to the server, or loses it, and says what this and the client's work cost."""

    def fit(self, clients: int, key: Key) -> "Channel":
        """The channel of a run with so many clients, whose key this is; done once, before the first round."""
        ...

    def send(self, nbytes: int, clock: Clock, key: Key) -> Receipt:
        """The fate of a message of ``nbytes`` that ``clock.client`` sends in ``clock.round``."""
        ...

    def work(self, flops: Flops, clock: Clock, key: Key) -> Cost:
        """What so many operations take that ``clock.client`` does in ``clock.round``."""
        ...


class AnyDevice:
    """A channel that knows nothing of devices: what they compute costs nothing."""

    def fit(self: T, clients: int, key: Key) -> T:
        """The channel as it is."""
        return self

    def work(self, flops: Flops, clock: Clock, key: Key) -> Cost:
        """Nothing."""
        return Cost()
