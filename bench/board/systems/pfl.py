"""pfl-research: its simulated backend with federated averaging, in one process, with all samples on the device.

pfl does not reshuffle between epochs, so its users are shuffled once per round, when they are created. Its loop is its
own; the callback after a round waits for the next request. Its first iteration also evaluates, and is never timed.
"""

# mypy: disable-error-code="import-not-found,untyped-decorator,misc"
# (the simulator is absent when types are checked)

import os
from collections.abc import Iterator
from itertools import count
from typing import Any

import torch
from common.pfl_training import train
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.metrics import Metrics, Weighted
from torch import Tensor, nn

from board.networks import loss, seeded
from board.systems.line import Line, Setting, serve
from board.workloads import Workload, cohort

ENDLESS = 10**9


class Net(nn.Module):
    """A model with loss and metrics as methods, as pfl requires."""

    def __init__(self, work: Workload) -> None:
        super().__init__()
        self.net = seeded(work)

    def loss(self, x: Tensor, y: Tensor, eval: bool = False) -> Tensor:
        self.train(not eval)
        return loss(self.net(x), y)

    @torch.no_grad()
    def metrics(self, x: Tensor, y: Tensor, eval: bool = True) -> dict[str, Any]:
        return {"loss": Weighted(float(self.loss(x, y, True)) * len(y), len(y))}


class OnRequest(TrainingProcessCallback):
    """Hold pfl's loop until the benchmark requests a round."""

    def __init__(self, line: Line) -> None:
        self.line = line

    def on_train_begin(self, *, model: Any) -> Any:
        self.line.ready()
        if not self.line.go():
            raise EOFError("no round was requested")
        return Metrics()

    def after_central_iteration(
        self, aggregate_metrics: Any, model: Any, *, central_iteration: int
    ) -> tuple[bool, Any]:
        self.line.done()
        return not self.line.go(), Metrics()


def users(work: Workload) -> Iterator[int]:
    """Yield the clients of all rounds, one after the other."""
    for number in count():
        yield from cohort(work.clients, work.count, number)


def run(setting: Setting, line: Line) -> None:
    os.environ["PFL_PYTORCH_DEVICE"] = setting.device
    work, held = setting.work, setting.samples()
    line.building()
    held = held.to(setting.device)

    def user(number: int) -> Any:
        rows = held.client(number)
        order = torch.randperm(rows.stop - rows.start, device=held.x.device) + rows.start
        return Dataset((held.x[order], held.y[order]), user_id=str(number))

    net, order = Net(work), users(work)
    data = FederatedDataset(user, lambda: next(order))
    # pfl would print metrics after every round.
    train(net, data, work, work.count, ENDLESS, [OnRequest(line)], send_metrics_to_platform=False)


if __name__ == "__main__":
    serve("pfl 0.6.0, ", run)
