"""What a solver is.

A solver never loops. It plans which samples make up each step, and says what one step does; an executor drives the
steps, of one client at a time or of many stacked into one computation. So a solver is written once, for one client.
"""

from collections.abc import Mapping
from typing import ClassVar, Protocol

import numpy as np
from torch import Tensor

from gossamer.random import Key
from gossamer.types import Clock, Params, State

Now = Mapping[str, float | Tensor]
"""What :meth:`Solver.now` gives, as plain numbers or as tensors."""


class Gradient(Protocol):
    """The gradient of the client's loss on the batch at hand."""

    def __call__(self, params: Params) -> tuple[Params, Params]:
        """Gradients of the trained tensors, and the new values of the tensors that the forward pass itself changes."""
        ...


class Solver(Protocol):
    """How a client trains: a plan of batches, and one step.

    whole: whether it needs the whole model, and a codec that training does not feel
    from_first: whether what it remembers begins as ``personal``: the model that the run begins with
    tells: which of its notes, numbers that are not negative, go to the server
    """

    whole: ClassVar[bool]
    from_first: ClassVar[bool]
    tells: ClassVar[tuple[str, ...]]

    def plan(self, samples: int, key: Key) -> list[np.ndarray]:
        """For each step the positions, in the client's own samples, that make up its batch."""
        ...

    def batches(self, samples: int) -> int:
        """How many batches one pass over the samples has: what ``weights="batches"`` weighs a client by."""
        ...

    def begin(self, start: Params, state: State, steps: int) -> State:
        """What is carried from step to step of a round of so many: ``params``, and whatever else the solver needs."""
        ...

    def now(self, clock: Clock) -> dict[str, float]:
        """The numbers that change from round to round (learning rates): a compiled step takes them as arguments."""
        ...

    def step(self, gradient: Gradient, start: Params, carry: State, now: Now) -> State:
        """One step from ``carry``, of the same shape; ``start`` is where the client began this round.

        The tensors of ``carry`` may be overwritten where ``now`` holds plain numbers: nobody else has them.
        """
        ...

    def end(self, carry: State) -> State:
        """What the solver remembers until the client's next round."""
        ...

    def notes(self, carry: State) -> State:
        """What is of use right after a round, and then forgotten."""
        ...

    def personal(self, state: State) -> Params | None:
        """The model that a client deploys, from what the solver remembers; none is the one that is trained together."""
        ...
