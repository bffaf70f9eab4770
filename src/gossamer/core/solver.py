"""Solver interface: how a client trains.

A solver contains no loop. It plans the batches of a round and defines one local step on vectors. An executor drives the
steps, for one client at a time or for many clients in one computation.

**Vectors.** The tensors that training changes, trained ones and running statistics, are one vector in the order of
their names: the start of the round, the parameters, gradients, and whatever a solver keeps of their size. Where a
client holds a slice of the model, they are vectors of its slice. Steps are written over the last dimension
(``norm(dim=-1, keepdim=True)``, numbers of a client as ``[..., 1]``), so that the same lines serve one client and the
rows of a group.

A client calls a solver in this order:

    plan             once per round: the sample indices of each batch
    begin            once per round: the initial carry
    hyperparams      once per round: numbers that change between rounds, such as the learning rate
    step             once per batch: the next carry
    end              once per round: the solver's client state, and sections for the server

A complete solver, SGD without momentum:

    @dataclass(frozen=True)
    class PlainSGD(Solver):
        lr: float = 0.1
        batch: int = 32

        def plan(self, samples, key):
            return np.array_split(permutation(key, samples), max(1, samples // self.batch))

        def step(self, gradient, start, carry, hyperparams):
            grads, params = gradient(carry["params"])
            return {"params": params - self.lr * grads}

Only these two methods must be written. All others have a default that means "nothing special". The class attribute
``uses`` says what a step is given: the gradient of its batch, a gradient made from those of single samples, as
differentially private training needs it, or losses alone.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, ClassVar, Literal, NamedTuple, Protocol, Self

import numpy as np
import torch
from torch import Tensor

from gossamer.core.errors import ConfigError
from gossamer.core.exchange import Context, LocalTrainingInfo, Section, Sections
from gossamer.core.fields import CheckedFields
from gossamer.core.privacy import Guarantee, Participation
from gossamer.core.random import Key, Purpose
from gossamer.core.random.directions import DirectionKind
from gossamer.core.types import Clock, Layout, State

Hyperparams = Mapping[str, float | Tensor]
"""The result of ``Solver.hyperparams``, as plain numbers or as tensors."""

Gradients = tuple[Tensor, Tensor]
"""A gradient, and parameters with changed buffers; a name, because ``torch.compile`` fails on brackets in closures."""


class Gradient(ABC):
    """The gradient of the client's loss on the current batch."""

    @abstractmethod
    def __call__(self, params: Tensor) -> Gradients:
        """Return the gradient, zero where nothing is trained, and ``params`` with the buffers that the pass changed.

        The second vector is ``params`` itself if no buffer changed.
        """

    def descend(self, params: Tensor, rate: float | Tensor) -> Tensor:
        """Return ``params`` after a step down the gradient, with changed buffers.

        To join the gradients of the tensors in a vector takes a tenth of a step of a small network, or more. A step of
        plain gradient descent needs no such vector, and an engine that knows the tensors can do without. Where the rate
        is a number, ``params`` may be overwritten.
        """
        grads, params = self(params)
        return descended(params, grads, rate)


def descended(params: Tensor, grads: Tensor, rate: float | Tensor) -> Tensor:
    """Return ``params - rate * grads``; in place if the rate is a number. A compiled or stacked step must be pure."""
    if isinstance(rate, Tensor):
        return torch.addcmul(params, grads, rate, value=-1)  # one pass over memory, where a product would take another
    return params.add_(grads, alpha=-rate)


Move = Callable[[str, Tensor], Tensor]
"""Maps the name and the values of a trained tensor to the values with which the network is evaluated."""

AnyMove = Move | None
"""A name, because ``torch.compile`` fails on unions in the annotation of a closure."""


class StepKeys(NamedTuple):
    """The random numbers of a step without gradients, for ``gossamer.core.random.draws``.

    Args:
        common: the key of the directions: by default that of the uplink codec, which all clients of a round share if
            the codec is ``common``
        own: a key of the client and the round
        step: the index of the local step
    """

    common: Tensor
    own: Tensor
    step: Tensor


class Loss(Protocol):
    """The client's loss on the current batch.

    Args:
        keys: the random numbers of the step
    """

    keys: StepKeys

    def __call__(self, params: Tensor, move: Move | None = None) -> Tensor:
        """Return the loss at these parameters. Each trained tensor is changed by ``move`` just before it is used."""
        ...


class Draw(NamedTuple):
    """The samples of one local step.

    Args:
        rows: indices into the client's samples
        drawn: how many of the first rows are in the batch; the others only fill the batch up to a common size
    """

    rows: np.ndarray
    drawn: int


class Span(NamedTuple):
    """The change of a client as a sum of random directions: ``sum_j scale scalars[j] z_j``.

    Args:
        kind: the distribution of the directions
        size: the number of directions
        scale: the factor of all scalars
        fixed: whether the directions are the same in all rounds
    """

    kind: DirectionKind
    size: int
    scale: float
    fixed: bool = False


class Solver(CheckedFields, ABC):
    """Local training: a plan of batches, and one step.

    Args:
        uses: what a step is given: ``gradient``; ``samples``, a gradient that is ``release`` of the weighted sum of the
            gradients of single samples; or ``losses``, for a solver that computes no gradient, whose memory is that of
            inference
        sections: what the client sends in addition to the model; ``end`` gives their values
        stateful: whether clients keep state between rounds, such as a control variate or a personal model
        layout: the names and shapes of the tensors behind a vector, in the slices that the client holds; engines set it
        trained: which entries of a vector are trained; none if all are
    """

    uses: ClassVar[Literal["gradient", "samples", "losses"]] = "gradient"
    sections: ClassVar[tuple[Section, ...]] = ()
    stateful: ClassVar[bool] = False
    layout: Layout = Layout(())
    trained: Tensor | None = None

    def bind(self, context: Context) -> Self:
        """Return the solver for one network and its clients. Called once, before the first round.

        Raises ``ConfigError`` if the solver does not work with the network or with the other parts of the exchange.
        """
        return self

    @abstractmethod
    def plan(self, samples: int, key: Key) -> list[np.ndarray]:
        """Return the batches of a round, one array of indices into the client's samples per local step."""

    def batches(self, samples: int) -> int:
        """Return the number of batches in one epoch. Servers with ``weights="batches"`` weight clients by it."""
        return 1

    def init(self, context: Context) -> State:
        """Return the client state before the client's first round, for example a control variate or a personal model.

        It is a nest of tensors. Where a client holds only a slice of the model, vectors of the model are sliced.
        """
        return {}

    def begin(self, start: Tensor, sections: Sections, memory: State, steps: int) -> State:
        """Return the initial carry of a round: ``params``, and any other tensors that ``step`` needs.

        ``start`` are the parameters that the client received, which are not to be changed. ``sections`` are the values
        from the server, those with shape ``model`` as vectors. ``memory`` is the client state. ``steps`` is the number
        of local steps.
        """
        return {"params": start}

    def hyperparams(self, clock: Clock) -> dict[str, float]:
        """Return the numbers that change between rounds, such as the learning rate.

        They are arguments of ``step``, so that a compiled step is valid for all rounds.
        """
        return {}

    @abstractmethod
    def step(self, gradient: Any, start: Tensor, carry: State, hyperparams: Hyperparams) -> State:
        """Return the carry after one local step, with the names and shapes of ``carry``.

        ``gradient`` is a ``Gradient``; a ``Loss`` if the solver uses losses. ``start`` are the parameters at the start
        of the round. Where ``hyperparams`` holds plain numbers, the step may overwrite the tensors of ``carry``. Where
        it holds tensors, the step must be pure: it is compiled or stacked.
        """

    def end(self, carry: State, info: LocalTrainingInfo) -> tuple[State, Sections]:
        """Return the client state for the next round, and the values of ``sections``. Called after the last step."""
        return {}, {}

    def settle(self, memory: State, delivered: bool) -> State:
        """Return the client state to keep after ``end``, given whether the client's upload arrived."""
        return memory

    def skipped(self, memory: State) -> State:
        """Return the state after a round for entries that the client did not hold, in the form of ``end``."""
        return memory

    def deploy(self, memory: State) -> Tensor | None:
        """Return the parameters of the client's personal model; ``None`` if the client deploys the global model."""
        return None

    # Gradients of single samples.

    @property
    def private(self) -> bool:
        """Whether ``guarantee`` states what the uploads reveal about a client's samples."""
        return False

    def guarantee(self, participation: Participation) -> Guarantee | None:
        """Return what a run guarantees, if anything. Raises ``ConfigError`` if it could and does not, with the reason.

        See ``gossamer.core.privacy``.
        """
        return None

    @property
    def eager(self) -> bool:
        """Whether ``draw`` and ``release`` ask the operating system: steps are not stacked, compiled or captured."""
        return False

    def draw(self, samples: int, key: Key) -> list[Draw]:
        """Return the samples of each local step of a round; ``plan`` returns the same rows.

        The gradients of all rows of a ``Draw`` are computed, so that batches with different numbers of samples have
        equal shapes. Rows that are not drawn do not enter the sum.
        """
        return [Draw(rows, len(rows)) for rows in self.plan(samples, key)]

    def rows(self, samples: int) -> int:
        """Return the usual number of rows of a batch."""
        return samples

    def expected(self, samples: int) -> float:
        """Return the expected number of samples in a batch."""
        return self.rows(samples)

    def weight(self, grads: Tensor) -> Tensor:
        """Return the factor of each sample's gradient in the sum, given the gradients as rows ``[..., n]``."""
        return torch.ones_like(grads[..., 0])

    def release(self, total: Tensor, expected: Tensor, key: Tensor, step: Tensor) -> Tensor:
        """Return the gradient of a step, given the sum over its samples and the expected size of a batch.

        ``key`` is the client's key of the round and ``step`` the index of the local step, for ``core.random.draws``.
        """
        return total / expected

    # Losses alone. The change is a sum of random directions (``gossamer.core.random.directions``), and
    # ``carry["scalars"]`` has one number per direction, from which a codec can make the upload.

    @property
    def span(self) -> Span | None:
        """The directions of a round; none if the change is no sum of directions."""
        return None

    @property
    def evaluations(self) -> int:
        """The number of losses that a step evaluates."""
        return 1

    def direction_key(self, codec: Key) -> Key:
        """Return the key of the directions, given that of the uplink codec, which differs from round to round."""
        return codec

    def purposes(self) -> Iterable[Purpose]:
        """Return the purposes for which clients draw from ``Context.shared_key(None)``, the run's own key.

        Deployed clients are given the keys of these purposes, and never the run's key.
        """
        return ()

    # For solvers and engines; not to be overridden.

    def where_trained(self, yes: Tensor, no: Tensor | float) -> Tensor:
        """Return the entries of ``yes`` that are trained, and those of ``no`` that are not."""
        return yes if self.trained is None else torch.where(self.trained, yes, no)

    def on(
        self, layout: Layout, trained: Collection[str], constant: Collection[str], device: torch.device | str
    ) -> Self:
        """Return the solver for clients that hold these tensors, given the names of some of them.

        They are the ``trained`` ones, and those that are ``constant`` in training, such as the base of an adapter.
        """
        moving = layout.full.only([name for name, _ in layout.shapes if name not in constant])
        every = all(name in trained for name, _ in moving.shapes)
        return self.filled(layout=moving, trained=None if every else moving.mask(trained, device))

    def check(self, context: Context) -> None:
        """Refuse a network or an exchange that cannot give what a step uses. Engines call it before ``bind``."""
        if self.uses == "samples":
            if context.exchange.labels == "own":
                text = "of a sample then depends on the labels of the client's other samples: use labels all"
                name = type(self).__name__
                raise ConfigError(f"{name} does not support labels own: the gradient {text} (--labels all)")
            context.network.check_per_sample()
        if self.uses == "losses":
            if not context.exchange.view.whole:
                raise ConfigError(f"{type(self).__name__} needs clients that hold the whole model: use Full()")
            context.network.check_forward()
