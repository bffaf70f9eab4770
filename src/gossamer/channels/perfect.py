"""The channel of most papers: everything arrives, at once and for nothing."""

from dataclasses import dataclass

from gossamer.channels.base import AnyDevice, Receipt
from gossamer.random import Key
from gossamer.types import Clock


@dataclass(frozen=True)
class Perfect(AnyDevice):
    """Every message arrives."""

    def send(self, nbytes: int, clock: Clock, key: Key) -> Receipt:
        """Delivered, free of charge."""
        return Receipt(delivered=True)
