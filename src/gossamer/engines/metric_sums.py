"""Metrics of clients as whole numbers that secure aggregation sums: the server learns means, and no client's metrics.

A client has the loss and the metrics of a model on its own test samples. Each of these values is clipped to a range and
written in steps, from 0 to ``limit``, which is as large as rings of 32 bits allow. Per value there are four numbers:

    defined     1; 0 if the client has no test samples, or the value is not defined on them
    value       the value in steps
    weight      the client's number of test samples in steps of ``MOST_SAMPLES / limit``, at most ``MOST_SAMPLES``
    product     the value times the weight, in steps

From the sums follow the mean over clients, and the mean over test samples. What a client sends of a value that is not
defined is 0, and the server does not learn whose it is.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from gossamer.core.secure import SumSegment
from gossamer.engines.evaluate import Evaluated
from gossamer.tasks.losses import loss_name
from gossamer.tasks.task import Task

MOST_SAMPLES = 2**16
"""The largest number of test samples that counts for a client."""

LARGEST = 1024.0
"""The largest loss, and the largest magnitude of a metric that is no share."""

BITS = 32
"""Bits of a sum."""


def limit_of(clients: int) -> int:
    """Return the number of steps of a value for a number of clients."""
    return ((1 << BITS) - 1) // max(clients, 1)


def metric_segments(task: Task, limit: int) -> tuple[SumSegment, ...]:
    """Return the segments of the numbers of one client: the flags, and the rest."""
    values = 1 + len(task.metrics)
    return SumSegment(values, 1), SumSegment(3 * values, limit)


def _ranges(task: Task) -> list[tuple[float, float]]:
    """Return the smallest and the largest value of the loss and of each metric."""
    loss = (0.0 if loss_name(task.loss) else -LARGEST, LARGEST)
    return [loss, *((0.0, 1.0) if metric.format == "percent" else (-LARGEST, LARGEST) for metric in task.metrics)]


def metric_numbers(task: Task, values: Sequence[float], tested: int, limit: int) -> Tensor:
    """Return a client's numbers, given its loss, its metrics, and its number of test samples."""
    flags, steps, weights, products = [], [], [], []
    for value, (low, high) in zip(values, _ranges(task), strict=True):
        defined = tested > 0 and math.isfinite(value)
        share = (min(max(value, low), high) - low) / (high - low) if defined else 0.0
        weight = min(tested, MOST_SAMPLES) / MOST_SAMPLES if defined else 0.0
        flags.append(int(defined))
        steps.append(round(share * limit))
        weights.append(round(weight * limit))
        products.append(round(share * weight * limit))
    return torch.tensor([*flags, *steps, *weights, *products], dtype=torch.int64)


def means_of(task: Task, total: Tensor, limit: int, clients: int) -> Evaluated:
    """Return the metrics in a sum of clients: means over test samples, and over clients as ``personal_``.

    Values that no clients in range can have are left out: some client has sent numbers out of its range.
    """
    names, found = ("loss", *(metric.name for metric in task.metrics)), Evaluated()
    flags, steps, weights, products = total.to(torch.float64).view(4, len(names)).tolist()
    for at in range(len(names)):
        most = limit * flags[at]
        if flags[at] > clients or max(steps[at], weights[at]) > most or products[at] > weights[at] + flags[at]:
            flags[at] = 0
    for at, (name, (low, high)) in enumerate(zip(names, _ranges(task), strict=True)):
        if not flags[at]:
            continue
        found[f"personal_{name}"] = low + (high - low) * steps[at] / (limit * flags[at])
        found[name] = low + (high - low) * products[at] / weights[at] if weights[at] else found[f"personal_{name}"]
    found.pop("personal_loss", None)
    return found
