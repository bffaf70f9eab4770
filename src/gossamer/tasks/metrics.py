"""Metrics: numbers that say how good a model's outputs are, each with a name, a direction and a format.

A metric is aggregated in one of three ways, by what its function of outputs and targets returns:

    one value per sample             the mean over samples, then ``last``: rmse is the square root of a mean
    sums and weights per sample      the sum of sums divided by the sum of weights: token accuracy, perplexity
    one number                       a function of all outputs and targets together: AUROC, F1, R2

All three are exact over batches of unequal sizes. Per-sample results are also kept, so that the metrics of each
client's samples follow from one evaluation of the whole test set.
"""

import copy
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from gossamer.core.errors import ConfigError, require, wrong
from gossamer.core.specs import unknown
from gossamer.tasks import measures
from gossamer.tasks.losses import LOSSES, LossFunction, loss_name

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
        return tuple(self._value(*each, index) for each in zip(self.metrics, self.rows, strict=True))

    def _value(self, metric: Metric, rows: Rows | None, index: npt.NDArray[np.int64] | None) -> float:
        if rows is not None:
            return metric.mean(rows if index is None else rows[index])
        assert self.outputs is not None
        at = slice(None) if index is None else torch.from_numpy(index).to(self.outputs.device)
        return metric.of_all(self.outputs[at], self.targets[at])


METRICS: dict[str, Metric] = {
    metric.name: metric
    for metric in (
        Metric("accuracy", measures.accuracy, format="percent"),
        Metric("auroc", measures.auroc, whole=True),
        Metric("exact_match", measures.exact_match, format="percent"),
        Metric("f1", measures.f1, whole=True),
        Metric("mae", measures.absolute_error, better="lower"),
        Metric("mse", measures.squared_error, better="lower"),
        Metric("multilabel_accuracy", measures.multilabel_accuracy, format="percent"),
        Metric("perplexity", measures.token_loss, better="lower", last=measures.exponential),
        Metric("r2", measures.r2, whole=True),
        Metric("rmse", measures.squared_error, better="lower", last=math.sqrt),
        Metric("token_accuracy", measures.token_accuracy, format="percent"),
        Metric("top5", measures.top5, format="percent"),
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
        return _of_torchmetrics(given, name)
    if not callable(given):
        raise ConfigError(
            f"metrics: must be names, functions of outputs and targets, or torchmetrics objects, got {given!r}"
        )
    found = name or getattr(given, "__name__", type(given).__name__)
    require((found.isidentifier(), "metrics: a lambda has no name: give it one with a mapping, {'name': lambda ...}"))
    if found in METRICS:  # your own version of a metric that is known: its direction and format are, too
        return replace(METRICS[found], function=given, last=None, whole=False)
    return Metric(found, given, better="higher" if getattr(given, "higher_is_better", True) else "lower")


def _of_torchmetrics(given: Any, name: str) -> Metric:
    found = name or re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", type(given).__name__).lower()
    higher = getattr(given, "higher_is_better", None)
    say = f"Metric({found!r}, Torchmetric({type(given).__name__}()), better=...)"
    require((higher is not None, f"metrics: {type(given).__name__} has no direction (higher_is_better): write {say}"))
    return Metric(found, Torchmetric(given), better="higher" if higher else "lower", whole=True)


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
