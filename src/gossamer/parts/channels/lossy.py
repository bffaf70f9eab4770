"""Lossy channel: independent message losses with a fixed probability."""

from dataclasses import dataclass

from gossamer.core.channel import AnyDevice, Receipt
from gossamer.core.errors import require, wrong
from gossamer.core.random import Key, uniform
from gossamer.core.types import Clock


@dataclass(frozen=True)
class Lossy(AnyDevice):
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
