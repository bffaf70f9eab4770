"""One step of a method as a pure function, for ``torch.vmap``, ``torch.compile`` and captured graphs."""

from collections.abc import Callable

import torch
from torch import Tensor

from gossamer.core import tree
from gossamer.core.solver import Hyperparams
from gossamer.core.types import Params, State
from gossamer.engines.client import Client
from gossamer.engines.client import step as client_step
from gossamer.tasks.objective import Objective

Step = Callable[[Params, State, State, Tensor, Tensor, dict[str, Tensor]], tuple[State, Tensor]]
"""From start, carry, aid, inputs, labels and the round's numbers to the next carry and the loss."""


def pure_step(client: Client) -> Step:
    """A client's step with nothing hidden in it."""
    objective = client.objective

    def step(
        start: Params, carry: State, context: State, x: Tensor, y: Tensor, hyperparams: dict[str, Tensor]
    ) -> tuple[State, Tensor]:
        trained, labels = objective.trained, context.get("labels")
        return client_step(
            client, trained, lambda at: objective.pure_gradient(at, x, y, labels), start, carry, context, hyperparams
        )

    return step


def in_place(step: Step, objective: Objective) -> Callable[..., Tensor]:
    """A client's step from the numbers of its samples on, which changes ``carry`` where it lies and gives the loss."""

    def take(
        start: Params, carry: State, context: State, rows: Tensor, draws: Tensor | None, hyperparams: dict[str, Tensor]
    ) -> Tensor:
        new, loss = step(start, carry, context, *objective.batch(rows, draws), hyperparams)
        tree.put(carry, ..., new)
        return loss

    return take


def tensors(hyperparams: Hyperparams, objective: Objective) -> dict[str, Tensor]:
    """The round's numbers as tensors: a compiled step would otherwise be compiled again for each new value."""
    dtype, device = objective.layout.dtype, objective.device
    return {name: torch.as_tensor(value, dtype=dtype, device=device) for name, value in hyperparams.items()}
