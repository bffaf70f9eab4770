"""Steps of a delta downlink: how the model of one version becomes that of the next, as bytes."""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any, ClassVar

from gossamer.core.exchange import Arrival
from gossamer.core.random import Purpose
from gossamer.core.types import Clock, Layout, Params, State


class Steps(ABC):
    """Makes and takes steps.

    Args:
        exact: whether clients then hold the server's model
        layout: the tensors that the steps cover
        replayed: the entries of the server state, in addition to the model, that the steps cover
    """

    exact: ClassVar[bool]
    layout: Layout
    replayed: tuple[str, ...] = ()

    def begin(self) -> Any:
        """Return the notes of a round before its first arrival."""
        return None

    def note(self, notes: Any, arrival: Arrival, room: int) -> Any:
        """Return the notes with what a step contains of one more arrival. May modify and return ``notes``.

        Steps with more than ``room`` bytes are not kept, so their notes need not be completed.
        """
        return notes

    def purposes(self, step: bytes, version: int) -> Iterable[Purpose]:
        """Return the purposes of the run's key with which a client takes a step."""
        return ()

    @abstractmethod
    def make(self, held: Params, model: Params, notes: Any, version: int) -> bytes:
        """Return the step of a round.

        ``held`` is the model that clients hold in it, ``model`` the server's new model. ``notes`` are those of the
        round's arrivals. ``version`` is the round.
        """

    @abstractmethod
    def take(self, held: State, step: bytes, clock: Clock) -> State:
        """Return the covered tensors after a step from version ``clock.round``. Called on both sides.

        ``held`` has those of the model as ``params``, and the entries of ``replayed``; so has the result. Raises
        ``PayloadError`` for bytes that ``make`` cannot have produced.
        """
