"""Losses by name: a function of the outputs and targets of a batch, to their mean loss.

Outputs may have an axis of size 1 that targets lack: ``[batch, 1]`` and ``[batch]`` belong together, and are not
broadcast against each other. Token-level targets are ``[batch, time]`` with outputs ``[batch, time, classes]``. A token
whose target is -100 counts nowhere, and the loss is the mean over the tokens that count.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gossamer.core.errors import ConfigError
from gossamer.core.specs import unknown

LossFunction = Callable[[Tensor, Tensor], Tensor]
AnyLoss = str | LossFunction

IGNORED = -100
"""The target of a token that does not count, as in PyTorch."""


def cross_entropy(output: Tensor, target: Tensor) -> Tensor:
    """Return the cross-entropy of class scores: mean over samples, or over the tokens that count."""
    if target.dim() == 1:
        return F.cross_entropy(output, target)
    scores, classes = token_scores("cross_entropy", output, target)
    return F.cross_entropy(scores, classes, ignore_index=IGNORED, reduction="sum") / _counted(classes)


def nll(output: Tensor, target: Tensor) -> Tensor:
    """Return the negative log-likelihood; outputs are logarithms of probabilities, targets as in ``cross_entropy``."""
    if target.dim() == 1:
        return F.nll_loss(output, target)
    scores, classes = token_scores("nll", output, target)
    return F.nll_loss(scores, classes, ignore_index=IGNORED, reduction="sum") / _counted(classes)


def mse(output: Tensor, target: Tensor) -> Tensor:
    """Return the mean squared error."""
    return F.mse_loss(*aligned("mse", output, target))


def l1(output: Tensor, target: Tensor) -> Tensor:
    """Return the mean absolute error."""
    return F.l1_loss(*aligned("l1", output, target))


def huber(output: Tensor, target: Tensor) -> Tensor:
    """Return the Huber loss: squared below an error of 1, absolute above."""
    return F.huber_loss(*aligned("huber", output, target))


def bce(output: Tensor, target: Tensor) -> Tensor:
    """Return the binary cross-entropy of logits, for one label or several labels per sample."""
    return F.binary_cross_entropy_with_logits(*aligned("bce", output, target))


def aligned(name: str, output: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Return outputs in the shape of the targets, and targets in the type of the outputs."""
    if output.shape != target.shape:
        if _wide(output) != _wide(target):
            raise ValueError(f"{name} needs outputs and targets of one shape, got {_shapes(output, target)}")
        output = output.reshape(target.shape)
    return output, target.to(output.dtype)


def token_scores(name: str, output: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Return scores ``[tokens, classes]`` and targets ``[tokens]``."""
    if output.shape[:-1] != target.shape:
        needed = "outputs [batch, time, classes] for targets [batch, time]"
        raise ValueError(f"{name} needs {needed}, got {_shapes(output, target)}")
    return output.flatten(0, -2), target.flatten()


def _counted(target: Tensor) -> Tensor:
    return (target != IGNORED).sum().clamp(min=1)


def _wide(tensor: Tensor) -> list[int]:
    """Return the batch size, and the sizes of the other axes that are not 1."""
    return [len(tensor), *(size for size in tensor.shape[1:] if size != 1)] if tensor.dim() else []


def _shapes(output: Tensor, target: Tensor) -> str:
    return f"{list(output.shape)} and {list(target.shape)}"


class Loss(NamedTuple):
    """A loss with a name.

    Args:
        function: the loss
        same: what PyTorch calls it; these are replaced by ``function``
        targets: what targets must be: classes, numbers or shares (from 0 to 1)
        metrics: names of the default metrics
        wide: names of the default metrics for several targets per sample
    """

    function: LossFunction
    same: tuple[Any, ...]
    targets: str
    metrics: tuple[str, ...]
    wide: tuple[str, ...]


TOKENS = ("token_accuracy", "perplexity")

LOSSES: dict[str, Loss] = {
    "bce": Loss(
        bce,
        (F.binary_cross_entropy_with_logits, nn.BCEWithLogitsLoss),
        "shares",
        ("accuracy",),
        ("exact_match", "multilabel_accuracy"),
    ),
    "cross_entropy": Loss(cross_entropy, (F.cross_entropy, nn.CrossEntropyLoss), "classes", ("accuracy",), TOKENS),
    "huber": Loss(huber, (F.huber_loss, nn.HuberLoss), "numbers", ("mae", "rmse"), ("mae", "rmse")),
    "l1": Loss(l1, (F.l1_loss, nn.L1Loss), "numbers", ("mae", "rmse"), ("mae", "rmse")),
    "mse": Loss(mse, (F.mse_loss, nn.MSELoss), "numbers", ("rmse", "mae"), ("rmse", "mae")),
    "nll": Loss(nll, (F.nll_loss, nn.NLLLoss), "classes", ("accuracy",), TOKENS),
}
"""Losses by name."""


def loss_function(given: AnyLoss) -> LossFunction:
    """Return the function of a loss: by name, one of PyTorch, or your own."""
    if isinstance(given, str):
        if given not in LOSSES:
            raise ConfigError(unknown("loss", given, LOSSES) + ", or a function of outputs and targets")
        return LOSSES[given].function
    if isinstance(given, type):
        raise ConfigError(f"loss is the class {given.__name__}: give an object, {given.__name__}()")
    if not callable(given):
        raise ConfigError(f"loss must be a name or a function of outputs and targets, got {given!r}")
    return next((loss.function for loss in LOSSES.values() if _is_same(given, loss.same)), given)


def loss_name(function: LossFunction) -> str | None:
    """Return the name of a loss; none for a function of your own."""
    return next((name for name, loss in LOSSES.items() if loss.function is function), None)


def _is_same(given: Any, same: tuple[Any, ...]) -> bool:
    """Return whether a loss of PyTorch has its default options."""
    function, module = same
    if given is function:
        return True
    if type(given) is not module or any(buffer is not None for buffer in given._buffers.values()):
        return False
    usual = vars(module())
    return all(vars(given)[name] == value for name, value in usual.items() if name[0] != "_" and name != "training")


def weight(function: LossFunction, target: Tensor) -> int:
    """Return the weight of a batch in a mean loss: its samples, or its tokens that count."""
    loss = LOSSES.get(loss_name(function) or "")
    if loss is not None and loss.targets == "classes" and target.dim() > 1:
        return int((target != IGNORED).sum())
    return len(target)


def wrong_targets(function: LossFunction, target: Tensor) -> str:
    """Return what is wrong with targets for a loss; empty if nothing is."""
    if target.is_floating_point() and not bool(torch.isfinite(target).all()):
        return "y holds values that are not finite"
    loss = LOSSES.get(loss_name(function) or "")
    if loss is None or loss.targets == "numbers":
        return ""
    if loss.targets == "shares":
        return "" if bool(((target >= 0) & (target <= 1)).all()) else "y must hold values from 0 to 1 for loss='bce'"
    if target.is_floating_point():
        return f"y holds numbers of type {target.dtype}, not classes: give loss='mse' or another one for numbers"
    if target.dim() == 2 and target.shape[1] == 1:
        return "y must hold one label per sample, not a column of labels: write y.squeeze(1)"
    if target.dim() == 1 and (target.dtype != torch.int64 or bool(target.min() < 0)):
        return "y must hold one label per sample, as int64 numbers starting at 0"
    if target.dtype != torch.int64 or bool(((target < 0) & (target != IGNORED)).any()):
        return f"y must hold one class per token, as int64 numbers starting at 0; {IGNORED} does not count"
    return ""
