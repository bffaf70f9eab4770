"""A local step on nested tensors with fixed addresses, for programs and CUDA graphs."""

from collections.abc import Callable

from torch import Tensor

from gossamer.core import tree
from gossamer.core.devices import number
from gossamer.core.solver import Hyperparams
from gossamer.core.types import State
from gossamer.engines.client import at_batch
from gossamer.tasks.data.nests import Nest
from gossamer.tasks.objective import Objective

Step = Callable[[Tensor, State, State, Nest, Tensor, Hyperparams], tuple[State, Tensor]]
"""Map start, carry, context, inputs, labels and hyperparameters to the next carry and the loss: see ``LocalStep``."""


def in_place(step: Step, objective: Objective) -> Callable[..., Tensor]:
    """Return a step that takes a feed (sample indices or a batch), updates ``carry`` in place and returns the loss."""

    def take(start: Tensor, carry: State, context: State, feed: State, hyperparams: dict[str, Tensor]) -> Tensor:
        new, loss = step(start, carry, at_batch(context, feed), *objective.open(feed), hyperparams)
        tree.put(carry, ..., new)
        return loss

    return take


def tensors(hyperparams: Hyperparams, objective: Objective) -> dict[str, Tensor]:
    """Convert hyperparameters to tensors, so that a new value does not trigger recompilation."""
    dtype, device = objective.layout.dtype, objective.device
    return {name: number(value, dtype, device) for name, value in hyperparams.items()}
