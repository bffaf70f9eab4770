"""Types that the parts of an exchange pass to each other, and the context that parts are bound to.

An exchange is one download and one upload per client. A message holds the encoded model and named sections. A section
is an extra value from a part on one side to a part on the other side:

    down    server.download(...) -> models, sections    ->    solver.begin(start, sections, memory, steps)
    up      solver.end(carry, info) -> memory, sections ->    server.fold(acc, arrival): arrival.sections
    up      view.revise(...) -> memory, payload         ->    view.follow(memory, payload, ...)

A server or a solver declares the sections that it writes in its attribute ``sections``. SCAFFOLD's server, for example,
sends its control variate:

    sections = (Section("control", shape="model"),)

    def download(self, state, assignment):
        return Download((state["params"],), {"control": state["control"]})

The solver reads ``sections["control"]`` in ``begin``. A part without sections needs nothing from this mechanism.

Parts are values without a network. Before the first round, ``bind`` is called once on each part with a ``Context``. It
returns the part itself, or another object that holds what follows from the network and the clients.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

import torch
from torch import Tensor

from gossamer.core.random import Key, fold
from gossamer.core.random import key as make_key
from gossamer.core.store import ClientStore
from gossamer.core.types import Layout, Params, Part, Payload, State

if TYPE_CHECKING:
    from gossamer.core.codec import Codec
    from gossamer.core.method import Exchange
    from gossamer.core.parametrization import Parametrization
    from gossamer.core.sampler import Sampler
    from gossamer.core.solver import Solver

Sections = Mapping[str, Any]
"""Values of sections by name: a number, a model's tensors, or a payload."""

NONE: Sections = MappingProxyType({})
"""No sections."""


@dataclass(frozen=True)
class Section:
    """A named value in a message, in addition to the model.

    Args:
        name: the name, unique within an exchange
        shape: scalar (one number of the model's type), model (tensors with the names and shapes of the trained tensors,
            sliced by the view) or free (a payload that the reader must check)
        codec: the codec of a section with shape model; none sends it dense
        common: whether all clients of a round receive the same value; for sections of a server
    """

    name: str
    shape: Literal["scalar", "model", "free"] = "scalar"
    codec: "Codec | None" = None
    common: bool = True


class Assignment(NamedTuple):
    """Which model a client trains, and with which loss scale.

    With a loss scale of 0 there is nothing to train: nothing is sent, and the client counts as done.

    Args:
        owner: the client whose model is trained; none is the global model
        loss_scale: the factor of the loss; none is 1
    """

    owner: int | None = None
    loss_scale: float | None = None


GLOBAL = Assignment()
"""The global model, without loss scaling."""


class Download(NamedTuple):
    """What a server sends to a client.

    Args:
        models: one model, or several; the client trains the one with the smallest loss
        sections: the values of the server's sections, by name
    """

    models: tuple[Params, ...]
    sections: Sections = NONE


class Network(Protocol):
    """The network and its clients, as parts see them in ``bind``.

    Args:
        trained: names of the tensors that are trained
        constant: names of the tensors that are sent and that training does not change
        key: the run's random key
        device: the device of the model's tensors
        secure_noise: whether the noise of differential privacy comes from the operating system. If not, it follows from
            ``key``: such a run can be repeated, and protects nobody who knows the seed
    """

    trained: list[str]
    constant: list[str]
    key: Key
    device: torch.device
    secure_noise: bool

    def outline(self) -> Params:
        """Return the tensors that are sent. Only their names, shapes, type and device are meaningful."""
        ...

    def layers(self) -> Mapping[str, Any]:
        """Return the network's layers (``nn.Module``) by name. The values of their tensors are not meaningful."""
        ...

    def initial(self, number: int = 0) -> Params:
        """Return the initial tensors of the network. Other numbers give initializations from other seeds."""
        ...

    def widths(self, streams: bool = True) -> Any:
        """Return the network's width rule, a ``gossamer.tasks.widths.Widths``."""
        ...

    def check(self, params: Params) -> None:
        """Raise ``ConfigError`` with the location if the network does not work with these tensors."""
        ...

    def check_per_sample(self) -> None:
        """Raise ``ConfigError`` if the network has no gradients of single samples, with the reason."""
        ...

    def check_forward(self) -> None:
        """Raise ``ConfigError`` if losses alone do not train the network, with the reason."""
        ...

    def memory(self, params: Params, solver: "Solver") -> int:
        """Return the bytes of memory that a client needs to train these tensors."""
        ...

    @property
    def clients(self) -> int:
        """The number of clients."""
        ...

    @property
    def metrics(self) -> tuple[str, ...]:
        """Names of the metrics of the task."""
        ...

    @property
    def scores_classes(self) -> bool:
        """Whether targets are class numbers and outputs are scores of the classes."""
        ...


@dataclass(frozen=True, eq=False)
class Context:
    """What a part is bound to.

    Args:
        network: the network and its clients
        exchange: the exchange that the part belongs to
        sampler: the sampler of the method
        parametrization: what is trained and sent; none means the network's own tensors
        models: the server's state per client; staged changes are committed together with the round
    """

    network: Network
    exchange: "Exchange"
    sampler: "Sampler"
    parametrization: "Parametrization | None" = None
    models: ClientStore = field(default_factory=ClientStore)

    @property
    def clients(self) -> int:
        """The number of clients."""
        return self.network.clients

    @property
    def trained(self) -> tuple[str, ...]:
        """The names of the trained tensors. Others that are sent are running statistics, or constant in training."""
        return tuple(self.network.trained)

    def initial(self) -> Params:
        """Return the tensors that server and clients hold before the first round. Every machine can build them."""
        built = self.network.initial()
        if self.parametrization is None:
            return built
        return self.parametrization.hold(built, fold(self.network.key, "form"))

    def shared_key(self, seed: int | None) -> Key:
        """Return the key for draws that all clients share: of a part's own seed, or the run's key."""
        return self.network.key if seed is None else make_key(seed)


class LocalTrainingInfo(Protocol):
    """Results of a client's local training, for ``Solver.end`` and ``View.revise``.

    The methods compute their result when called. Their FLOPs are counted as work of the client.
    """

    @property
    def start(self) -> Params:
        """The received tensors, zero where the client holds no entry."""
        ...

    @property
    def weights(self) -> Params:
        """The tensors after training, zero where the client holds no entry."""
        ...

    @property
    def carry(self) -> State:
        """The solver's carry after the last step, with its vectors as tensors by name."""
        ...

    def loss(self) -> float:
        """Return the mean loss of the received model on the client's training samples."""
        ...

    def accuracy(self, params: Params) -> float:
        """Return the accuracy of a network with these tensors on the client's training samples."""
        ...

    def gradient(self) -> Params:
        """Return the gradient after training on one batch, for all entries of the model, held or not."""
        ...

    def start_gradient(self) -> Params:
        """Return the gradient of the received model's mean loss over all training samples of the client."""
        ...


@dataclass(frozen=True, eq=False)
class Arrival:
    """One client's update, still encoded.

    The server decodes it with ``change`` or ``vector``, or adds it to a sum with ``add``, which many codecs do in one
    pass.

    Args:
        client: the client's number
        part: the entries of the model that the client holds
        layout: names and shapes of the tensors behind the vector of the update
        samples: the number of training samples
        add: ``add(vector, weight)`` adds ``weight`` times the update to a vector, in place
        sections: the values of the solver's sections, by name
        model: the model that the client received; the update is relative to it
        owner: the client whose model it is; none is the global model
        choice: which of several models the client trained
        version: the version of the model
        batches: the number of batches in one epoch
        to_sum: ``to_sum()`` returns the update as a vector that can be averaged, see ``Codec.to_sum``
        from_sum: ``from_sum(mean)`` decodes a mean of such vectors
        payload: the encoded update
        staleness: the number of aggregations between the start of training and that of this update
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
    payload: Payload = field(default_factory=dict)
    staleness: int = 0

    @classmethod
    def of(cls, client: int, part: Part, change: Params, samples: float, sections: Sections | None = None) -> "Arrival":
        """Return an arrival for a given change, for example in tests."""
        layout = Layout.of(change)
        return cls.laid(client, part, layout, layout.flatten(change), samples, sections)

    @classmethod
    def laid(
        cls, client: int, part: Part, layout: Layout, vector: Tensor, samples: float, sections: Sections | None = None
    ) -> "Arrival":
        """Return an arrival for a change that is given as a vector."""

        def add(acc: Tensor, weight: float) -> None:
            acc.add_(vector * weight)

        return cls(client, part, layout, samples, add, sections or {})

    def vector(self, device: torch.device) -> Tensor:
        """Return the decoded update as a vector."""
        vector = torch.zeros(self.layout.size, dtype=self.layout.dtype, device=device)
        self.add(vector, 1.0)
        return vector

    def change(self, device: torch.device) -> Params:
        """Return the decoded update as tensors."""
        return self.layout.unflatten(self.vector(device))

    def scaled(self, factor: float) -> "Arrival":
        """Return the arrival with its update multiplied by a factor; its weight stays as it is."""
        if factor == 1:
            return self
        add, to_sum = self.add, self.to_sum

        def scaled_add(acc: Tensor, weight: float) -> None:
            add(acc, weight * factor)

        return replace(self, add=scaled_add, to_sum=None if to_sum is None else lambda: to_sum() * factor)

    def from_model(self, model: Params, names: Collection[str] | None = None) -> "Arrival":
        """Return the arrival with its update relative to another model than the one that the client received.

        ``names`` are the tensors for which it is; none means all of them.
        """
        others = {} if names is None else {name: tensor for name, tensor in self.model.items() if name not in names}
        model = {**model, **others}
        change = {name: tensor - model[name] for name, tensor in self.model.items()}
        drift, add, to_sum = self.layout.flatten(self.part.take(change)), self.add, self.to_sum

        def moved_add(acc: Tensor, weight: float) -> None:
            add(acc, weight)
            acc.add_(drift, alpha=weight)

        return replace(self, add=moved_add, model=model, to_sum=None if to_sum is None else lambda: to_sum() + drift)


class Outcome(NamedTuple):
    """The result of one client in one exchange.

    Args:
        client: the client's number
        exchange: the number of the exchange in the round
        version: the version of the model that the client received
        folded: whether its upload was folded into the aggregate
        sections: the scalar sections of its upload, if it was folded
        reason: why the client failed or its upload was refused; empty if the upload was lost on the link
        cause: the exception behind the reason
        injected: whether the failure was injected on purpose
        silent: whether the failure is that the client did not answer
    """

    client: int
    exchange: int
    version: int
    folded: bool
    sections: Sections = NONE
    reason: str = ""
    cause: BaseException | None = None
    injected: bool = False
    silent: bool = False
