"""Solver interface: how a client trains.

A solver contains no loop. It plans the batches of a round and defines one local step. An executor drives the steps,
for one client at a time or for many clients stacked into one computation. So a solver is written for one client.

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

        def begin(self, start, sections, memory, steps):
            return {"params": start}

        def step(self, gradient, start, carry, hyperparams):
            grads, buffers = gradient(carry["params"])
            new = {n: t - self.lr * grads[n] for n, t in carry["params"].items() if n in grads}
            return {"params": {**carry["params"], **buffers, **new}}

A solver with client state between rounds extends ``SolverMemory``. One that bounds what each sample contributes, as
differentially private training does, extends ``PerSampleSolver``. One that needs no gradients, only losses, extends
``ForwardSolver``.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from typing import ClassVar, NamedTuple, Protocol, TypeVar

import numpy as np
from torch import Tensor

from gossamer.core.errors import ConfigError
from gossamer.core.exchange import Context, LocalTrainingInfo, Section, Sections
from gossamer.core.fields import CheckedFields
from gossamer.core.random import Key, Purpose
from gossamer.core.random.directions import DirectionKind
from gossamer.core.types import Clock, Params, State

T = TypeVar("T")

Hyperparams = Mapping[str, float | Tensor]
"""The result of ``Solver.hyperparams``, as plain numbers or as tensors."""


Gradients = tuple[Params, Params]
"""Gradients and changed buffers; a name, because ``torch.compile`` fails on brackets in the annotation of a closure."""


class Gradient(Protocol):
    """The gradient of the client's loss on the current batch."""

    def __call__(self, params: Params) -> Gradients:
        """Return the gradients of the trained tensors, and new values of buffers that the forward pass updates."""
        ...


class Solver(CheckedFields, ABC):
    """Local training: a plan of batches, and one step.

    Args:
        sections: what the client sends in addition to the model; ``end`` gives their values
    """

    sections: ClassVar[tuple[Section, ...]] = ()

    def bind(self: T, context: Context) -> T:
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

    @abstractmethod
    def begin(self, start: Params, sections: Sections, memory: State, steps: int) -> State:
        """Return the initial carry of a round: ``params``, and any other tensors that ``step`` needs.

        ``start`` is the part of the model that the client holds. ``sections`` are the values from the server.
        ``memory`` is the client state of a ``SolverMemory``, else empty. ``steps`` is the number of local steps.
        """

    def hyperparams(self, clock: Clock) -> dict[str, float]:
        """Return the numbers that change between rounds, such as the learning rate.

        They are arguments of ``step``, so that a compiled step is valid for all rounds.
        """
        return {}

    @abstractmethod
    def step(self, gradient: Gradient, start: Params, carry: State, hyperparams: Hyperparams) -> State:
        """Return the carry after one local step, with the names and shapes of ``carry``.

        ``start`` holds the client's parameters at the start of the round. Where ``hyperparams`` holds plain numbers,
        the step may overwrite the tensors of ``carry``. Where it holds tensors, the step must be pure: it is compiled
        or stacked.
        """

    def end(self, carry: State, info: LocalTrainingInfo) -> tuple[State, Sections]:
        """Return the client state for the next round, and the values of ``sections``. Called after the last step."""
        return {}, {}


class Draw(NamedTuple):
    """The samples of one local step.

    Args:
        rows: indices into the client's samples
        drawn: how many of the first rows are in the batch; the others only fill the batch up to a common size
    """

    rows: np.ndarray
    drawn: int


class PerSampleSolver(Solver):
    """A solver that makes its gradient from the gradients of single samples, for the privacy of samples.

    The ``gradient`` that ``step`` gets is ``release`` of the sum of the samples' gradients, each times its ``weight``.
    A client computes the gradients of all rows of a ``Draw``, so that batches with different numbers of samples have
    equal shapes. Rows that are not drawn do not enter the sum. So the loss of a sample must not depend on the others in
    its batch.
    """

    def bind(self: T, context: Context) -> T:
        """Refuse networks and losses in which the gradient of one sample depends on others."""
        if context.exchange.labels == "own":
            text = "of a sample then depends on the labels of the client's other samples: use labels all (--labels all)"
            raise ConfigError(f"{type(self).__name__} does not support labels own: the gradient {text}")
        context.network.check_per_sample()
        return self

    @property
    def eager(self) -> bool:
        """Whether ``draw`` and ``release`` ask the operating system: steps are not stacked, compiled or captured."""
        return False

    @abstractmethod
    def draw(self, samples: int, key: Key) -> list[Draw]:
        """Return the samples of each local step of a round."""

    def plan(self, samples: int, key: Key) -> list[np.ndarray]:
        """Return the rows of each draw."""
        return [drawn.rows for drawn in self.draw(samples, key)]

    @abstractmethod
    def rows(self, samples: int) -> int:
        """Return the usual number of rows of a draw."""

    @abstractmethod
    def expected(self, samples: int) -> float:
        """Return the expected number of samples in a batch."""

    @abstractmethod
    def weight(self, grads: Params) -> Tensor:
        """Return the factor of one sample's gradient in the sum. It runs under ``torch.vmap``."""

    @abstractmethod
    def release(self, total: Params, expected: Tensor, key: Tensor, step: Tensor) -> Params:
        """Return the gradient of a step, given the sum over its samples and the expected size of a batch.

        ``key`` is the client's key of the round and ``step`` the index of the local step, for ``core.random.draws``.
        """


Move = Callable[[str, Tensor], Tensor]
"""Maps the name and the values of a trained tensor to the values with which the network is evaluated."""

AnyMove = Move | None
"""A name, because ``torch.compile`` fails on unions in the annotation of a closure."""


class Loss(Protocol):
    """The client's loss on the current batch."""

    def __call__(self, params: Params, move: Move | None = None) -> Tensor:
        """Return the loss at these tensors. Each trained one is changed by ``move`` just before it is used."""
        ...


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


class Span(NamedTuple):
    """The change of a client as a sum of random directions: ``sum_j scale scalars[j] z_j``.

    Args:
        kind: the distribution of the directions
        size: the number of directions
        scale: the factor of all scalars
    """

    kind: DirectionKind
    size: int
    scale: float


class ForwardSolver(Solver):
    """A solver that evaluates the loss, and computes no gradient: its memory is that of inference.

    An engine calls ``advance`` in place of ``step``. The client's change is a sum of random directions
    (``gossamer.core.random.directions``), and ``carry["scalars"]`` has one number per direction, from which a
    codec makes the upload.
    """

    def bind(self: T, context: Context) -> T:
        """Refuse networks whose forward pass changes buffers, and views of a part of the model."""
        if not context.exchange.view.whole:
            raise ConfigError(f"{type(self).__name__} needs clients that hold the whole model: use Full()")
        context.network.check_forward()
        return self

    @property
    @abstractmethod
    def span(self) -> Span:
        """The directions of a round."""

    @property
    def fixed(self) -> bool:
        """Whether the directions are the same in all rounds."""
        return False

    def purposes(self) -> Iterable[Purpose]:
        """Return the purposes for which clients draw from ``Context.shared_key(None)``, the run's own key.

        Deployed clients are given the keys of these purposes, and never the run's key.
        """
        return ()

    def direction_key(self, codec: Key) -> Key:
        """Return the key of the directions, given that of the uplink codec, which differs from round to round."""
        return codec

    @property
    @abstractmethod
    def evaluations(self) -> int:
        """The number of losses that a step evaluates."""

    @abstractmethod
    def advance(self, loss: Loss, start: Params, carry: State, hyperparams: Hyperparams, keys: StepKeys) -> State:
        """Return the carry after one local step, as ``step`` does."""

    def step(self, gradient: Gradient, start: Params, carry: State, hyperparams: Hyperparams) -> State:
        """Refuse gradients."""
        raise ConfigError(f"{type(self).__name__} evaluates losses only: call advance, not step")


class SolverMemory(Solver):
    """A solver with client state between rounds, for example a control variate or a personalized model.

    The state is a nest of tensors. Where a client holds only a part of the model, the view slices the tensors that
    have the names of the model's tensors.
    """

    def init(self, context: Context) -> State:
        """Return the state of a client before its first round."""
        return {}

    def settle(self, memory: State, delivered: bool) -> State:
        """Return the state to keep after ``end``, given whether the client's upload arrived."""
        return memory

    def skipped_state(self, memory: State) -> State:
        """Return the state after a round for entries that the client did not hold, in the form of ``end``."""
        return memory

    def deploy(self, memory: State) -> Params | None:
        """Return the client's personalized model, or ``None`` if the client deploys the global model."""
        return None


class StatelessSolver(SolverMemory):
    """A solver without client state, wrapped as a ``SolverMemory`` with an empty state."""

    def __init__(self, solver: Solver) -> None:
        self.solver = solver

    def plan(self, samples: int, key: Key) -> list[np.ndarray]:
        """Delegate to the wrapped solver."""
        return self.solver.plan(samples, key)

    def begin(self, start: Params, sections: Sections, memory: State, steps: int) -> State:
        """Delegate to the wrapped solver."""
        return self.solver.begin(start, sections, memory, steps)

    def step(self, gradient: Gradient, start: Params, carry: State, hyperparams: Hyperparams) -> State:
        """Delegate to the wrapped solver."""
        return self.solver.step(gradient, start, carry, hyperparams)


def memory_of(solver: Solver) -> SolverMemory:
    """Return the solver as a ``SolverMemory``: itself, or wrapped with an empty state."""
    return solver if isinstance(solver, SolverMemory) else StatelessSolver(solver)
