"""Evaluation: the global model on the whole test set, and each client's deployed model on its personal test set.

A metric may be undefined for a client: AUROC needs two classes. The client then counts in no mean of this metric.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gossamer.core.binding import BoundMethod
from gossamer.core.bound import BoundExchange
from gossamer.core.errors import ConfigError
from gossamer.core.exchange import Arrival, Assignment, Download
from gossamer.core.method import Exchange
from gossamer.core.server import Server
from gossamer.core.types import Clock, Params, State
from gossamer.parts.attacks.base import Triggered
from gossamer.parts.codecs.dense import Dense
from gossamer.parts.solvers.probes import LossProbe
from gossamer.parts.views.entries import Full
from gossamer.runs.report.scores import VALIDATION, VALIDATION_LOSS
from gossamer.tasks.batch_norms import OfOwnBatch, OfTraining
from gossamer.tasks.data.lazy import LazySamples
from gossamer.tasks.data.partition import Split
from gossamer.tasks.data.samples import AnySamples, Samples
from gossamer.tasks.metrics import Judgement, Metric
from gossamer.tasks.objective import Objective

Values = tuple[float, ...]
"""One number per metric; the loss comes first where it is included."""

Evaluated = dict[str, Any]
"""Entries of a record: numbers by name, and the values of clients by metric."""

LISTED = 2000
"""Up to this many clients, a record has the value of every client; beyond it, the deciles over the clients."""

Labels = Callable[[int], Tensor | None]
"""Map a client to a vector with 1 for each label whose score counts; none means all labels."""


class Evaluator:
    """Evaluates models on the test set, or on ``held`` samples and their split, which are copied to the device once.

    With ``labels``, a client's personal metrics count the scores of other labels as 0, as its training does. The global
    metrics count all scores.
    """

    def __init__(
        self, objective: Objective, labels: Labels | None = None, held: tuple[AnySamples, Split] | None = None
    ) -> None:
        task = objective.task
        test, self.split = held or (task.data.test, task.split)
        self.objective, self.labels, self.test = objective, labels, test.to(objective.device)
        by = objective.task.statistics
        self.alone = objective.static and isinstance(by, OfOwnBatch)
        if objective.static and isinstance(by, OfTraining) and not len(objective.samples):
            raise ConfigError("statistics=train: the evaluating machine has no training samples: use batch")

        if objective.static and isinstance(self.test, LazySamples) and self.test.fitting < by.size:
            raise ConfigError(f"statistics=batch: a test batch of {by.size} samples does not fit memory: raise memory")

    @property
    def metrics(self) -> tuple[Metric, ...]:
        """The task's metrics."""
        return self.objective.task.metrics

    def __call__(self, model: Params, shared: bool, personal: Callable[[int], Params]) -> Evaluated:
        """Return loss and metrics on the whole test set, and the mean and worst-tenth personal metrics.

        Without a global model (not ``shared``), loss and metrics are means over the clients' deployed models. A client
        without personal test samples counts in no personal metric.
        """
        last, outcome = model, self._outcome(model)
        whole = [_scores(outcome)] if shared else []
        own: dict[int, Values] = {}
        for client in range(self.split.clients):
            params, tested = personal(client), self.split.test(client)
            if params is not last and not shared:
                last, outcome = params, self._outcome(params)
            if len(tested):
                seen = params is last and not self.alone
                own[client] = self._of(outcome, client) if seen else self.on_client(params, client)[1:]
            whole += [] if shared else [_scores(outcome)]
        return figures(self.metrics, np.mean(whole, axis=0).tolist(), own, self.split.clients)

    def by_client(self, personal: Callable[[int], Params]) -> Evaluated:
        """Return the same without a global model: loss and metrics are means weighted by test samples."""
        tested = [client for client in range(self.split.clients) if len(self.split.test(client))]
        found = [self.on_client(personal(client), client) for client in tested]
        if not found:
            return figures(self.metrics, [math.nan] * (1 + len(self.metrics)), {}, self.split.clients)
        sizes = np.array([[len(self.split.test(client))] for client in tested])
        defined = np.isfinite(found)
        with np.errstate(invalid="ignore"):
            total = (np.where(defined, found, 0.0) * sizes).sum(axis=0) / (defined * sizes).sum(axis=0)
        own = {client: each[1:] for client, each in zip(tested, found, strict=True)}
        return figures(self.metrics, total.tolist(), own, self.split.clients)

    def whole(self, params: Params) -> Values:
        """Return loss and metrics on the whole test set."""
        return _scores(self._outcome(params))

    def success(self, params: Params, attack: Triggered) -> float:
        """Return the share of test samples of other classes that a model takes for the target, with the trigger."""
        x, y = self.test.read(torch.nonzero(self.test.y != attack.target).view(-1))
        outputs = self.objective.outputs(params, Samples(attack.trigger(x), y))
        return float((torch.cat([batch.argmax(-1) for batch in outputs]) == attack.target).double().mean())

    def on_client(self, params: Params, client: int) -> Values:
        """Return loss and metrics on a client's personal test set; NaN if it is empty."""
        tested = self.split.test(client)
        if not len(tested):
            return (math.nan,) * (1 + len(self.metrics))
        return _scores(self._outcome(params, tested, self._labels(client)))

    def _of(self, outcome: Judgement, client: int) -> Values:
        """Return a client's personal metrics from an evaluation on the whole test set."""
        tested, labels = self.split.test(client), self._labels(client)
        if outcome.outputs is None or labels is None:
            return outcome.values(tested)
        rows = torch.from_numpy(tested).to(self.test.y.device)
        return self.objective.judged([outcome.outputs[rows]], self.test.y[rows], labels).values()

    def _labels(self, client: int) -> Tensor | None:
        return self.labels(client) if self.labels else None

    def _outcome(self, params: Params, index: np.ndarray | None = None, labels: Tensor | None = None) -> Judgement:
        picked = None if index is None else torch.from_numpy(index).to(self.test.y.device)
        outputs, keep = self.objective.outputs(params, self.test, picked), self.labels is not None and index is None
        return self.objective.judged(outputs, self.test.y if picked is None else self.test.y[picked], labels, keep)


def _scores(outcome: Judgement) -> Values:
    return (outcome.loss, *outcome.values())


def figures(metrics: Sequence[Metric], whole: Sequence[float], own: Mapping[int, Values], clients: int) -> Evaluated:
    """Return the entries of a record.

    Args:
        metrics: the metrics
        whole: loss and metrics on the whole test set
        own: the metrics of clients on their personal test sets, by client
        clients: the number of all clients
    """
    loss, *values = whole
    found: Evaluated = {}
    for number, (metric, value) in enumerate(zip(metrics, values, strict=True)):
        found[metric.name] = value
        found.setdefault("loss", loss)
        found |= personal_figures(metric, [each[number] for each in own.values()])
    by_metric = {metric.name: {c: each[n] for c, each in own.items()} for n, metric in enumerate(metrics)}
    if clients <= LISTED:
        return found | {"personal": {name: listed(mine, clients) for name, mine in by_metric.items()}}
    return found | {"personal_deciles": {name: deciles(list(mine.values())) for name, mine in by_metric.items()}}


def listed(own: Mapping[int, float], clients: int) -> list[float]:
    """Return the value of each client, to four digits; NaN for clients without one.

    >>> listed({0: 0.123456, 2: 1.0}, 3)
    [0.1235, nan, 1.0]
    """
    return [float(f"{own.get(client, math.nan):.4g}") for client in range(clients)]


def deciles(own: Sequence[float]) -> list[float]:
    """Return the smallest value, the deciles and the largest value, to four digits; NaN if there are none.

    >>> deciles([0.0, 0.5, 1.0])
    [0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0]
    """
    known = [value for value in own if not math.isnan(value)]
    found = np.quantile(known, np.linspace(0, 1, 11)).tolist() if known else [math.nan] * 11
    return [float(f"{value:.4g}") for value in found]


def personal_figures(metric: Metric, own: Sequence[float]) -> dict[str, float]:
    """Return the mean of a metric over clients, and over the worst tenth; clients without a value do not count."""
    known = [value for value in own if not math.isnan(value)]
    mean = sum(known) / len(known) if known else math.nan
    return {f"personal_{metric.name}": mean, f"worst_tenth_{metric.name}": worst_tenth(known, metric.better)}


def worst_tenth(own: Sequence[float], better: str = "higher") -> float:
    """Return the mean over the tenth of the clients with the worst values: the lowest if higher is better."""
    worst = sorted(own, reverse=better == "lower")[: math.ceil(len(own) / 10)]
    return sum(worst) / len(worst) if worst else math.nan


def validation_figures(metrics: Sequence[Metric], found: Evaluated) -> Evaluated:
    """Return the numbers of an evaluation on held-out samples, under the names that records have for them."""
    prefixes = ("", "personal_", "worst_tenth_")
    named = {f"{p}{VALIDATION}{m.name}": found[f"{p}{m.name}"] for m in metrics for p in prefixes}
    return {**named, VALIDATION_LOSS: found["loss"]}


def evaluation_exchange(method: BoundMethod) -> BoundExchange:
    """Return the exchange that sends models to Flower nodes for evaluation: complete and uncompressed."""
    exchange = Exchange(Full(), LossProbe(), Dense(), Models(method.training.server), Dense())
    return method.bind_exchange(exchange, len(method.exchanges) + 1, True)


@dataclass(frozen=True)
class Models(Server):
    """The models of another server, without its sections. Uploads change nothing."""

    server: Server

    def home(self, client: int) -> Assignment:
        """Return the assignment of the client's own model."""
        return self.server.home(client)

    def download(self, state: State, assignment: Assignment) -> Download:
        """Return only the models."""
        return Download(self.server.download(state, assignment).models)

    def begin(self, state: State, assigned: Mapping[int, Assignment]) -> None:
        """Return no accumulator."""

    def fold(self, acc: None, arrival: Arrival) -> None:
        """Ignore the update."""

    def finish(self, state: State, acc: None, clock: Clock) -> State:
        """Return the state unchanged."""
        return state
