"""Federated averaging as a plain PyTorch loop: a loop over clients, no messages, one running sum.

Option ``threads``: number of torch threads. Files are read by a ``DataLoader`` with two worker processes, which are
started once and get the batches of a whole round, so that they read ahead across clients.
"""

import copy
from collections.abc import Iterable, Iterator

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader
from workloads import Workload

from systems.line import Setting, serve
from systems.networks import accuracy, network, tensors

WORKERS = 2
Batch = tuple[Tensor, Tensor]


def train_client(model: nn.Module, batches: Iterable[Batch], work: Workload) -> dict[str, Tensor]:
    model = copy.deepcopy(model)
    optimiser = torch.optim.SGD(model.parameters(), lr=work.lr)
    for x, y in batches:
        optimiser.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimiser.step()
    return model.state_dict()


def indices(shard: Tensor, work: Workload) -> Iterator[Tensor]:
    """Yield the samples of each batch of a client."""
    for _ in range(work.epochs):
        yield from torch.split(shard[torch.randperm(len(shard))], work.batch)


class Plain:
    def __init__(self, setting: Setting) -> None:
        self.work = setting.workload
        train, test = setting.images()
        self.x, self.y = tensors(train)
        self.test = tensors(test)
        self.shards = torch.from_numpy(self.work.shards())
        self.model = network(self.work.net)
        self.rng = np.random.default_rng(1)

    def clients(self) -> Iterator[Iterable[Batch]]:
        """Yield the batches of each client of a round."""
        for client in self.rng.choice(self.work.clients, self.work.cohort, replace=False):
            shard = self.shards[client]
            x, y = self.x[shard], self.y[shard]
            yield ((x[rows], y[rows]) for rows in indices(torch.arange(len(x)), self.work))

    def round(self) -> None:
        total = {name: torch.zeros_like(tensor) for name, tensor in self.model.state_dict().items()}
        for batches in self.clients():
            for name, tensor in train_client(self.model, batches, self.work).items():
                total[name] += tensor
        self.model.load_state_dict({name: tensor / self.work.cohort for name, tensor in total.items()})

    def accuracy(self) -> float:
        return accuracy(self.model, *self.test)


class FromFiles(Plain):
    """The same with images from files."""

    def __init__(self, setting: Setting) -> None:
        from systems.pictures import TEST, Pictures

        self.work, self.planned = setting.workload, list[list[int]]()
        pictures = Pictures(self.work)
        x, y = zip(*map(pictures.__getitem__, range(TEST)), strict=True)
        self.test = torch.stack(x), torch.tensor(y)
        self.shards = torch.from_numpy(self.work.shards())
        self.model = network(self.work.net)
        self.rng = np.random.default_rng(1)
        self.loader = DataLoader(
            pictures, batch_sampler=self.planned, num_workers=WORKERS, prefetch_factor=4, persistent_workers=True
        )

    def clients(self) -> Iterator[Iterable[Batch]]:
        chosen = self.rng.choice(self.work.clients, self.work.cohort, replace=False)
        plans = [[rows.tolist() for rows in indices(self.shards[client], self.work)] for client in chosen]
        self.planned[:] = [rows for plan in plans for rows in plan]
        read = iter(self.loader)
        for plan in plans:
            yield (next(read) for _ in plan)


if __name__ == "__main__":
    setting = Setting.read()
    torch.set_num_threads(setting.options["threads"])
    plain = (FromFiles if setting.workload.files else Plain)(setting)
    serve(f"torch {torch.__version__}", plain.round, plain.accuracy)
