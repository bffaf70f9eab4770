"""What a server is: a running sum over arrivals, and what becomes of it at the end of the round."""

from typing import Any, NamedTuple, Protocol

from gossamer.types import Clock, Params, Part, State


class Arrival(NamedTuple):
    """One client's decoded change, on the part that it holds, and how much it weighs."""

    client: int
    part: Part
    change: Params
    weight: float


class Server(Protocol):
    """Folds arrivals into one accumulator, in client order, and makes the next model of it."""

    def init(self, params: Params) -> State:
        """What the server holds before the first round."""
        ...

    def model(self, state: State) -> Params:
        """The global model."""
        ...

    def weigh(self, samples: int, batches: int) -> float:
        """How much a client with so many samples counts; worked out by the client and sent along."""
        ...

    def empty(self, state: State) -> Any:
        """The accumulator before the first arrival."""
        ...

    def fold(self, acc: Any, arrival: Arrival) -> Any:
        """The accumulator with one more arrival in it; may reuse ``acc``."""
        ...

    def finish(self, state: State, acc: Any, clock: Clock) -> State:
        """What the server holds after the round; with no arrivals, what it held before."""
        ...
