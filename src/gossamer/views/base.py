"""What a view is, and what it may ask of the network that it is a view of."""

from typing import ClassVar, Protocol, TypeVar

from gossamer.random import Key
from gossamer.solvers import Solver
from gossamer.types import Clock, Params, Part
from gossamer.widths import Widths

T = TypeVar("T")


class Network(Protocol):
    """What a view is fitted to."""

    def outline(self) -> Params:
        """The tensors that travel, of which only names, shapes, type and device can be relied on."""
        ...

    def widths(self, streams: bool = True) -> Widths:
        """The network's width rule."""
        ...

    def check(self, params: Params) -> None:
        """Refuse tensors with which the network does not work, saying where."""
        ...

    def memory(self, params: Params, solver: Solver) -> int:
        """Bytes that a client with these tensors needs for training."""
        ...

    @property
    def clients(self) -> int:
        """How many clients there are."""
        ...


class View(Protocol):
    """Says which part of the model a client holds: a pure function of the model's shapes, the clock and the key.

    common: whether it is the same for all clients of a round, whose messages then share one body
    """

    common: ClassVar[bool]

    def fit(self, network: Network, solver: Solver) -> "View":
        """The view of this network, with all that has to be known of it; done once, before the first round."""
        ...

    def part(self, like: Params, clock: Clock, key: Key) -> Part:
        """The part that ``clock.client`` holds in ``clock.round``; server and client both work it out."""
        ...


class AnyNetwork:
    """A view that needs to know nothing but the shapes of tensors."""

    def fit(self: T, network: Network, solver: Solver) -> T:
        """The view as it is."""
        return self
