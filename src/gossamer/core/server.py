"""What a server is: a running sum over arrivals, and what becomes of it at the end of an exchange.

A server is what one configures; once it is bound to a network and its clients it is a ``BoundServer``. One that
needs to know nothing of them is both at once: it extends ``BoundServer``.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self

from gossamer.core.exchange import GLOBAL, Arrival, Assignment, Context, Download, Section
from gossamer.core.random import Key
from gossamer.core.types import Clock, Params, State


class Server(ABC):
    """What happens to arrivals, before the network is known.

    Args:
        sections: what it tells clients beside the model, see ``BoundServer.download``
    """

    sections: ClassVar[tuple[Section, ...]] = ()

    @abstractmethod
    def bind(self, context: Context) -> "BoundServer":
        """The server for a network and its clients; done once, before the first round. It may refuse."""


class BoundServer(Server):
    """Folds arrivals into one accumulator, in client order, and makes the next model of it.

    All exchanges of a round share one state, a nest of tensors of which ``params`` is the global model.
    """

    def bind(self, context: Context) -> Self:
        """The server itself, if there is nothing that it has to know."""
        return self

    def init(self, params: Params) -> State:
        """What it adds to the state before the first round; ``params`` is the model that the run begins with."""
        return {"params": params}

    def assign(self, state: State, cohort: Sequence[int], clock: Clock, key: Key) -> Mapping[int, Assignment] | None:
        """Which model each of a cohort trains; who is not named is not asked. None: no exchange in this round.

        The key is the run's.
        """
        return dict.fromkeys(cohort, GLOBAL)

    def download(self, state: State, assignment: Assignment) -> Download:
        """The models that go down, of which the client chooses the one with the smallest loss, and sections."""
        return Download((state["params"],))

    @abstractmethod
    def begin(self, state: State, assigned: Mapping[int, Assignment]) -> Any:
        """The accumulator before the first arrival."""

    @abstractmethod
    def fold(self, acc: Any, arrival: Arrival) -> Any:
        """The accumulator with one more arrival in it; may reuse ``acc``. ``PayloadError`` refuses the arrival."""

    @abstractmethod
    def finish(self, state: State, acc: Any, clock: Clock) -> State:
        """The state after the exchange; with no arrivals, what it was before."""


class ModelPerClient(BoundServer):
    """A server that has a model for each client, which is what that deploys."""

    @abstractmethod
    def home(self, client: int) -> Assignment:
        """The assignment by which a client gets its own model."""


class MeasuredServer(BoundServer):
    """A server that has something to say of an exchange."""

    @abstractmethod
    def measure(self, state: State, acc: Any) -> dict[str, Any]:
        """What goes into the round's record, by name; ``state`` is that after the exchange."""
