"""Metrics: numbers that say how good a model's outputs are, each with a name, a direction and a format.

A metric is aggregated in one of three ways, by what its function of outputs and targets returns:

    one value per sample             the mean over samples, then ``last``: rmse is the square root of a mean
    sums and weights per sample      the sum of sums divided by the sum of weights: token accuracy, perplexity
    one number                       a function of all outputs and targets together: AUROC, F1, R2

All three are exact over batches of unequal sizes. Per-sample results are also kept, so that the metrics of each
client's samples follow from one evaluation of the whole test set.

Class scores are ``[batch, classes]``, token scores ``[batch, time, classes]``. Logits of labels and predicted numbers
have the shape of the targets.
"""

import copy
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from gossamer.core.errors import ConfigError, require, wrong
from gossamer.core.specs import unknown
from gossamer.tasks.losses import IGNORED, LOSSES, LossFunction, aligned, loss_name, weight


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


Rows = npt.NDArray[np.float64]
"""For each sample, its weighted value and its weight."""

AnyMetrics = Any
"""A name, a function, a torchmetrics object, a ``Metric``, or a list or mapping of these."""

PREFIXES = ("personal_", "worst_tenth_", "validation_")
"""The starts of other entries of records: means over clients, and metrics on held-out training samples."""

TAKEN = {
    "airtime", "anomalies", "attack", "attack_success", "best", "by_client", "bytes_down", "bytes_up", "bytes_values",
    "bytes_views", "channel", "checkpointing", "clients", "cluster", "data", "delay", "delivery", "diverges",
    "empty_rounds", "energy", "evaluated_round", "exchanges", "excluded", "executor", "failures", "figures", "flops",
    "frozen", "hostile", "idle_share", "joules", "left_out", "loss", "lost", "memory_bytes", "method", "metrics",
    "model", "parameters", "parts", "per_round", "rates", "round", "rounds", "rounds_asked", "schedule", "seconds",
    "seed", "server", "spent_in_vain", "split", "staleness", "state", "stopped", "targets", "tasks", "time",
    "train_loss", "train_precision", "useful_flops", "validate", "void",
}  # fmt: skip
"""Names of other entries of records and summaries."""


@dataclass(frozen=True)
class Metric:
    """A metric.

    Args:
        name: name in records and tables, such as ``rmse``
        function: function of outputs and targets; what it returns decides the aggregation
        better: whether higher or lower values are better
        format: how values are shown: as a number or in percent
        last: function of the mean, for example the square root
        whole: whether ``function`` needs all outputs and targets at once; detected if it returns one number
    """

    name: str
    function: Callable[[Tensor, Tensor], Any]
    better: Literal["higher", "lower"] = "higher"
    format: Literal["number", "percent"] = "number"
    last: Callable[[float], float] | None = None
    whole: bool = False

    def __post_init__(self) -> None:
        plain = self.name.isidentifier() and self.name not in TAKEN and not self.name.startswith(PREFIXES)
        require(
            (plain, wrong(self, "name", "must be a word of letters, digits and _ that records do not use otherwise")),
            (callable(self.function), wrong(self, "function", "must be a function of outputs and targets")),
            (self.better in ("higher", "lower"), wrong(self, "better", "must be higher or lower")),
            (self.format in ("number", "percent"), wrong(self, "format", "must be number or percent")),
        )

    def describe(self) -> dict[str, str]:
        """Return name, direction and format for the run folder."""
        return {"name": self.name, "better": self.better, "format": self.format}

    def rows(self, output: Tensor, target: Tensor) -> Tensor | None:
        """Return value times weight, and weight, of each sample of a batch; none if the metric needs all of them."""
        if self.whole:
            return None
        found = self.function(output, target)
        sums, weights = found if isinstance(found, tuple) else (found, None)
        sums = torch.as_tensor(sums)
        if not sums.dim():
            return None
        weights = torch.ones_like(sums, dtype=torch.float64) if weights is None else torch.as_tensor(weights)
        if not sums.shape == weights.shape == (len(target),):
            raise ValueError(
                f"metric {self.name} must return one value per sample or one number; "
                f"for {len(target)} samples it returned the shape {list(sums.shape)}"
            )
        return torch.stack([sums.double(), weights.double()], 1)

    def mean(self, rows: Rows) -> float:
        """Return the metric of samples, from their rows."""
        total, weight = rows.sum(axis=0).tolist()
        if not weight:
            return math.nan
        return self.last(total / weight) if self.last else total / weight

    def of_all(self, outputs: Tensor, targets: Tensor) -> float:
        """Return a metric that is one number of all outputs and targets."""
        value = torch.as_tensor(self.function(outputs, targets), dtype=torch.float64)
        if value.numel() != 1:
            raise ValueError(f"metric {self.name} must return one number, got the shape {list(value.shape)}")
        return self.last(float(value)) if self.last else float(value)


class Judgement(NamedTuple):
    """A model's outputs on samples, judged by the loss and all metrics.

    Args:
        loss: mean loss
        metrics: the metrics
        rows: for each metric the rows of all samples; none for a metric that is one number of all samples
        targets: the targets
        outputs: the outputs, if a metric needs all of them at once or the caller asked for them
    """

    loss: float
    metrics: tuple[Metric, ...]
    rows: tuple[Rows | None, ...]
    targets: Tensor
    outputs: Tensor | None = None

    def values(self, index: npt.NDArray[np.int64] | None = None) -> tuple[float, ...]:
        """Return each metric, of all samples or of those at ``index``."""
        found = []
        for metric, rows in zip(self.metrics, self.rows, strict=True):
            if rows is not None:
                found.append(metric.mean(rows if index is None else rows[index]))
                continue
            assert self.outputs is not None
            at = slice(None) if index is None else torch.from_numpy(index).to(self.outputs.device)
            found.append(metric.of_all(self.outputs[at], self.targets[at]))
        return tuple(found)


METRICS: dict[str, Metric] = {
    metric.name: metric
    for metric in (
        Metric("accuracy", accuracy, format="percent"),
        Metric("auroc", auroc, whole=True),
        Metric("exact_match", exact_match, format="percent"),
        Metric("f1", f1, whole=True),
        Metric("mae", absolute_error, better="lower"),
        Metric("mse", squared_error, better="lower"),
        Metric("multilabel_accuracy", multilabel_accuracy, format="percent"),
        Metric("perplexity", token_loss, better="lower", last=exponential),
        Metric("r2", r2, whole=True),
        Metric("rmse", squared_error, better="lower", last=math.sqrt),
        Metric("token_accuracy", token_accuracy, format="percent"),
        Metric("top5", top5, format="percent"),
    )
}
"""Metrics by name."""

ACCURACY = METRICS["accuracy"]


class Torchmetric:
    """A torchmetrics object as a function of all outputs and targets."""

    def __init__(self, metric: Any) -> None:
        self.metric = copy.deepcopy(metric)

    def __call__(self, outputs: Tensor, targets: Tensor) -> Any:
        """Return the metric's value; nothing stays in the object."""
        metric = self.metric.to(outputs.device) if hasattr(self.metric, "to") else self.metric
        metric.reset()
        metric.update(outputs, targets)
        value = metric.compute()
        metric.reset()
        return value


def metrics_of(given: AnyMetrics) -> tuple[Metric, ...]:
    """Return metrics as ``Metric`` objects: the first is the primary one, and names are different."""
    if isinstance(given, Mapping):
        made = [replace(metric_of(each, name), name=name) for name, each in given.items()]
    else:
        listed = given if isinstance(given, Sequence) and not isinstance(given, str) else [given]
        made = [metric_of(each) for each in listed]
    names = [metric.name for metric in made]
    twice = sorted({name for name in names if names.count(name) > 1})
    require((not twice, f"metrics: there are two metrics called {', '.join(twice)}: name them with a mapping"))
    return tuple(made)


def metric_of(given: Any, name: str = "") -> Metric:
    """Return one metric; ``name`` is used where it has none."""
    if isinstance(given, Metric):
        return given
    if isinstance(given, str):
        if given not in METRICS:
            raise ConfigError(unknown("metric", given, METRICS) + ", or a function of outputs and targets")
        return METRICS[given]
    if isinstance(given, type):
        raise ConfigError(f"metrics: {given.__name__} is a class: give an object, {given.__name__}(...)")
    if all(callable(getattr(given, member, None)) for member in ("update", "compute", "reset")):
        kind = type(given).__name__
        found = name or re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", kind).lower()
        higher = getattr(given, "higher_is_better", None)
        say = f"Metric({found!r}, Torchmetric({kind}()), better=...)"
        require((higher is not None, f"metrics: {kind} has no direction (higher_is_better): write {say}"))
        return Metric(found, Torchmetric(given), better="higher" if higher else "lower", whole=True)
    if not callable(given):
        raise ConfigError(
            f"metrics: must be names, functions of outputs and targets, or torchmetrics objects, got {given!r}"
        )
    found = name or getattr(given, "__name__", type(given).__name__)
    require((found.isidentifier(), "metrics: a lambda has no name: give it one with a mapping, {'name': lambda ...}"))
    if found in METRICS:  # your own version of a metric that is known: its direction and format are, too
        return replace(METRICS[found], function=given, last=None, whole=False)
    return Metric(found, given, better="higher" if getattr(given, "higher_is_better", True) else "lower")


def default_metrics(loss: LossFunction, target: Tensor) -> tuple[Metric, ...]:
    """Return the metrics that follow from the loss and the targets."""
    known = LOSSES.get(loss_name(loss) or "")
    wide = target.dim() > 1 and target[:1].numel() > 1
    if known is not None:
        return metrics_of(known.wide if wide or (target.dim() > 1 and known.targets == "classes") else known.metrics)
    if target.is_floating_point() or target.dim() > 1:
        raise ConfigError(
            "metrics: the loss is your own and targets are no classes: say what to measure, such as metrics='rmse'"
        )
    return (ACCURACY,)


def only(output: Tensor, labels: Tensor | None) -> Tensor:
    """Set the scores of excluded labels, which have a 0 in ``labels``, to 0."""
    return output if labels is None else output * labels


def judge(
    outputs: Iterable[Tensor], y: Tensor, loss: LossFunction, metrics: tuple[Metric, ...], keep: bool = False
) -> Judgement:
    """Return the loss and metrics of the outputs for all samples, in batches. ``keep`` keeps the outputs."""
    total, weights, start = 0.0, 0, 0
    rows: list[list[Tensor | None]] = [[] for _ in metrics]
    kept: list[Tensor] = []
    for output in outputs:
        ys = y[start : start + len(output)]
        start += len(ys)
        total += float(loss(output, ys)) * (share := weight(loss, ys))
        weights += share
        for metric, found in zip(metrics, rows, strict=True):
            found.append(None if found and found[0] is None else metric.rows(output, ys))
        if keep or any(found[0] is None for found in rows):
            kept.append(output)
    mean = total / weights if weights else math.nan
    joined = []
    for found in rows:
        each = [some for some in found if some is not None]
        joined.append(torch.cat(each).to("cpu").numpy() if each else None)  # a metric of all outputs has no rows
    return Judgement(mean, metrics, tuple(joined), y, torch.cat(kept) if kept else None)
