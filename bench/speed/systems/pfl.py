"""pfl-research: its simulated backend with federated averaging, in one process or in several under ``torchrun``.

Option ``threads``: number of torch threads per process. pfl does not reshuffle between epochs, so its users are
shuffled once per round, when they are created. Its loop is its own; the callback after a round waits for the next.
"""

# mypy: disable-error-code="import-not-found,untyped-decorator,misc"
# (the simulator is absent when types are checked)

import os
import sys
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[2]))

import numpy as np
import torch
import torch.nn.functional as F
from common.pfl_training import train
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.metrics import Metrics, Weighted
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
    samples, test = setting.images()
    x, y = tensors(samples)
    shards = work.shards()

    def user(number: int) -> Any:
        index = torch.from_numpy(np.random.permutation(shards[number]))
        return Dataset((x[index], y[index]), user_id=number)

    np.random.seed(0)
    net = Net(work.net)
    data = FederatedDataset(user, get_user_sampler("minimize_reuse", list(range(work.clients))))
    train(net, data, work, work.cohort, setting.rounds + 1, [OnRequest(net, tensors(test))])


if __name__ == "__main__":
    main()
