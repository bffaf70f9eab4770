"""View interface: which entries of the model a client holds and trains.

A ``View`` is a value. It returns the ``Part`` of each client in each round. Server and client call it with the same
arguments, so both know the part and no indices are sent. Only ``part`` must be written; all other methods have a
default that means "nothing special". ``bind`` returns the view with what follows from the network, such as its width
rule.

Two kinds of views need more than names and shapes of the tensors. They name the ``section`` of a message with which one
side tells the other:

    PART      the part depends on the values of the model, which only the server has before the download. It sends the
              part together with the model: ``describe``, ``restore``
    CHANGE    each client has a part of its own, which changes after training: a personal mask. Both sides keep it, and
              the client sends the change with its upload: ``first``, ``revise``, ``follow``, ``measure``

A complete view with a random half of all entries, drawn anew for each client and round:

    @dataclass(frozen=True)
    class RandomHalf(View):
        def part(self, like, clock, key, memory=None):
            drawn = {name: uniform(fold(key, name), t.numel(), device=t.device) for name, t in like.items()}
            return Part(keep={name: (drawn[name] < 0.5).to(t).view(t.shape) for name, t in like.items()})
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, Final, Literal

from gossamer.core.exchange import Context, LocalTrainingInfo
from gossamer.core.fields import CheckedFields
from gossamer.core.random import Key, Purpose
from gossamer.core.types import Clock, Params, Part, Payload, State

PART: Final = "part"
CHANGE: Final = "mask"


class View(CheckedFields, ABC):
    """Returns the part of the model that a client holds.

    ``part`` and ``sent`` are pure functions of the model's shapes, the clock, the client's random key and its view
    state.

    Args:
        section: the name of the section with which one side tells the other about the part: ``PART`` or ``CHANGE``;
            none if both compute it
        whole: whether every client always holds the whole model
    """

    section: ClassVar[Literal["part", "mask"] | None] = None
    whole: ClassVar[bool] = False

    @property
    def common(self) -> bool:
        """Whether all clients of a round receive the same part."""
        return self.whole

    @property
    def predictable(self) -> bool:
        """Whether every machine knows the part of any client in any round, also of another client.

        The part then follows from names, shapes, clock and key alone, not from values or a state.
        """
        return self.whole

    @property
    def nested(self) -> bool:
        """Whether parts are constant over rounds, and the smaller of any two parts is contained in the larger.

        Clients can then train each other's models.
        """
        return self.whole

    def bind(self, context: Context) -> "View":
        """Return the view for one network and its clients. By default, it needs nothing from them.

        What follows from them are fields that are not configuration, and ``filled`` sets them. Raises ``ConfigError``
        if the view does not work with the network or with the other parts of the exchange.
        """
        return self

    @abstractmethod
    def part(self, like: Params, clock: Clock, key: Key, memory: State | None = None) -> Part:
        """Return the part that ``clock.client`` holds in ``clock.round``. Called by server and client.

        ``like`` has the names and shapes of the whole model. Where the section is ``PART``, only the server calls it,
        with the values of the global model. ``memory`` is the client's state where it is ``CHANGE``; ``None`` stands
        for its first state.
        """

    def sent(self, like: Params, clock: Clock, key: Key, memory: State | None = None) -> Part:
        """Return the part that the server sends to the client. By default, it is the part that the client holds.

        A view whose part depends on the model's values may return the whole model here. The client then calls ``part``
        with the received values.
        """
        return self.part(like, clock, key, memory)

    def purposes(self, client: int) -> Iterable[Purpose]:
        """Return the purposes for which a client draws from ``Context.shared_key(None)``, the run's own key.

        A deployed client is given the keys of these purposes, and never the run's key.
        """
        return ()

    # PART: the server describes the part to the client.

    def describe(self, part: Part, like: Params) -> Payload:
        """Return the arrays from which ``restore`` returns the part. It is not the whole model, which needs none."""
        return {}

    def restore(self, payload: Payload, like: Params) -> Part:
        """Return the part behind the arrays of ``describe``. Called by the client.

        ``like`` has the names and shapes of the whole model. The payload is untrusted. Raises ``PayloadError`` for a
        payload that ``describe`` cannot have produced.
        """
        return Part()

    # CHANGE: the client changes its part after training, and tells the server.

    @property
    def screens(self) -> bool:
        """Whether ``revise`` asks for the gradient after training. If so, an executor may compute it with the steps."""
        return False

    def first(self, client: int) -> State:
        """Return the state of a client before its first round."""
        return {}

    def revise(self, memory: State, info: LocalTrainingInfo, clock: Clock, key: Key) -> tuple[State, Payload]:
        """Return the state for the next round, and the payload for the server. Called by the client after training.

        Return ``memory`` itself if nothing changes.
        """
        return memory, {}

    def follow(self, memory: State, payload: Payload, like: Params) -> State:
        """Return the state after a payload from ``revise``. Called by the server, when it folds the upload in.

        The payload is untrusted. Raises ``PayloadError`` for a payload that ``revise`` cannot have produced.
        """
        return memory

    def measure(self, before: Mapping[int, State], after: Mapping[int, State], like: Params) -> dict[str, Any]:
        """Return metrics for the round's record, by name.

        ``before`` and ``after`` are the states of the clients whose uploads were folded in.
        """
        return {}
