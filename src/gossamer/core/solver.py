"""What a solver is.

A solver never loops. It plans which samples make up each step, and says what one step does; an executor drives the
steps, of one client at a time or of many stacked into one computation. So a solver is written once, for one client.
One that remembers something from round to round extends ``SolverMemory``.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar, Protocol, TypeVar

import numpy as np
from torch import Tensor

from gossamer.core.exchange import Context, LocalTrainingInfo, Section, Sections
from gossamer.core.random import Key
from gossamer.core.types import Clock, Params, State

T = TypeVar("T")

Hyperparams = Mapping[str, float | Tensor]
"""What ``Solver.now`` gives, as plain numbers or as tensors."""


class Gradient(Protocol):
    """The gradient of the client's loss on the batch at hand."""

    def __call__(self, params: Params) -> tuple[Params, Params]:
        """Gradients of the trained tensors, and the new values of the tensors that the forward pass itself changes."""
        ...


class Solver(ABC):
    """How a client trains: a plan of batches, and one step.

    Args:
        sections: what it tells the server beside the model, see ``end``
    """

    sections: ClassVar[tuple[Section, ...]] = ()

    def bind(self: T, context: Context) -> T:
        """The solver for a network; done once, before the first round. It may refuse what it does not go with."""
        return self

    @abstractmethod
    def plan(self, samples: int, key: Key) -> list[np.ndarray]:
        """For each step the positions, in the client's own samples, that make up its batch."""

    def batches(self, samples: int) -> int:
        """How many batches one pass over the samples has: what ``weights="batches"`` weighs a client by."""
        return 1

    @abstractmethod
    def begin(self, start: Params, sections: Sections, memory: State, steps: int) -> State:
        """What is carried from step to step of a round of so many: ``params``, and whatever else the solver needs.

        ``sections`` are what the server says beside the model, ``memory`` is what ``end`` gave the last time.
        """

    def hyperparams(self, clock: Clock) -> dict[str, float]:
        """The numbers that change from round to round (learning rates): a compiled step takes them as arguments."""
        return {}

    @abstractmethod
    def step(self, gradient: Gradient, start: Params, carry: State, hyperparams: Hyperparams) -> State:
        """One step from ``carry``, of the same shape; ``start`` is where the client began this round.

        The tensors of ``carry`` may be overwritten where ``now`` holds plain numbers: nobody else has them.
        """

    def end(self, carry: State, info: LocalTrainingInfo) -> tuple[State, Sections]:
        """What the solver remembers until the client's next round, and what it tells the server."""
        return {}, {}


class SolverMemory(Solver):
    """A solver that remembers something of a client from round to round.

    Memory is a nest of tensors; those that are called and shaped as the model's are cut by the view as these are.
    """

    def init(self, context: Context) -> State:
        """What it remembers of a client before the first round of that one."""
        return {}

    def settle(self, memory: State, delivered: bool) -> State:
        """What to remember of what ``end`` gave, now that it is known whether the client's message arrived."""
        return memory

    def skipped_state(self, memory: State) -> State:
        """What it remembers of entries that the client did not hold in a round, in the form that ``end`` gives."""
        return memory

    def deploy(self, memory: State) -> Params | None:
        """The model that a client deploys, if that is its own; none is the one that is trained together."""
        return None


class StatelessSolver(SolverMemory):
    """A solver that remembers nothing, as one that does."""

    def __init__(self, solver: Solver) -> None:
        self.solver = solver

    def plan(self, samples: int, key: Key) -> list[np.ndarray]:
        """As the solver does."""
        return self.solver.plan(samples, key)

    def begin(self, start: Params, sections: Sections, memory: State, steps: int) -> State:
        """As the solver does."""
        return self.solver.begin(start, sections, memory, steps)

    def step(self, gradient: Gradient, start: Params, carry: State, hyperparams: Hyperparams) -> State:
        """As the solver does."""
        return self.solver.step(gradient, start, carry, hyperparams)


def memory_of(solver: Solver) -> SolverMemory:
    """The solver as one that remembers; if it is none, as one that remembers nothing."""
    return solver if isinstance(solver, SolverMemory) else StatelessSolver(solver)
