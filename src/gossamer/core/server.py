"""Server interface: aggregate client updates into the next global model.

A ``Server`` is a value. The engine calls it in this order:

    bind                     once, before the first round: what follows from the network and its clients
    init                     once per run: the server state
    assign                   once per exchange: which client trains which model
    download                 once per client or cohort: the models and sections to send
    begin, fold, finish      once, per arrival, once: the aggregation
    measure                  once per exchange: metrics for the record

``begin``, ``fold`` and ``finish`` must be written. All other methods have a default that means "nothing special".
Arrivals are folded in client order, one at a time, so memory does not grow with the cohort. A complete server that
computes the mean of the updates:

    @dataclass(frozen=True)
    class PlainMean(Server):
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

A class is either abstract or has no subclasses. So a method that says what a class can do, such as ``unsummable``, is
never inherited by a class of which it does not hold.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

from torch import Tensor

from gossamer.core.exchange import GLOBAL, Arrival, Assignment, Context, Download, Section
from gossamer.core.fields import CheckedFields
from gossamer.core.privacy import Guarantee, Participation
from gossamer.core.random import Key, Purpose
from gossamer.core.types import Clock, Params, State


class Server(CheckedFields, ABC):
    """Folds arrivals into one accumulator, in client order, and computes the next server state from it.

    The state is a nest of tensors. ``state["params"]`` is the global model. All exchanges of a round share one state.

    Args:
        sections: what the server sends in addition to the model; ``download`` gives their values
        sums_codes: whether ``fold`` adds encoded updates (``Arrival.to_sum``), whose sum ``finish`` decodes once
        replayed_state: the entries of the state, in addition to the model, that clients compute too where they repeat
            the aggregation. Each has tensors by the names of the model's tensors, and is the value of the server's
            section of the same name, which is then not sent
        private: whether the server adds noise to the model, so that it has a ``guarantee``
        secret_state: the entries of the state from which a reader would learn what the noise hides. Checkpoints of a
            run with noise from the operating system hold them encrypted. The models must not depend on them: who looks
            at a run has models without these entries
    """

    sections: ClassVar[tuple[Section, ...]] = ()
    sums_codes: ClassVar[bool] = False
    replayed_state: ClassVar[tuple[str, ...]] = ()
    private: ClassVar[bool] = False
    secret_state: ClassVar[tuple[str, ...]] = ()

    def bind(self, context: Context) -> "Server":
        """Return the server for one network and its clients. By default, it needs nothing from them.

        What follows from them are fields that are not configuration, and ``filled`` sets them. Raises ``ConfigError``
        if the server does not work with the network or with the other parts of the exchange.
        """
        return self

    def check_cohort(self, clients: int) -> None:
        """Raise ``ConfigError`` if a round needs more clients than these. Called once, before the first round."""

    # A round.

    def init(self, params: Params) -> State:
        """Return the server's entries of the state before the first round. ``params`` is the initial model."""
        return {"params": params}

    def assign(self, state: State, cohort: Sequence[int], clock: Clock, key: Key) -> Mapping[int, Assignment] | None:
        """Return which model each client of the cohort trains. By default, all train the global model.

        A client without an entry is not contacted. ``None`` skips the exchange in this round. The key is the run's.
        """
        return dict.fromkeys(cohort, GLOBAL)

    def home(self, client: int) -> Assignment:
        """Return the assignment with which a client downloads the model that it deploys. By default, the global model.

        A server that keeps a model for each client names the client as its owner.
        """
        return GLOBAL

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

        Only a ``private`` server changes the model without arrivals: noise hides that there are none.
        """

    def measure(self, state: State, acc: Any) -> dict[str, Any]:
        """Return metrics for the record, by name. ``state`` is the new one, and ``acc`` the final accumulator."""
        return {}

    # Aggregation that clients repeat, as the exact delta downlink needs.

    def unreplayable(self, whole: bool = True) -> str:
        """Return why clients cannot repeat ``begin``, ``fold`` and ``finish`` bit for bit; empty if they can.

        The result must have the same bits on every device. Each tensor of the new model must depend on the same tensor
        of the old model and of the updates alone, or on those of its group in ``joint``. ``begin`` and ``finish`` may
        get a state with some tensors of the model alone, but with all or none of a group. ``whole`` is whether clients
        hold the whole model.
        """
        return f"{type(self).__name__} does not declare that clients can repeat its aggregation"

    def purposes(self, version: int) -> Iterable[Purpose]:
        """Return the purposes of the run's key with which clients repeat the aggregation of a round."""
        return ()

    @property
    def joint(self) -> tuple[frozenset[str], ...]:
        """Groups of tensors of which each depends on all others. By default, there are none."""
        return ()

    # Sums in place of updates, as secure aggregation gives them.

    @property
    def equal_weights(self) -> bool:
        """Whether all clients have the weight 1 in the sum of their updates. By default, they do."""
        return True

    def unsummable(self, exact: bool = False) -> str:
        """Return why ``fold_sum`` cannot replace ``fold``; empty if it can. By default, each update is needed.

        With ``exact``, it must also give the same bits. This holds where no step rounds: the server decodes the sum
        once (``sums_codes``), or the decoded vectors are whole numbers too.
        """
        others = "SumThenDecode" if exact else "Mean, SumThenDecode or a server optimizer"
        return f"{type(self).__name__} needs every update, not only their sum: use {others}"

    def fold_sum(self, acc: Any, arrival: Arrival, total: Tensor, clients: int) -> Any:
        """Return the accumulator with the sum of several clients' vectors (``Codec.to_sum``). May modify ``acc``.

        Up to rounding, the result is that of ``fold`` for each client, where the vectors are whole numbers
        (``Codec.sum_segments``) and all clients have the weight 1. ``arrival`` stands for the clients: they share its
        part, layout and ``from_sum``. ``total`` may have any type. Called only where ``unsummable`` is empty.
        """
        raise NotImplementedError(self.unsummable())

    def total(self, acc: Any) -> tuple[Tensor, float] | None:
        """Return the sum of the encoded updates and that of their weights; none if there is not exactly one sum.

        A server with ``sums_codes`` has it. It can be sent on to clients, which continue with ``fold_total``. The
        vectors may be any numbers: their sum depends on the order in which the server has added them.
        """
        return None

    def fold_total(self, acc: Any, arrival: Arrival, total: Tensor, weight: float) -> Any:
        """Return the empty accumulator with a sum from ``total``. ``arrival`` is as in ``fold_sum``."""
        raise NotImplementedError(self.unsummable())

    # Differential privacy.

    def guarantee(self, participation: Participation) -> Guarantee | None:
        """Return the guarantee of a run; none if the server is not ``private``.

        Raises ``ConfigError`` if a private server has none, with the reason.
        """
        return None
