"""What a channel is."""

from typing import NamedTuple, Protocol

from gossamer.random import Key
from gossamer.types import Clock


class Receipt(NamedTuple):
    """What became of a message, and what sending it cost."""

    delivered: bool
    seconds: float = 0.0
    joules: float = 0.0


class Channel(Protocol):
    """Carries a client's message to the server, or loses it."""

    def send(self, nbytes: int, clock: Clock, key: Key) -> Receipt:
        """The fate of a message of ``nbytes`` that ``clock.client`` sends in ``clock.round``."""
        ...
