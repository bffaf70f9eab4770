"""One step of a solver as a pure function, for ``torch.vmap``, ``torch.compile`` and captured graphs."""

from collections.abc import Callable

import torch
from torch import Tensor

from gossamer.engines.client import masked
from gossamer.objective import Objective
from gossamer.solvers import Now, Solver
from gossamer.types import Params, State

Gradients = tuple[Params, Params]  # named, because the compiler reads annotations too, and trips over brackets
Step = Callable[[Params, State, Params, Tensor, Tensor, dict[str, Tensor]], tuple[State, Tensor]]
"""From start, carry, keep, inputs, labels and the round's numbers to the next carry and the loss."""


def pure_step(solver: Solver, objective: Objective) -> Step:
    """A client's step with nothing hidden in it."""

    def step(
        start: Params, carry: State, keep: Params, x: Tensor, y: Tensor, now: dict[str, Tensor]
    ) -> tuple[State, Tensor]:
        losses: list[Tensor] = []

        def gradient(params: Params) -> Gradients:
            loss, grads, changed = objective.pure_gradient(params, x, y)
            losses.append(loss)
            return masked(grads, keep), changed

        return solver.step(gradient, start, carry, now), losses[-1]

    return step


def tensors(now: Now, objective: Objective) -> dict[str, Tensor]:
    """The round's numbers as tensors: a compiled step would otherwise be compiled again for each new value."""
    dtype, device = objective.layout.dtype, objective.device
    return {name: torch.as_tensor(value, dtype=dtype, device=device) for name, value in now.items()}
