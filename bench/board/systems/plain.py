"""Federated averaging as a plain PyTorch loop: all samples on the device, no ``DataLoader``, no copies of the model.

Clients train one after the other in one working network, and their tensors are added to one running sum.
"""

import torch
from torch import Tensor

from board.networks import loss, seeded
from board.systems.line import Line, Setting, serve
from board.workloads import cohort


class Plain:
    def __init__(self, setting: Setting, line: Line) -> None:
        self.work = setting.work
        self.held = setting.samples()
        line.building()
        self.held = self.held.to(setting.device)
        self.network = seeded(self.work).to(setting.device).train()
        self.tensors = [t for t in self.network.state_dict().values() if t.is_floating_point()]
        self.model = [tensor.clone() for tensor in self.tensors]
        self.number = 0

    def round(self) -> None:
        clients = cohort(self.work.clients, self.work.count, self.number)
        everything = sum(self.held.client(c).stop - self.held.client(c).start for c in clients)
        total = [torch.zeros_like(tensor) for tensor in self.model]
        for client in clients:
            rows = self.held.client(client)
            self.train(self.held.x[rows], self.held.y[rows])
            with torch.no_grad():
                torch._foreach_add_(total, self.tensors, alpha=(rows.stop - rows.start) / everything)
        self.model = total
        self.number += 1

    def train(self, x: Tensor, y: Tensor) -> None:
        """Train a client from the model of the round."""
        with torch.no_grad():
            torch._foreach_copy_(self.tensors, self.model)
        optimizer = torch.optim.SGD(self.network.parameters(), lr=self.work.lr)
        for _ in range(self.work.epochs):
            for rows in torch.split(torch.randperm(len(x), device=x.device), self.work.batch):
                optimizer.zero_grad()
                loss(self.network(x[rows]), y[rows]).backward()
                optimizer.step()


def run(setting: Setting, line: Line) -> None:
    plain = Plain(setting, line)
    line.ready()
    while line.go():
        plain.round()
        line.done()


if __name__ == "__main__":
    serve("", run)
