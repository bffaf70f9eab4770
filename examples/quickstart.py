"""Your own network and your own arrays, trained by federated averaging over 20 clients."""

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

from gossamer import Task, fedavg, simulate


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.out = nn.Linear(64, 32), nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.out(self.hidden(x).relu())
        return logits


images, labels = load_digits(return_X_y=True)
x, y = torch.tensor(images / 16, dtype=torch.float32), torch.tensor(labels)
task = Task.of(Net, (x[:1400], y[:1400]), (x[1400:], y[1400:]), clients=20, split="dirichlet:0.5")
result = simulate(fedavg(lr=0.3, epochs=5), task, rounds=15, per_round=10)
print(f"accuracy {result.accuracy:.1%}, {result.summary()['bytes_up']:,} bytes uploaded")
