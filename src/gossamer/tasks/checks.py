"""Checks of a model, its loss and its metrics on two samples, so that mistakes are found before training."""

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from gossamer.core.errors import ConfigError, Mistake, Setting, require
from gossamer.core.types import Params
from gossamer.tasks.data import nests
from gossamer.tasks.data.nests import Nest
from gossamer.tasks.losses import LossFunction, loss_name, token_scores
from gossamer.tasks.metrics import Metric
from gossamer.tasks.per_sample import INVALID
from gossamer.tasks.precision import FLOAT32
from gossamer.tasks.random_layers import Randomness

CONVERTED = {torch.float64: "x.float()", torch.float16: "x.float()", torch.uint8: "x.float() / 255"}
"""What to write for inputs of a type that a network of float32 refuses."""


@contextmanager
def explaining(x: Nest, dtype: torch.dtype, precision: str, layers: Sequence[str]) -> Iterator[None]:
    """Say where a network fails on inputs.

    Args:
        x: the inputs
        dtype: the type of the network
        precision: the precision of the run, which the network may not support
        layers: the layers that were called so far, which are added as they are called
    """
    try:
        yield
    except ConfigError:
        raise
    except INVALID as error:
        where = f" at {layers[-1]}" if layers else ""
        used = "" if precision == FLOAT32 else f" with precision {precision}"
        hint = ""
        other = next((leaf.dtype for leaf in nests.leaves(x).values() if leaf.dtype in CONVERTED), dtype)
        if "type" in str(error) and other != dtype:  # what to write if inputs and network have different types
            of_x, of_network = (str(each).removeprefix("torch.") for each in (other, dtype))
            hint = f": x is {of_x} and the network {of_network}: write {CONVERTED[other]}"
        raise ConfigError(
            f"the model fails on a batch of samples of shape {nests.shapes(x)}{where}{used}: {error}{hint}"
        ) from error


def check_labels(loss: LossFunction, output: Tensor, targets: Sequence[Tensor]) -> None:
    """Refuse labels beyond the outputs of a classifier, of samples or of their tokens.

    ``output`` is that for the first of the targets.
    """
    name = loss_name(loss)
    if output.dim() < 2 or name not in ("cross_entropy", "nll") or any(y.dtype != torch.int64 for y in targets):
        return
    y = next((y for y in targets if len(y)), targets[0])[: len(output)]
    outputs = (output if y.dim() == 1 else token_scores(name, output, y.to(output.device))[0]).shape[1]
    classes = max((int(y.max()) for y in targets if y.numel()), default=-1) + 1
    if 0 < outputs < classes:
        raise ConfigError(
            f"the largest label is {classes - 1}, but the model has {outputs} outputs, for the labels 0 to "
            f"{outputs - 1}: number the labels from 0, or give the model {classes} outputs"
        )


def check_loss(loss: LossFunction, output: Tensor, y: Tensor) -> None:
    """Try a loss on outputs, so that its mistakes are not taken for the network's."""
    try:
        with warnings.catch_warnings(action="ignore"):  # training shows them
            found = loss(output.detach().requires_grad_(), y)
    except Exception as error:  # a user's function may fail in any way
        shapes = f"outputs {list(output.shape)} and targets {list(y.shape)}"
        raise ConfigError(f"the loss fails on {shapes}: {error}") from error
    tensor = isinstance(found, Tensor)
    got = list(found.shape) if tensor else f"a {type(found).__name__}"
    require(
        (
            tensor and not found.dim(),
            f"the loss must return one number for a batch, a tensor of shape [], got {got}",
        ),
        (
            not tensor or found.requires_grad,
            "the loss has no gradient: compute it from the outputs by operations of torch",
        ),
    )


def check_finite(loss: Tensor) -> None:
    """Refuse a loss of a batch that is not one finite number."""
    if loss.dim() != 0 or not torch.isfinite(loss):
        raise ConfigError(f"the loss of a batch must be one finite number, got {loss}: check model, loss and data")


@torch.no_grad()
def check_metrics(metrics: Sequence[Metric], output: Tensor, y: Tensor) -> None:
    """Try each metric on outputs."""
    for metric in metrics:
        try:
            with warnings.catch_warnings(action="ignore"):  # of two samples: some metrics need more
                rows = metric.rows(output, y)
                metric.of_all(output, y) if rows is None else metric.mean(rows.cpu().numpy())
        except INVALID as error:
            shapes = f"outputs of shape {list(output.shape)} and targets of shape {list(y.shape)}"
            raise ConfigError(f"the metric {metric.name} fails on {shapes}: {error}") from error


def check_repeats(random: Randomness) -> None:
    """Refuse checkpointing if a repeated block would draw other numbers."""
    if other := random.other:
        text = f"repeats blocks of the network, which would draw other numbers by {other}: leave it out"
        raise ConfigError(Mistake(text, Setting("", "checkpointing")))


def check_draws(random: Randomness) -> None:
    """Refuse networks that draw otherwise than by layers of torch, for methods that compare two losses of a batch."""
    if other := random.other:
        raise ConfigError(
            f"the network draws random numbers by {other}: two losses of a batch would differ by them; use layers "
            "of torch, such as nn.Dropout"
        )


def check_unchanged(buffers: Params, before: Params) -> None:
    """Refuse networks whose forward pass changes buffers, for methods that send scalars."""
    for name, after in buffers.items():
        if not torch.equal(after, before[name]):
            raise ConfigError(
                f"the forward pass changes the buffer {name}, which a method that sends scalars does not send: use "
                "layers without running statistics, such as nn.GroupNorm, or --model resnet18-gn"
            )
