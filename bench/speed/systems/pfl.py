"""pfl-research: its simulated backend with federated averaging, in one process or in several under ``torchrun``.

Option ``threads``: number of torch threads per process. pfl does not reshuffle between epochs, so its users are
shuffled once per round, when they are created. Its loop is its own; the callback after a round waits for the next.
"""

# mypy: disable-error-code="import-not-found,untyped-decorator,misc"
# (the simulator is absent when types are checked)

import os
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
from torch import Tensor

from systems.line import Line, Setting
from systems.networks import accuracy, network, tensors

FIRST = int(os.environ.get("RANK", 0)) == 0
ALONE = int(os.environ.get("WORLD_SIZE", 1)) == 1


class Net(torch.nn.Module):
    """A model with loss and metrics as methods, as pfl requires."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.net = network(name)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.net(x)
        return out

    def loss(self, x: Tensor, y: Tensor, eval: bool = False) -> Tensor:
        self.train(not eval)
        return F.cross_entropy(self.net(x), y.long())

    def metrics(self, x: Tensor, y: Tensor, eval: bool = True) -> dict[str, Any]:
        return {"loss": Weighted(float(self.loss(x, y, True)) * len(y), len(y))}


class OnRequest(TrainingProcessCallback):
    """Hold pfl's loop, in all processes, until the benchmark requests a round."""

    def __init__(self, net: Net, test: tuple[Tensor, Tensor]) -> None:
        self.net, self.test = net, test
        self.line = Line()

    def on_train_begin(self, *, model: Any) -> Any:
        if FIRST:
            self.line.ready(f"pfl 0.6.0, torch {torch.__version__}")
        self.wait()
        return Metrics()

    def after_central_iteration(
        self, aggregate_metrics: Any, model: Any, *, central_iteration: int
    ) -> tuple[bool, Any]:
        if FIRST:
            self.line.done()
        self.wait()
        return False, Metrics()

    def wait(self) -> None:
        if FIRST and not self.line.go(lambda: accuracy(self.net, *self.test)):
            os._exit(0)
        if not ALONE:
            torch.distributed.barrier()


def main() -> None:
    setting = Setting.read()
    work = setting.workload
    torch.set_num_threads(setting.options["threads"])
    train, test = setting.images()
    x, y = tensors(train)
    shards = work.shards()

    def user(number: int) -> Any:
        index = torch.from_numpy(np.random.permutation(shards[number]))
        return Dataset((x[index], y[index]), user_id=number)

    np.random.seed(0)
    net = Net(work.net)
    data = FederatedDataset(user, get_user_sampler("minimize_reuse", list(range(work.clients))))
    FederatedAveraging().run(
        algorithm_params=NNAlgorithmParams(
            central_num_iterations=setting.rounds + 1,
            evaluation_frequency=10**9,  # pfl divides by it, so it cannot be 0
            train_cohort_size=work.cohort,
            val_cohort_size=0,
        ),
        backend=SimulatedBackend(training_data=data, val_data=data),
        model=PyTorchModel(
            net,
            local_optimizer_create=torch.optim.SGD,
            central_optimizer=torch.optim.SGD(net.parameters(), lr=1.0),
        ),
        model_train_params=NNTrainHyperParams(
            local_num_epochs=work.epochs, local_learning_rate=work.lr, local_batch_size=work.batch
        ),
        model_eval_params=NNEvalHyperParams(local_batch_size=1000),
        callbacks=[OnRequest(net, tensors(test))],
    )


if __name__ == "__main__":
    main()
