"""Outputs of a model, judged by the loss and the metrics of a task, batch by batch."""

import math
from collections.abc import Iterable

import torch
from torch import Tensor

from gossamer.tasks.losses import LossFunction, weight
from gossamer.tasks.metrics import Judgement, Metric, Rows


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
    return Judgement(mean, metrics, tuple(map(_joined, rows)), y, torch.cat(kept) if kept else None)


def _joined(rows: list[Tensor | None]) -> Rows | None:
    """Return the rows of all batches; none if a metric has none."""
    found = [each for each in rows if each is not None]
    return torch.cat(found).to("cpu").numpy() if found else None
