"""One local step as a pure function, for ``torch.vmap``, ``torch.compile`` and CUDA graphs."""

from collections.abc import Callable

from torch import Tensor

from gossamer.core import tree
from gossamer.core.devices import number
from gossamer.core.solver import AnyMove, Hyperparams
from gossamer.core.types import Params, State
from gossamer.engines.client import Client, at_batch, forward_step, random_numbers
from gossamer.engines.client import step as client_step
from gossamer.tasks.data.nests import Nest
from gossamer.tasks.objective import Objective

LossAndGradients = tuple[Tensor, Params, Params]  # an alias, because torch.compile fails on brackets in annotations
Step = Callable[[Params, State, State, Nest, Tensor, dict[str, Tensor]], tuple[State, Tensor]]
"""Map start, carry, context, inputs, labels and hyperparameters to the next carry and the loss."""


def pure_step(client: Client) -> Step:
    """Return a client's step as a pure function."""
    objective = client.objective

    def step(
        start: Params, carry: State, context: State, x: Nest, y: Tensor, hyperparams: dict[str, Tensor]
    ) -> tuple[State, Tensor]:
        trained, labels = objective.trained, context.get("labels")

        def loss(at: Params, move: AnyMove) -> Tensor:
            return objective.pure_loss(at, x, y, labels, move, random_numbers(context, carry))

        if "forward" in context:
            return forward_step(client, loss, start, carry, context, hyperparams)
        numbers = random_numbers(context, carry)

        def evaluate(at: Params) -> LossAndGradients:
            compute = objective.sample_gradients if "per_sample" in context else objective.pure_gradient
            return compute(at, x, y, labels, numbers)

        return client_step(client, trained, evaluate, start, carry, context, hyperparams)

    return step


def in_place(step: Step, objective: Objective) -> Callable[..., Tensor]:
    """Return a step that takes a feed (sample indices or a batch), updates ``carry`` in place and returns the loss."""

    def take(start: Params, carry: State, context: State, feed: State, hyperparams: dict[str, Tensor]) -> Tensor:
        new, loss = step(start, carry, at_batch(context, feed), *objective.open(feed), hyperparams)
        tree.put(carry, ..., new)
        return loss

    return take


def tensors(hyperparams: Hyperparams, objective: Objective) -> dict[str, Tensor]:
    """Convert hyperparameters to tensors, so that a new value does not trigger recompilation."""
    dtype, device = objective.layout.dtype, objective.device
    return {name: number(value, dtype, device) for name, value in hyperparams.items()}
