"""The vocabulary of an exchange: what its parts may say to each other, and what they are bound to.

A message is the model's payload plus named sections. A server declares the sections that it writes into downloads, and
the solver reads them; a solver declares those that it writes into uploads, and the server reads them; a view with
memory tells its other half, at the server, what the client holds from the next round on. A part that declares nothing
never sees the mechanism.

    down    server.download(...) -> models, sections    ->    solver.begin(start, sections, memory, steps)
    up      solver.end(carry, info) -> memory, sections ->    server.fold(acc, arrival): arrival.sections
    up      view.revise(...) -> memory, payload         ->    view.follow(memory, payload, ...)

Parts are values that know nothing of networks. Once, before the first round, each is bound to a ``Context``, and
what is bound may be another object, which holds all that follows from network and clients.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

import torch
from torch import Tensor

from gossamer.core.random import Key
from gossamer.core.random import key as make_key
from gossamer.core.store import ClientStore
from gossamer.core.types import Layout, Params, Part, State

if TYPE_CHECKING:
    from gossamer.core.codec import Codec
    from gossamer.core.method import Exchange
    from gossamer.core.sampler import Sampler
    from gossamer.core.solver import Solver

Sections = Mapping[str, Any]
"""What a part says, by section: a number, a model's tensors, or a payload."""

NONE: Sections = MappingProxyType({})
"""Nothing."""


@dataclass(frozen=True)
class Section:
    """Something that travels beside the model.

    Args:
        name: what it is called; no two sections of an exchange have the same name
        shape: scalar (one number, of the model's type), model (tensors shaped as the trained ones, which the view cuts
            too)
            or free (a payload, which whoever reads it must check)
        codec: what a section shaped as the model goes through; none is dense
        common: whether all clients of a round get the same, where the server writes it
    """

    name: str
    shape: Literal["scalar", "model", "free"] = "scalar"
    codec: "Codec | None" = None
    common: bool = True


class Assignment(NamedTuple):
    """Which model a client trains: the global one, or that of its owner; and what its loss is multiplied by.

    With a scale of 0 there is nothing to train: nothing is sent, and the client counts as done.
    """

    owner: int | None = None
    loss_scale: float | None = None


GLOBAL = Assignment()
"""The global model, with the loss as it is."""


class Download(NamedTuple):
    """What a server sends: one model, or several among which each client chooses by its loss; and sections."""

    models: tuple[Params, ...]
    sections: Sections = NONE


class Network(Protocol):
    """What is trained, as far as parts may ask about it."""

    trained: list[str]
    key: Key
    device: torch.device

    def outline(self) -> Params:
        """The tensors that travel, of which only names, shapes, type and device can be relied on."""
        ...

    def initial(self, number: int = 0) -> Params:
        """The same as the network was built; other numbers give networks that are built from other seeds."""
        ...

    def widths(self, streams: bool = True) -> Any:
        """The network's width rule, a ``gossamer.tasks.widths.Widths``."""
        ...

    def check(self, params: Params) -> None:
        """Refuse tensors with which the network does not work, saying where."""
        ...

    def memory(self, params: Params, solver: "Solver") -> int:
        """Bytes that a client with these tensors needs for training."""
        ...

    @property
    def clients(self) -> int:
        """How many clients there are."""
        ...


@dataclass(frozen=True, eq=False)
class Context:
    """What a part is bound to: the network, the exchange that it is part of, and who takes part.

    Args:
        models: where a server keeps what it has of each client; changes count once the exchange does
    """

    network: Network
    exchange: "Exchange"
    sampler: "Sampler"
    models: ClientStore = field(default_factory=ClientStore)

    @property
    def clients(self) -> int:
        """How many clients there are."""
        return self.network.clients

    @property
    def trained(self) -> tuple[str, ...]:
        """The names of what is trained; other tensors that travel are statistics."""
        return tuple(self.network.trained)

    def shared_key(self, seed: int | None) -> Key:
        """By what all clients draw alike: a seed of a part's own, or the run's key."""
        return self.network.key if seed is None else make_key(seed)


class LocalTrainingInfo(Protocol):
    """What a client knows when its training is over, and what it can find out; what that costs is counted."""

    @property
    def start(self) -> Params:
        """The tensors that it received, zero where it holds nothing."""
        ...

    @property
    def weights(self) -> Params:
        """Its tensors after training, zero where it holds nothing."""
        ...

    @property
    def carry(self) -> State:
        """What the solver's last step carried."""
        ...

    def loss(self) -> float:
        """The mean loss of its training samples at the model that it received."""
        ...

    def accuracy(self, params: Params) -> float:
        """The share of its training samples that a network with these tensors gets right."""
        ...

    def gradient(self) -> Params:
        """The gradient of all entries, held or not, on one batch of its samples, after training."""
        ...

    def start_gradient(self) -> Params:
        """The gradient of the mean loss of all its samples, at the model that it received."""
        ...


@dataclass(frozen=True, eq=False)
class Arrival:
    """One client's change on the part that it holds, still in its message, and how many samples it was trained on.

    ``add(vector, weight)`` adds ``weight`` times the change, laid out by ``layout``, to a vector: a codec can do that
    in one pass. Whoever needs the change itself asks for it. ``code()`` is the message as a vector of which means make
    sense, and ``restore(mean)`` the change behind such a mean. ``batches`` are those of one pass over the samples.
    ``sections`` are what the client's solver says, ``model`` is what its change is a change of, ``owner`` whose model
    that is where it is not the global one, ``choice`` which of several models it is, and ``version`` which version.
    """

    client: int
    part: Part
    layout: Layout
    samples: float
    add: Callable[[Tensor, float], None]
    sections: Sections = field(default_factory=dict)
    model: Params = field(default_factory=dict)
    owner: int | None = None
    choice: int = 0
    version: int = 0
    batches: float = 1.0
    to_sum: Callable[[], Tensor] | None = None
    from_sum: Callable[[Tensor], Tensor] | None = None

    @classmethod
    def of(cls, client: int, part: Part, change: Params, samples: float, sections: Sections | None = None) -> "Arrival":
        """An arrival of which the change is known."""
        layout = Layout.of(change)
        return cls.laid(client, part, layout, layout.flatten(change), samples, sections)

    @classmethod
    def laid(
        cls, client: int, part: Part, layout: Layout, vector: Tensor, samples: float, sections: Sections | None = None
    ) -> "Arrival":
        """An arrival of which the change is known as a vector."""

        def add(acc: Tensor, times: float) -> None:
            acc.add_(vector * times)

        return cls(client, part, layout, samples, add, sections or {})

    def vector(self, device: torch.device) -> Tensor:
        """The change, decoded, laid out by ``layout``."""
        vector = torch.zeros(self.layout.size, dtype=self.layout.dtype, device=device)
        self.add(vector, 1.0)
        return vector

    def change(self, device: torch.device) -> Params:
        """The change, decoded."""
        return self.layout.unflatten(self.vector(device))


class Outcome(NamedTuple):
    """What came of one client in one exchange.

    Args:
        client: who
        exchange: which exchange of the round
        version: the version of the model that the client was sent
        folded: whether its message was folded in
        sections: the numbers that its message said beside the model, where it was folded in
        reason: why not, where the client failed or its message was refused; nothing where that was lost on its way
        cause: the error behind that
        injected: whether the failure was asked for
    """

    client: int
    exchange: int
    version: int
    folded: bool
    sections: Sections = NONE
    reason: str = ""
    cause: BaseException | None = None
    injected: bool = False
