"""Evaluation: the global model on the whole test set, and each client's deployed model on its personal test set."""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from gossamer.core.binding import BoundMethod
from gossamer.core.bound import BoundExchange
from gossamer.core.errors import ConfigError
from gossamer.core.exchange import Assignment, Download
from gossamer.core.method import Exchange
from gossamer.core.server import BoundServer, ModelPerClient
from gossamer.core.types import Params, State
from gossamer.parts.codecs.dense import Dense
from gossamer.parts.servers.listen import Listen
from gossamer.parts.solvers.loss_probe import LossProbe
from gossamer.parts.views.full import Full
from gossamer.tasks.data.lazy import LazySamples
from gossamer.tasks.objective import Objective
from gossamer.tasks.static_norms import OfOwnBatch, OfTraining

Labels = Callable[[int], Tensor | None]
"""Map a client to a vector with 1 for each label whose score counts; none means all labels."""


class Evaluation(NamedTuple):
    """The evaluation of one model on a set of samples.

    Args:
        loss: mean loss
        right: for each sample, whether the prediction is correct
        answers: the network's outputs; kept only if clients count some scores as 0
    """

    loss: float
    right: np.ndarray
    answers: Tensor | None = None


class Evaluator:
    """Evaluates models on the test set, which is copied to the device once.

    With ``labels``, a client's personal metrics count the scores of other labels as 0, as its training does. The global
    metrics count all scores.
    """

    def __init__(self, objective: Objective, labels: Labels | None = None) -> None:
        self.objective, self.split, self.labels = objective, objective.task.split, labels
        self.test = objective.task.data.test.to(objective.device)
        by = objective.task.statistics
        self.alone = objective.static and isinstance(by, OfOwnBatch)
        if objective.static and isinstance(by, OfTraining) and not len(objective.samples):
            raise ConfigError("statistics=train: the evaluating machine has no training samples: use batch")

        if objective.static and isinstance(self.test, LazySamples) and self.test.fitting < by.size:
            raise ConfigError(f"statistics=batch: a test batch of {by.size} samples does not fit memory: raise memory")

    def __call__(self, model: Params, shared: bool, personal: Callable[[int], Params]) -> dict[str, float]:
        """Return accuracy and loss on the whole test set, and the mean and worst-tenth personal accuracy.

        Without a global model (not ``shared``), accuracy and loss are means over the clients' deployed models. A client
        without personal test samples counts in no personal metric.
        """
        last, outcome = model, self._outcome(model)
        whole = [_mean(outcome)] if shared else []
        own: list[float] = []
        for client in range(self.split.clients):
            params, tested = personal(client), self.split.test(client)
            if params is not last and not shared:
                last, outcome = params, self._outcome(params)
            if len(tested):
                seen = params is last and not self.alone
                own.append(self._of(outcome, client) if seen else self.on_client(params, client)[1])
            whole += [] if shared else [_mean(outcome)]
        loss, accuracy = np.mean(whole, axis=0)
        return {
            "accuracy": float(accuracy),
            "loss": float(loss),
            **personal_figures(own),
        }

    def by_client(self, personal: Callable[[int], Params]) -> dict[str, float]:
        """Return the same metrics without a global model: accuracy and loss are weighted by test samples."""
        tested = [client for client in range(self.split.clients) if len(self.split.test(client))]
        sizes = [len(self.split.test(client)) for client in tested]
        found = [self.on_client(personal(client), client) for client in tested]
        own = [accuracy for _, accuracy in found]
        loss, accuracy = np.average(found, axis=0, weights=sizes) if found else (math.nan, math.nan)
        return {"accuracy": float(accuracy), "loss": float(loss), **personal_figures(own)}

    def whole(self, params: Params) -> tuple[float, float]:
        """Return loss and accuracy on the whole test set."""
        return _mean(self._outcome(params))

    def on_client(self, params: Params, client: int) -> tuple[float, float]:
        """Return loss and accuracy on a client's personal test set; NaN if it is empty."""
        tested = self.split.test(client)
        return _mean(self._outcome(params, tested, self._labels(client))) if len(tested) else (math.nan, math.nan)

    def _of(self, outcome: Evaluation, client: int) -> float:
        """Return a client's personal accuracy from an evaluation on the whole test set."""
        tested, labels = self.split.test(client), self._labels(client)
        if outcome.answers is None or labels is None:
            return float(outcome.right[tested].mean())
        rows = torch.from_numpy(tested).to(self.test.y.device)
        _, right = self.objective.judged([outcome.answers[rows]], self.test.y[rows], labels)
        return float(right.double().mean())

    def _labels(self, client: int) -> Tensor | None:
        return self.labels(client) if self.labels else None

    def _outcome(self, params: Params, index: np.ndarray | None = None, labels: Tensor | None = None) -> Evaluation:
        picked = None if index is None else torch.from_numpy(index).to(self.test.y.device)
        outputs: Iterable[Tensor] = self.objective.outputs(params, self.test, picked)
        if keep := self.labels is not None and index is None:
            outputs = list(outputs)
        y = self.test.y if picked is None else self.test.y[picked]
        loss, right = self.objective.judged(outputs, y, labels)
        return Evaluation(loss, right.to("cpu", torch.float64).numpy(), torch.cat(list(outputs)) if keep else None)


def personal_figures(own: Sequence[float]) -> dict[str, float]:
    """Return the mean personal accuracy and the worst-tenth accuracy."""
    mean = sum(own) / len(own) if own else math.nan
    return {"personal_accuracy": mean, "worst_tenth_accuracy": worst_tenth(own)}


def worst_tenth(own: Sequence[float]) -> float:
    """Return the mean accuracy of the tenth of the clients with the lowest accuracy."""
    worst = sorted(own)[: math.ceil(len(own) / 10)]
    return sum(worst) / len(worst) if worst else math.nan


def _mean(outcome: Evaluation) -> tuple[float, float]:
    return outcome.loss, float(outcome.right.mean())


def evaluation_exchange(method: BoundMethod) -> BoundExchange:
    """Return the exchange that sends models to Flower nodes for evaluation: complete and uncompressed."""
    make = OwnModels if method.training.per_client else Models
    exchange = Exchange(Full(), LossProbe(), Dense(), make(method.training.server), Dense())
    return method.bind_exchange(exchange, len(method.exchanges) + 1, True)


class Models(Listen):
    """The models of another server, without its sections."""

    def __init__(self, server: BoundServer) -> None:
        self.server = server

    def download(self, state: State, assignment: Assignment) -> Download:
        """Return only the models."""
        return Download(self.server.download(state, assignment).models)


class OwnModels(Models, ModelPerClient):
    """The models of a server with one model per client."""

    def home(self, client: int) -> Assignment:
        """Delegate to the wrapped server."""
        assert isinstance(self.server, ModelPerClient)
        return self.server.home(client)
