"""How good the models are: the global one on the test set, and what each client would deploy on its personal one."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from gossamer.errors import ConfigError
from gossamer.objective import Objective
from gossamer.statistics import OfOwnBatch, OfTraining
from gossamer.types import Params

Outcome = tuple[float, np.ndarray]
"""Mean loss on the test set, and for each of its samples whether the answer was right."""


class Evaluator:
    """Evaluates on test data that lies on the device once."""

    def __init__(self, objective: Objective) -> None:
        self.objective, self.split = objective, objective.task.split
        test = objective.task.data.test
        self.x, self.y = test.x.to(objective.device), test.y.to(objective.device)
        by = objective.task.statistics
        self.alone = objective.static and isinstance(by, OfOwnBatch)
        if objective.static and isinstance(by, OfTraining) and not len(objective.x):
            raise ConfigError("statistics=train: there are no training samples where the model is evaluated: use batch")

    def __call__(self, model: Params, shared: bool, personal: Callable[[int], Params]) -> dict[str, float]:
        """Accuracy and loss on the whole test set, and personal accuracies: their mean and that of the worst tenth.

        Where no global model is learned (not ``shared``), the first two are means over what the clients deploy. A
        client without a personal test set (no test sample has its labels, say) counts in no personal figure.
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
                own.append(float(outcome[1][tested].mean()) if seen else self.share(params, tested))
            whole += [] if shared else [_mean(outcome)]
        loss, accuracy = np.mean(whole, axis=0)
        return {
            "accuracy": float(accuracy),
            "loss": float(loss),
            "personal_accuracy": sum(own) / len(own) if own else math.nan,
            "worst_tenth_accuracy": worst_tenth(own),
        }

    def whole(self, params: Params) -> tuple[float, float]:
        """Loss and accuracy on all test samples."""
        return _mean(self._outcome(params))

    def share(self, params: Params, index: np.ndarray) -> float:
        """Accuracy on some of them; no number, where there are none."""
        return float(self._outcome(params, index)[1].mean()) if len(index) else math.nan

    def _outcome(self, params: Params, index: np.ndarray | None = None) -> Outcome:
        picked: Any = slice(None) if index is None else torch.from_numpy(index).to(self.x.device)
        loss, right = self.objective.evaluate(params, self.x[picked], self.y[picked])
        return loss, right.to("cpu", torch.float64).numpy()


def worst_tenth(own: Sequence[float]) -> float:
    """The mean over the tenth of the clients that are worst off."""
    worst = sorted(own)[: math.ceil(len(own) / 10)]
    return sum(worst) / len(worst) if worst else math.nan


def _mean(outcome: Outcome) -> tuple[float, float]:
    return outcome[0], float(outcome[1].mean())
