"""One step of a method as a pure function, for ``torch.vmap``, ``torch.compile`` and captured graphs."""

from collections.abc import Callable

import torch
from torch import Tensor

from gossamer import tree
from gossamer.engines.client import Client
from gossamer.engines.client import step as client_step
from gossamer.objective import Objective
from gossamer.solvers import Now
from gossamer.types import Params, State

Step = Callable[[Params, State, State, Tensor, Tensor, dict[str, Tensor]], tuple[State, Tensor]]
"""From start, carry, aid, inputs, labels and the round's numbers to the next carry and the loss."""


def pure_step(client: Client) -> Step:
    """A client's step with nothing hidden in it."""
    objective = client.objective

    def step(
        start: Params, carry: State, aid: State, x: Tensor, y: Tensor, now: dict[str, Tensor]
    ) -> tuple[State, Tensor]:
        trained, labels = objective.trained, aid.get("labels")
        return client_step(
            client, trained, lambda at: objective.pure_gradient(at, x, y, labels), start, carry, aid, now
        )

    return step


def in_place(step: Step, objective: Objective) -> Callable[..., Tensor]:
    """A client's step from the numbers of its samples on, which changes ``carry`` where it lies and gives the loss."""

    def take(
        start: Params, carry: State, aid: State, rows: Tensor, draws: Tensor | None, now: dict[str, Tensor]
    ) -> Tensor:
        new, loss = step(start, carry, aid, *objective.batch(rows, draws), now)
        tree.put(carry, ..., new)
        return loss

    return take


def tensors(now: Now, objective: Objective) -> dict[str, Tensor]:
    """The round's numbers as tensors: a compiled step would otherwise be compiled again for each new value."""
    dtype, device = objective.layout.dtype, objective.device
    return {name: torch.as_tensor(value, dtype=dtype, device=device) for name, value in now.items()}
