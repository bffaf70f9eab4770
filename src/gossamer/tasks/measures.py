"""What the metrics with a name compute: functions of outputs and targets.

Class scores are ``[batch, classes]``, token scores ``[batch, time, classes]``. Logits of labels and predicted numbers
have the shape of the targets.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from gossamer.tasks.losses import IGNORED, aligned


def accuracy(output: Tensor, target: Tensor) -> Tensor:
    """Return for each sample whether the largest score is the class, or whether all of its logits are right."""
    if output.numel() == target.numel():
        return exact_match(output, target)
    return output.argmax(-1) == target


def top5(output: Tensor, target: Tensor) -> Tensor:
    """Return for each sample whether the class is among the five largest scores."""
    best = output.topk(min(5, output.shape[-1]), -1).indices
    return (best == target.unsqueeze(-1)).any(-1)


def exact_match(output: Tensor, target: Tensor) -> Tensor:
    """Return for each sample whether all of its labels are right; a label is predicted if its logit is above 0."""
    return _labels_right(output, target).all(1)


def multilabel_accuracy(output: Tensor, target: Tensor) -> Tensor:
    """Return for each sample the share of its labels that are right."""
    return _labels_right(output, target).double().mean(1)


def _labels_right(output: Tensor, target: Tensor) -> Tensor:
    output, target = aligned("the metric", output, target)
    return ((output > 0) == (target > 0.5)).reshape(len(target), -1)


def f1(output: Tensor, target: Tensor) -> float:
    """Return F1: of the positive class if there is one logit, else the mean over the classes or labels that occur."""
    guessed, real = _indicators(output, target)
    hits, either = (guessed & real).sum(0), (guessed.sum(0) + real.sum(0))
    occurs = either > 0
    return float((2 * hits[occurs].double() / either[occurs]).mean()) if bool(occurs.any()) else math.nan


def _indicators(output: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Return predictions and truth as booleans, [batch, classes or labels]."""
    if output.numel() == target.numel():
        output, target = aligned("f1", output, target)
        return (output > 0).reshape(len(output), -1), (target > 0.5).reshape(len(target), -1)
    classes = torch.arange(output.shape[-1], device=output.device)
    return output.argmax(-1, keepdim=True) == classes, target.unsqueeze(-1) == classes


def auroc(output: Tensor, target: Tensor) -> float:
    """Return the area under the ROC curve: the mean over the classes or labels with positive and negative samples."""
    if output.numel() != target.numel():
        output, real = output.softmax(-1), _indicators(output, target)[1]
    else:
        real = _indicators(output, target)[1]
    scores = output.reshape(len(output), -1)
    areas = [_area(scores[:, at], real[:, at]) for at in range(scores.shape[1])]
    defined = [area for area in areas if math.isfinite(area)]
    return sum(defined) / len(defined) if defined else math.nan


def _area(scores: Tensor, real: Tensor) -> float:
    """Return the probability that a positive sample has a higher score than a negative one; equal ones count half."""
    positive, negative = int(real.sum()), int((~real).sum())
    if not positive or not negative:
        return math.nan
    _, group, sizes = scores.unique(return_inverse=True, return_counts=True)
    ranks = (sizes.cumsum(0) - (sizes - 1) / 2).double()  # equal scores share their mean rank
    return float((ranks[group][real].sum() - positive * (positive + 1) / 2) / (positive * negative))


def squared_error(output: Tensor, target: Tensor) -> Tensor:
    """Return the mean squared error of each sample."""
    return _errors(output, target).square().mean(1)


def absolute_error(output: Tensor, target: Tensor) -> Tensor:
    """Return the mean absolute error of each sample."""
    return _errors(output, target).abs().mean(1)


def _errors(output: Tensor, target: Tensor) -> Tensor:
    output, target = aligned("the metric", output, target)
    return (output.double() - target.double()).reshape(len(target), -1)


def r2(output: Tensor, target: Tensor) -> float:
    """Return the coefficient of determination: the mean over the outputs whose targets vary."""
    errors, real = _errors(output, target), target.double().reshape(len(target), -1)
    spread = (real - real.mean(0)).square().sum(0)
    varies = spread > 0
    return float((1 - errors.square().sum(0)[varies] / spread[varies]).mean()) if bool(varies.any()) else math.nan


def token_accuracy(output: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Return for each sample the number of tokens that are right, and the number that count."""
    counts = target != IGNORED
    return ((output.argmax(-1) == target) & counts).flatten(1).sum(1), counts.flatten(1).sum(1)


def token_loss(output: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Return for each sample the summed cross-entropy of its tokens, and the number that count."""
    losses = F.cross_entropy(output.movedim(-1, 1).double(), target, ignore_index=IGNORED, reduction="none")
    return losses.flatten(1).sum(1), (target != IGNORED).flatten(1).sum(1)


def exponential(loss: float) -> float:
    """Return exp, infinite where it overflows."""
    return math.exp(loss) if loss < 700 else math.inf
