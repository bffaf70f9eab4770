"""The client and server apps for Flower.

They are in an importable module: a ClientApp defined in the running script is pickled by value and unpickled for every
message, so that every client would read the data again.
"""

# mypy: disable-error-code="import-not-found,untyped-decorator,misc"
# (the simulator is absent when types are checked)

import os
import sys
from functools import cache
from typing import Any

import flwr
import torch
import torch.nn.functional as F
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from torch import Tensor, nn

from systems.line import Line, Setting
from systems.networks import accuracy, network, tensors

sys.argv[1:] = [os.environ["BENCH_SETTING"]]
SETTING = Setting.read()
WORK = SETTING.workload

client_app, server_app = ClientApp(), ServerApp()


@cache
def held() -> tuple[Tensor, Tensor, Tensor]:
    """Return images, labels and shards; read once per actor."""
    torch.set_num_threads(1)
    train, _ = SETTING.images()
    return (*tensors(train), torch.from_numpy(WORK.shards()))


@client_app.train()
def train(message: Message, context: Context) -> Message:
    x, y, shards = held()
    shard = shards[int(context.node_config["partition-id"])]
    model = network(WORK.net)
    model.load_state_dict(message.content.array_records["arrays"].to_torch_state_dict())
    train_client(model, x[shard], y[shard])
    count = MetricRecord({"num-examples": len(shard)})
    return Message(RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": count}), reply_to=message)


def train_client(model: nn.Module, x: Tensor, y: Tensor) -> None:
    optimiser = torch.optim.SGD(model.parameters(), lr=WORK.lr)
    for _ in range(WORK.epochs):
        for batch in torch.split(torch.randperm(len(x)), WORK.batch):
            optimiser.zero_grad()
            F.cross_entropy(model(x[batch]), y[batch]).backward()
            optimiser.step()


class OnRequest(FedAvg):
    """Federated averaging that waits for a request of the benchmark before each round."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.model = network(WORK.net)
        self.line = Line()
        self.line.ready(f"flwr {flwr.__version__}, torch {torch.__version__}")

    def configure_train(self, *args: Any, **options: Any) -> Any:
        if not self.line.go(self.accuracy):
            os._exit(0)
        return super().configure_train(*args, **options)

    def aggregate_train(self, server_round: int, replies: Any) -> Any:
        out: Any = super().aggregate_train(server_round, replies)
        self.line.done()
        self.model.load_state_dict(out[0].to_torch_state_dict())
        return out

    def accuracy(self) -> float:
        return accuracy(self.model, *tensors(SETTING.images()[1]))


@server_app.main()
def main(grid: Grid, context: Context) -> None:
    strategy = OnRequest(
        fraction_train=WORK.cohort / WORK.clients,
        fraction_evaluate=0.0,
        min_train_nodes=WORK.cohort,
        min_evaluate_nodes=0,
        min_available_nodes=WORK.clients,
    )
    arrays = ArrayRecord(network(WORK.net).state_dict())
    strategy.start(grid=grid, initial_arrays=arrays, num_rounds=SETTING.rounds + 1)
