"""Server interface: aggregate client updates into the next global model.

A ``Server`` is configuration. Binding it to a network and its clients gives a ``BoundServer``. A server that needs
nothing from the network extends ``BoundServer`` directly: it is its own bound form.

The engine calls a bound server in this order:

    init                     once per run: the server state
    assign                   once per exchange: which client trains which model
    download                 once per client or cohort: the models and sections to send
    begin, fold, finish      once, per arrival, once: the aggregation
    measure                  once per exchange, for a ``MeasuredServer``: metrics for the record

Arrivals are folded in client order, one at a time, so memory does not grow with the cohort. A complete server that
computes the mean of the updates:

    @dataclass(frozen=True)
    class PlainMean(BoundServer):
        def begin(self, state, assigned):
            return {name: torch.zeros_like(t) for name, t in state["params"].items()}, 0.0

        def fold(self, acc, arrival):
            total, samples = acc
            arrival.part.add(total, arrival.change(tree.device(total)), arrival.samples)
            return total, samples + arrival.samples

        def finish(self, state, acc, clock):
            total, samples = acc
            if not samples:
                return state
            return {**state, "params": {n: t + total[n] / samples for n, t in state["params"].items()}}
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, Self

from torch import Tensor

from gossamer.core.exchange import GLOBAL, Arrival, Assignment, Context, Download, Section
from gossamer.core.fields import CheckedFields
from gossamer.core.random import Key, Purpose
from gossamer.core.types import Clock, Params, State


class Server(CheckedFields, ABC):
    """The configuration of a server, before the network is known.

    Args:
        sections: what the server sends in addition to the model; ``BoundServer.download`` gives their values
    """

    sections: ClassVar[tuple[Section, ...]] = ()

    @abstractmethod
    def bind(self, context: Context) -> "BoundServer":
        """Return the server for one network and its clients. Called once, before the first round.

        Raises ``ConfigError`` if the server does not work with the network or with the other parts of the exchange.
        """


class BoundServer(Server):
    """Folds arrivals into one accumulator, in client order, and computes the next server state from it.

    The state is a nest of tensors. ``state["params"]`` is the global model. All exchanges of a round share one state.
    """

    def bind(self, context: Context) -> Self:
        """Return the server itself: it needs nothing from the network."""
        return self

    def init(self, params: Params) -> State:
        """Return the server's entries of the state before the first round. ``params`` is the initial model."""
        return {"params": params}

    def assign(self, state: State, cohort: Sequence[int], clock: Clock, key: Key) -> Mapping[int, Assignment] | None:
        """Return which model each client of the cohort trains. By default, all train the global model.

        A client without an entry is not contacted. ``None`` skips the exchange in this round. The key is the run's.
        """
        return dict.fromkeys(cohort, GLOBAL)

    def download(self, state: State, assignment: Assignment) -> Download:
        """Return the models and the section values that go to a client. By default, the global model.

        Of several models, the client trains the one with the smallest loss on its samples.
        """
        return Download((state["params"],))

    @abstractmethod
    def begin(self, state: State, assigned: Mapping[int, Assignment]) -> Any:
        """Return the empty accumulator. ``assigned`` is the result of ``assign``."""

    @abstractmethod
    def fold(self, acc: Any, arrival: Arrival) -> Any:
        """Return the accumulator with one more arrival. May modify and return ``acc``.

        Raises ``PayloadError`` to refuse the arrival; the accumulator must then be unchanged.
        """

    @abstractmethod
    def finish(self, state: State, acc: Any, clock: Clock) -> State:
        """Return the state after the exchange. Without arrivals, return the state unchanged.

        Only a server that adds noise for privacy changes the model without arrivals: noise hides that there are none.
        """


class ModelPerClient(BoundServer):
    """A server that keeps a personalized model for each client."""

    @abstractmethod
    def home(self, client: int) -> Assignment:
        """Return the assignment with which a client downloads its own model. Called for evaluation and deployment."""


class MeasuredServer(BoundServer):
    """A server that adds metrics to the record of a round."""

    @abstractmethod
    def measure(self, state: State, acc: Any) -> dict[str, Any]:
        """Return metrics by name. Called after ``finish``, with the new state and the final accumulator."""


class CohortServer(BoundServer):
    """A server that needs a minimum number of clients per round."""

    @abstractmethod
    def check_cohort(self, clients: int) -> None:
        """Raise ``ConfigError`` if a round needs more clients than these. Called once, before the first round."""


class ReplayableServer(BoundServer):
    """A server whose aggregation clients can repeat, as the exact delta downlink needs.

    The result must have the same bits on every device. Each tensor of the new model must depend on the same tensor of
    the old model and of the updates alone, or on those of its group in ``joint``. ``begin`` and ``finish`` may get a
    state with some tensors of the model alone, but with all or none of a group.

    Args:
        replays: whether this holds for the class. Each class declares it for itself: a subclass that declares nothing
            cannot be replayed
        replays_parts: whether it also holds where clients hold parts of the model
        replayed_state: the entries of the state that clients compute too, with ``init`` and ``finish``, in addition to
            the model. Each has tensors by the names of the model's tensors, and is the value of the server's section of
            the same name, which is then not sent
    """

    replays: ClassVar[bool] = False
    replays_parts: ClassVar[bool] = False
    replayed_state: ClassVar[tuple[str, ...]] = ()

    def purposes(self, version: int) -> Iterable[Purpose]:
        """Return the purposes of the run's key with which clients repeat the aggregation of a round."""
        return ()

    @property
    def joint(self) -> tuple[frozenset[str], ...]:
        """Groups of tensors of which each depends on all others. By default, there are none."""
        return ()

    def unreplayable(self) -> str:
        """Return why clients cannot repeat ``begin``, ``fold`` and ``finish`` bit for bit; empty if they can."""
        declared = vars(type(self)).get("replays", False)
        name = type(self).__name__.removeprefix("Bound")
        return "" if declared else f"{name} does not declare that clients can repeat its aggregation"


class SumServer(BoundServer):
    """A server that needs only the sum of the clients' vectors from ``Summing.to_sum``, not each of them.

    This is what secure aggregation gives to a server.

    Args:
        folds_sums: whether this holds for the class. Each class declares it for itself: a subclass that declares
            nothing gets every update
    """

    folds_sums: ClassVar[bool] = False

    @property
    @abstractmethod
    def equal_weights(self) -> bool:
        """Whether all clients have the weight 1."""

    @abstractmethod
    def fold_sum(self, acc: Any, arrival: Arrival, total: Tensor, clients: int) -> Any:
        """Return the accumulator with the sum of several clients' vectors. May modify and return ``acc``.

        Up to rounding, the result is that of ``fold`` for each client, where the vectors are whole numbers
        (``IntegerSums``) and all clients have the weight 1. ``arrival`` stands for the clients: they share its part,
        layout and ``from_sum``. ``total`` may have any type.
        """


class SummingServer(ReplayableServer, SumServer):
    """A ``SumServer`` whose ``fold_sum`` gives the same bits as ``fold`` for each client.

    This holds where no step rounds: the server decodes the sum once, or the decoded vectors are whole numbers too.
    """


class RelayingServer(SummingServer):
    """A ``SummingServer`` whose sum can be sent on to clients, which continue the aggregation with the same bits.

    The vectors may be any numbers: their sum depends on the order in which the server has added them.
    """

    @abstractmethod
    def total(self, acc: Any) -> tuple[Tensor, float] | None:
        """Return the sum of the folded vectors and of their weights; none if there is not exactly one sum."""

    @abstractmethod
    def fold_total(self, acc: Any, arrival: Arrival, total: Tensor, weight: float) -> Any:
        """Return the empty accumulator with a sum from ``total``. ``arrival`` is as in ``fold_sum``."""


def unreplayable(server: BoundServer, whole: bool = True) -> str:
    """Return why clients cannot repeat the aggregation of a server bit for bit; empty if they can.

    ``whole`` is whether clients hold the whole model.
    """
    name = type(server).__name__.removeprefix("Bound")
    if not isinstance(server, ReplayableServer):
        return f"{name} is not a ReplayableServer"
    parts = f"{name} does not declare that clients can repeat it where they hold parts of the model"
    return server.unreplayable() or ("" if whole or server.replays_parts else parts)


def unsummable(server: Server) -> str:
    """Return why a server needs more than the sum of the clients' vectors, with equal weights; empty if it does not."""
    name = type(server).__name__.removeprefix("Bound")
    if not (isinstance(server, SumServer) and vars(type(server)).get("folds_sums", False)):
        return f"{name} needs every update, not only their sum: use Mean, SumThenDecode or a server optimizer"
    weights = f"{name} gives clients different weights: use weights='uniform' (--weights uniform)"
    return "" if server.equal_weights else weights
