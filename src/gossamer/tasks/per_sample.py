"""Gradients of the single samples of a batch, for solvers that bound what each sample contributes.

The loss of a sample is the task's loss of a batch of one. ``torch.vmap`` over the gradient of one sample computes all
of them together. A few layers, such as recurrent ones, do not support it: their samples are computed in turn.
"""

from collections.abc import Callable, Iterable
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from gossamer.core.errors import ConfigError
from gossamer.core.random import Key, seeded
from gossamer.core.random import tensor as key_tensor
from gossamer.core.types import Params
from gossamer.tasks.data import nests
from gossamer.tasks.data.nests import Nest
from gossamer.tasks.data.samples import Batch
from gossamer.tasks.operations import stackable_attention
from gossamer.tasks.precision import Precision
from gossamer.tasks.random_layers import Numbers, Randomness

INVALID = (RuntimeError, ValueError, TypeError, IndexError, AssertionError)
"""What an invalid network or metric raises."""

LossAndGradient = tuple[Tensor, Params]  # an alias, because torch.compile does not accept the annotation written out
OfOne = Callable[[Nest, Tensor, Tensor], LossAndGradient]
"""Map a batch of one sample and the sample's number in its batch to the loss and its gradient."""


class Differentiable(Protocol):
    """The interface of ``gossamer.tasks.objective.Objective`` that this module needs."""

    device: torch.device
    precision: Precision

    @property
    def random(self) -> Randomness:
        """How the network draws random numbers in training."""
        ...

    def initial(self) -> Params:
        """Return the initial exchanged tensors."""
        ...

    def local(self) -> Params:
        """Return the integer buffers."""
        ...

    def train_mode(self, alone: bool) -> None:
        """Set training mode, for batches of a single sample if ``alone``."""
        ...

    def gradient(self, params: Params, x: Nest, y: Tensor) -> tuple[Tensor, Params, Params]:
        """Return loss, gradients and changed buffers of one batch."""
        ...

    def pure_gradient(
        self, params: Params, x: Nest, y: Tensor, labels: Tensor | None = None, numbers: Numbers | None = None
    ) -> tuple[Tensor, Params, Params]:
        """Return the same as ``gradient``, for ``torch.vmap`` and ``torch.compile``."""
        ...


def of_one(
    objective: Differentiable, params: Params, labels: Tensor | None = None, numbers: Numbers | None = None
) -> OfOne:
    """Return the gradient of one sample as a function; entries that are not finite are 0.

    In random layers each sample draws its own numbers.
    """

    def one(x: Nest, y: Tensor, number: Tensor) -> LossAndGradient:
        own = None if numbers is None else numbers.of_sample(number)
        batch = nests.apply(lambda leaf: leaf.unsqueeze(0), x), y.unsqueeze(0)
        loss, grads, _ = objective.pure_gradient(params, *batch, labels, own)
        # A sample that is not finite would spoil the sum of all, whatever its weight.
        return loss, {name: torch.nan_to_num_(grad, 0.0, 0.0, 0.0) for name, grad in grads.items()}

    return one


def together(one: OfOne, x: Nest, y: Tensor) -> LossAndGradient:
    """Return losses and gradients of all samples along a new first dimension, from one computation."""
    with stackable_attention(y.device):
        found: LossAndGradient = torch.vmap(one)(x, y, torch.arange(len(y), device=y.device))
    return found


def in_turn(one: OfOne, x: Nest, y: Tensor) -> LossAndGradient:
    """Return the same, one sample after the other."""
    order = torch.arange(len(y), device=y.device)
    found = [one(nests.take(x, number), y[number], order[number]) for number in range(len(y))]
    grads = {name: torch.stack([each[1][name] for each in found]) for name in found[0][1]}
    return torch.stack([each[0] for each in found]), grads


def supports_vmap(objective: Differentiable, batch: Batch) -> bool:
    """Return whether ``together`` works, found by a trial."""
    try:
        _trial(objective, batch, together)
    except INVALID:
        return False
    return True


def _trial(objective: Differentiable, batch: Batch, how: Callable[[OfOne, Nest, Tensor], LossAndGradient]) -> None:
    step = torch.zeros((), dtype=torch.int64, device=objective.device)
    numbers = Numbers(key_tensor(Key(0, 0), objective.device), step) if objective.random.layers else None
    objective.train_mode(alone=True)
    with objective.precision.products(), seeded(Key(0, 0)):
        how(of_one(objective, {**objective.initial(), **objective.local()}, numbers=numbers), *batch)


def check_norms(layers: Iterable[tuple[str, nn.Module]]) -> None:
    """Refuse BatchNorm layers, given all layers with their names."""
    for name, layer in layers:
        if isinstance(layer, _BatchNorm):
            raise ConfigError(
                f"the layer {name or 'of the model'} is a BatchNorm, which mixes the samples of a batch, so what one "
                "sample contributes has no bound: use GroupNorm, nn.GroupNorm(8, channels), or --model resnet18-gn"
            )


def check(objective: Differentiable, batch: Batch) -> None:
    """Refuse networks without gradients of single samples, or with buffers that reveal the samples."""
    if other := objective.random.other:
        raise ConfigError(f"the network draws random numbers by {other}: it has no gradients of single samples")
    held = {**objective.initial(), **objective.local()}
    with seeded(Key(0, 0)), torch.enable_grad():
        changed = objective.gradient(held, *batch)[2]
    for name, after in changed.items():
        if not torch.equal(after, held[name]):
            raise ConfigError(
                f"the network computes the buffer {name} from the samples in training, and its values are sent without "
                "noise: leave it constant, or register it with persistent=False and do not change it in training"
            )
    try:
        _trial(objective, batch, in_turn)
    except INVALID as error:
        raise ConfigError(f"the network fails on a batch of one sample: {error}") from error
