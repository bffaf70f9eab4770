"""Federated averaging as a plain PyTorch loop: a loop over clients, no messages, one running sum.

Option ``threads``: number of torch threads.
"""

import copy

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from workloads import Workload

from systems.line import Setting, serve
from systems.networks import accuracy, network, tensors


def train_client(model: nn.Module, x: Tensor, y: Tensor, work: Workload) -> dict[str, Tensor]:
    model = copy.deepcopy(model)
    optimiser = torch.optim.SGD(model.parameters(), lr=work.lr)
    for _ in range(work.epochs):
        for batch in torch.split(torch.randperm(len(x)), work.batch):
            optimiser.zero_grad()
            F.cross_entropy(model(x[batch]), y[batch]).backward()
            optimiser.step()
    return model.state_dict()


class Plain:
    def __init__(self, setting: Setting) -> None:
        self.work = setting.workload
        train, test = setting.images()
        self.x, self.y = tensors(train)
        self.test = tensors(test)
        self.shards = torch.from_numpy(self.work.shards())
        self.model = network(self.work.net)
        self.rng = np.random.default_rng(1)

    def round(self) -> None:
        total = {name: torch.zeros_like(tensor) for name, tensor in self.model.state_dict().items()}
        for client in self.rng.choice(self.work.clients, self.work.cohort, replace=False):
            shard = self.shards[client]
            for name, tensor in train_client(self.model, self.x[shard], self.y[shard], self.work).items():
                total[name] += tensor
        self.model.load_state_dict({name: tensor / self.work.cohort for name, tensor in total.items()})

    def accuracy(self) -> float:
        return accuracy(self.model, *self.test)


if __name__ == "__main__":
    setting = Setting.read()
    torch.set_num_threads(setting.options["threads"])
    plain = Plain(setting)
    serve(f"torch {torch.__version__}", plain.round, plain.accuracy)
