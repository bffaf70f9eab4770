"""A server that leaves the model unchanged. A sampler's probe uses it to read the clients' sections."""

from collections.abc import Mapping
from dataclasses import dataclass

from gossamer.core.exchange import Arrival, Assignment
from gossamer.core.server import BoundServer
from gossamer.core.types import Clock, State


@dataclass(frozen=True)
class Listen(BoundServer):
    """Receives uploads without changing the state."""

    def begin(self, state: State, assigned: Mapping[int, Assignment]) -> None:
        """Return no accumulator."""

    def fold(self, acc: None, arrival: Arrival) -> None:
        """Ignore the update."""

    def finish(self, state: State, acc: None, clock: Clock) -> State:
        """Return the state unchanged."""
        return state
