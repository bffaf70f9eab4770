"""View interface: which entries of the model a client holds and trains.

A ``View`` is configuration. Binding it to a network gives a ``BoundView``, which returns the ``Part`` of each client
in each round. Server and client call it with the same arguments, so both know the part and no indices are sent.

Choose the base class by what the view needs:

    BoundView     only names and shapes of the tensors: the view is its own bound form
    View          the network's width rule or the clients' capacities: ``bind`` returns another object
    DescribedView the values of the model: the server sends the part together with the model
    ViewMemory    a part per client that changes during training: a personal mask

A complete view with a random half of all entries, drawn anew for each client and round:

    @dataclass(frozen=True)
    class RandomHalf(BoundView):
        def part(self, like, clock, key, memory=None):
            drawn = {name: uniform(fold(key, name), t.numel(), device=t.device) for name, t in like.items()}
            return Part(keep={name: (drawn[name] < 0.5).to(t).view(t.shape) for name, t in like.items()})
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, Self

from gossamer.core.exchange import Context, LocalTrainingInfo
from gossamer.core.fields import CheckedFields
from gossamer.core.random import Key, Purpose
from gossamer.core.types import Clock, Params, Part, Payload, State


class View(CheckedFields, ABC):
    """The configuration of a view, before the network is known.

    Args:
        whole: whether every client always holds the whole model
    """

    whole: ClassVar[bool] = False

    @abstractmethod
    def bind(self, context: Context) -> "BoundView":
        """Return the view for one network and its clients. Called once, before the first round.

        Raises ``ConfigError`` if the view does not work with the network or with the other parts of the exchange.
        """


class BoundView(View):
    """Returns the part of the model that a client holds.

    ``part`` and ``sent`` are pure functions of the model's shapes, the clock, the client's random key and its view
    state.

    Args:
        common: whether all clients of a round receive the same part
        predictable: whether every machine knows the part of any client in any round: it follows from names, shapes,
            clock and key alone, not from values or a state
    """

    common: ClassVar[bool] = False
    predictable: ClassVar[bool] = False

    def bind(self, context: Context) -> Self:
        """Return the view itself: it needs nothing from the network."""
        return self

    def sent(self, like: Params, clock: Clock, key: Key, memory: State | None = None) -> Part:
        """Return the part that the server sends to the client. By default, it is the part that the client holds.

        A view whose part depends on the model's values returns the whole model here. The client then calls ``part``
        with the received values.
        """
        return self.part(like, clock, key, memory)

    @abstractmethod
    def part(self, like: Params, clock: Clock, key: Key, memory: State | None = None) -> Part:
        """Return the part that ``clock.client`` holds in ``clock.round``. Called by server and client.

        ``like`` has the names and shapes of the whole model. ``memory`` is the client's state in a ``ViewMemory``;
        ``None`` stands for its first state.
        """

    def purposes(self, client: int) -> Iterable[Purpose]:
        """Return the purposes for which a client draws from ``Context.shared_key(None)``, the run's own key.

        A deployed client is given the keys of these purposes, and never the run's key.
        """
        return ()


class NestedView(BoundView):
    """A view with which clients can train each other's models."""

    @property
    @abstractmethod
    def nested(self) -> bool:
        """Whether parts are constant over rounds, and the smaller of any two parts is contained in the larger."""


class DescribedView(BoundView):
    """A view whose part depends on the model's values, which the client does not have before the download.

    The server calls ``part`` with the global model, and sends the part in a section next to the part's values. A part
    that is the whole model is not described.
    """

    section: ClassVar[str] = "part"
    """The name of the section that carries the part."""

    @abstractmethod
    def describe(self, part: Part, like: Params) -> Payload:
        """Return the arrays from which ``restore`` returns the part. Called by the server."""

    @abstractmethod
    def restore(self, payload: Payload, like: Params) -> Part:
        """Return the part behind the arrays of ``describe``. Called by the client.

        ``like`` has the names and shapes of the whole model. The payload is untrusted. Raises ``PayloadError`` for a
        payload that ``describe`` cannot have produced.
        """


class ViewMemory(BoundView):
    """A view with a part per client that changes after local training.

    Both sides keep the state of each client. After training, the client calls ``revise`` and sends the payload in its
    upload. When the server folds the upload in, it calls ``follow`` with that payload and gets the same state.
    """

    section: ClassVar[str] = "part"
    """The name of the section that carries the payload from ``revise``."""

    @property
    def screens(self) -> bool:
        """Whether ``revise`` asks for the gradient after training. If so, an executor may compute it with the steps."""
        return False

    @abstractmethod
    def first(self, client: int) -> State:
        """Return the state of a client before its first round."""

    @abstractmethod
    def revise(self, memory: State, info: LocalTrainingInfo, clock: Clock, key: Key) -> tuple[State, Payload]:
        """Return the state for the next round, and the payload for the server. Called by the client after training.

        Return ``memory`` itself if nothing changes.
        """

    @abstractmethod
    def follow(self, memory: State, payload: Payload, like: Params) -> State:
        """Return the state after a payload from ``revise``. Called by the server.

        The payload is untrusted. Raises ``PayloadError`` for a payload that ``revise`` cannot have produced.
        """

    def measure(self, before: Mapping[int, State], after: Mapping[int, State], like: Params) -> dict[str, Any]:
        """Return metrics for the round's record, by name.

        ``before`` and ``after`` are the states of the clients whose uploads were folded in.
        """
        return {}
