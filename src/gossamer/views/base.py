"""What a view is, and what it may ask of the network that it is a view of."""

from typing import ClassVar, Protocol, TypeVar

from gossamer.random import Key
from gossamer.random import key as make_key
from gossamer.solvers import Solver
from gossamer.types import Clock, Params, Part, Payload, State
from gossamer.widths import Widths

T = TypeVar("T")


class Network(Protocol):
    """What a view is fitted to."""

    trained: list[str]
    key: Key

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


class Evidence(Protocol):
    """What a client knows when its training is over, by which a personal view is revised."""

    weights: Params
    """Its tensors, zero where it holds nothing."""
    notes: State
    """What its solver noted."""

    def accuracy(self, params: Params) -> float:
        """The share of its training samples that a network with these tensors gets right."""
        ...

    def gradient(self) -> Params:
        """The gradient of all entries, held or not, on one batch of its samples."""
        ...


class View(Protocol):
    """Says which part of the model a client holds: a pure function of the model's shapes, the clock and the key.

    common: whether it is the same for all clients of a round, whose messages then share one body
    personal: whether each client has a part of its own, which it remembers, and revises after training
    by_value: whether the part follows from the model's values: the model is then sent whole, and cut by the client
    """

    common: ClassVar[bool]
    personal: ClassVar[bool]
    by_value: ClassVar[bool]

    @property
    def nested(self) -> bool:
        """Whether clients' parts never change, and of any two the smaller lies within the larger."""
        ...

    def fit(self, network: Network, solver: Solver) -> "View":
        """The view of this network, with all that has to be known of it; done once, before the first round."""
        ...

    def part(self, like: Params, clock: Clock, key: Key, mine: State | None = None) -> Part:
        """The part that ``clock.client`` holds in ``clock.round``; server and client both work it out.

        Of a personal view it is the one that ``mine`` describes; none is the one that the client starts with.
        """
        ...

    def start(self, like: Params, client: int) -> State:
        """The personal part that a client starts with; {} where there is none."""
        ...

    def revise(self, mine: State, evidence: Evidence, clock: Clock, key: Key) -> tuple[State, Payload]:
        """The personal part from the next round on, and what tells the server."""
        ...

    def follow(self, mine: State, said: Payload, like: Params) -> State:
        """The same on the server's side; ``PayloadError`` says what is wrong with what a client said."""
        ...


class Impersonal:
    """A view without personal parts."""

    personal: ClassVar[bool] = False
    by_value: ClassVar[bool] = False

    @property
    def nested(self) -> bool:
        """No."""
        return False

    def start(self, like: Params, client: int) -> State:
        """Nothing."""
        return {}

    def revise(self, mine: State, evidence: Evidence, clock: Clock, key: Key) -> tuple[State, Payload]:
        """Nothing."""
        return {}, {}

    def follow(self, mine: State, said: Payload, like: Params) -> State:
        """Nothing."""
        return {}


def shared_key(seed: int | None, network: Network) -> Key:
    """By what all clients draw alike: a seed of the view's own, or the run's."""
    return network.key if seed is None else make_key(seed)


class AnyNetwork:
    """A view that needs to know nothing but the shapes of tensors."""

    def fit(self: T, network: Network, solver: Solver) -> T:
        """The view as it is."""
        return self
