"""Federated averaging with pfl-research's simulated backend, as all comparisons call it."""

# mypy: disable-error-code="import-not-found"
# (the simulator is absent when types are checked)

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
from pfl.model.pytorch import PyTorchModel
from torch import nn

NEVER = 10**9
"""Iterations between two evaluations. pfl divides by it, so it cannot be 0."""


class Work(Protocol):
    """Local training: the number of epochs, the learning rate and the batch size."""

    @property
    def epochs(self) -> int: ...

    @property
    def lr(self) -> float: ...

    @property
    def batch(self) -> int: ...


def train(
    net: nn.Module,
    data: Any,
    work: Work,
    cohort: Any,
    iterations: int,
    callbacks: Sequence[Any],
    postprocessors: Sequence[Any] = (),
    **more: Any,
) -> None:
    """Train on a federated data set.

    Args:
        net: the model
        data: the federated data set
        work: local training
        cohort: clients per round, a number or pfl's ``HyperParam``
        iterations: the number of rounds
        callbacks: pfl's callbacks
        postprocessors: what is done with each update and with their sum, such as a privacy mechanism
        more: further arguments of pfl's loop
    """
    FederatedAveraging().run(
        algorithm_params=NNAlgorithmParams(
            central_num_iterations=iterations,
            evaluation_frequency=NEVER,
            train_cohort_size=cohort,
            val_cohort_size=0,
        ),
        backend=SimulatedBackend(training_data=data, val_data=data, postprocessors=list(postprocessors)),
        model=PyTorchModel(
            net,
            local_optimizer_create=torch.optim.SGD,
            central_optimizer=torch.optim.SGD(net.parameters(), lr=1.0),
        ),
        model_train_params=NNTrainHyperParams(
            local_num_epochs=work.epochs, local_learning_rate=work.lr, local_batch_size=work.batch
        ),
        model_eval_params=NNEvalHyperParams(local_batch_size=1000),
        callbacks=list(callbacks),
        **more,
    )
