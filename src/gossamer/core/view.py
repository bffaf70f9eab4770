"""What a view is: which entries of the model a client holds.

A view is what one configures; once it is bound to a network it is a ``BoundView``, which says what each client
holds in each round. A view that needs to know nothing but the shapes of tensors is both at once: it extends
``BoundView``. One whose clients each have a part of their own, which changes as they train, extends
``ViewMemory``.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, Self

from gossamer.core.exchange import Context, LocalTrainingInfo
from gossamer.core.random import Key
from gossamer.core.types import Clock, Params, Part, Payload, State


class View(ABC):
    """Which part of the model a client holds, before the network is known.

    Args:
        whole: whether that is always the whole model
    """

    whole: ClassVar[bool] = False

    @abstractmethod
    def bind(self, context: Context) -> "BoundView":
        """The view of a network; done once, before the first round. It may refuse what it does not go with."""


class BoundView(View):
    """Says which part of the model a client holds: a pure function of the model's shapes, the clock and the key.

    Args:
        common: whether all clients of a round are sent the same
    """

    common: ClassVar[bool] = False

    def bind(self, context: Context) -> Self:
        """The view itself, if there is nothing that it has to know of the network."""
        return self

    def sent(self, like: Params, clock: Clock, key: Key, memory: State | None = None) -> Part:
        """The part that is sent to the client, if that is not the part that it holds.

        Where that is the whole model, ``part`` is given the values that were sent, and may go by them.
        """
        return self.part(like, clock, key, memory)

    @abstractmethod
    def part(self, like: Params, clock: Clock, key: Key, memory: State | None = None) -> Part:
        """The part that ``clock.client`` holds in ``clock.round``; server and client both work it out.

        ``memory`` is what a view with memory has of the client; none is what the client starts with.
        """


class NestedView(BoundView):
    """A view of which clients can train each other's models."""

    @property
    @abstractmethod
    def nested(self) -> bool:
        """Whether clients' parts never change, and of any two the smaller lies within the larger."""


class ViewMemory(BoundView):
    """A view that remembers a part for each client, and revises it after training, at the client and at the server."""

    section: ClassVar[str] = "part"
    """What is called that tells the server of a new part."""

    @abstractmethod
    def first(self, client: int) -> State:
        """The part that a client starts with."""

    @abstractmethod
    def revise(self, memory: State, info: LocalTrainingInfo, clock: Clock, key: Key) -> tuple[State, Payload]:
        """The part from the next round on, and what tells the server; the same object, if nothing changes."""

    @abstractmethod
    def follow(self, memory: State, said: Payload, like: Params) -> State:
        """The same on the server's side; ``PayloadError`` says what is wrong with what a client said."""

    def measure(self, before: Mapping[int, State], after: Mapping[int, State], like: Params) -> dict[str, Any]:
        """What goes into a round's record of those whose messages were folded, by name."""
        return {}
