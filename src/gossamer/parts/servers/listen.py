"""A server that only listens: what clients say is for whoever asked, and the model stays as it is."""

from collections.abc import Mapping
from dataclasses import dataclass

from gossamer.core.exchange import Arrival, Assignment
from gossamer.core.server import BoundServer
from gossamer.core.types import Clock, State


@dataclass(frozen=True)
class Listen(BoundServer):
    """Leaves the state as it is."""

    def begin(self, state: State, assigned: Mapping[int, Assignment]) -> None:
        """Nothing is added up."""

    def fold(self, acc: None, arrival: Arrival) -> None:
        """Nothing is added up."""

    def finish(self, state: State, acc: None, clock: Clock) -> State:
        """As it was."""
        return state
