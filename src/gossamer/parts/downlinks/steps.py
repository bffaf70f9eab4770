"""Steps of a delta downlink: how the model of one version becomes that of the next, as bytes."""

from abc import ABC, abstractmethod
from typing import ClassVar

from gossamer.core.exchange import Arrival
from gossamer.core.types import Clock, Layout, Params


class Steps(ABC):
    """Makes and takes steps.

    Args:
        exact: whether clients then hold the server's model
        layout: the tensors that the steps cover
    """

    exact: ClassVar[bool]
    layout: Layout

    def note(self, arrival: Arrival) -> bytes:
        """Return what a step contains of an arrival."""
        return b""

    @abstractmethod
    def make(self, held: Params, model: Params, notes: bytearray, version: int) -> bytes:
        """Return the step of a round.

        ``held`` is the model that clients hold in it, ``model`` the server's new model. ``notes`` are those of the
        arrivals, one after the other. ``version`` is the round.
        """

    @abstractmethod
    def take(self, held: Params, step: bytes, clock: Clock) -> Params:
        """Return the covered tensors after a step from version ``clock.round``. Called on both sides.

        Raises ``PayloadError`` for bytes that ``make`` cannot have produced.
        """
