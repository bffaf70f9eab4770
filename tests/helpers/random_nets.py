"""Small networks with random layers of all kinds, for samples of six numbers and three classes."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Recurrent(nn.Module):
    """Two recurrent layers with dropout between them, on three steps of two numbers."""

    def __init__(self, kind: type[nn.LSTM | nn.GRU], both: bool = False) -> None:
        super().__init__()
        self.layers = kind(2, 4, num_layers=2, dropout=0.5, batch_first=True, bidirectional=both)
        self.output = nn.Linear(8 if both else 4, 3)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.output(self.layers(x.view(-1, 3, 2))[0][:, -1])
        return scores


class Transformer(nn.Module):
    """An encoder layer with dropout, in its attention too."""

    def __init__(self) -> None:
        super().__init__()
        self.input, self.output = nn.Linear(2, 8), nn.Linear(8, 3)
        self.encoder = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.output(self.encoder(self.input(x.view(-1, 3, 2))).mean(1))
        return scores


class Conv(nn.Sequential):
    """A convolution with dropped channels, on images of 2 by 3 pixels."""

    def __init__(self) -> None:
        first = (nn.Conv2d(1, 6, (2, 3), padding=1), nn.ReLU(), nn.Dropout2d(0.4))
        super().__init__(*first, nn.Flatten(), nn.Linear(54, 3))

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = super().forward(x.view(-1, 1, 2, 3))  # type: ignore[no-untyped-call]
        return scores


class Own(nn.Module):
    """A network that draws by itself, in many ways."""

    def __init__(self) -> None:
        super().__init__()
        self.input, self.output = nn.Linear(6, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.input(x)
        if self.training:
            survives = torch.empty(hidden.shape[0], 1, dtype=hidden.dtype, device=x.device).bernoulli_(0.8)
            hidden = hidden * survives + 0.1 * torch.randn_like(hidden) + torch.rand(8, dtype=x.dtype, device=x.device)
            hidden = F.rrelu(hidden[:, torch.randperm(8, device=x.device)], training=True)
            hidden = hidden + torch.bernoulli(torch.full_like(hidden, 0.3)) + torch.normal(hidden.detach(), 0.1)
            hidden = hidden + torch.randint(0, 3, (8,), device=x.device)
        scores: Tensor = self.output(hidden.tanh())
        return scores


def dense() -> nn.Module:
    """Two dropouts, one of them in place."""
    first = (nn.Linear(6, 10), nn.ReLU(), nn.Dropout(0.5))
    return nn.Sequential(*first, nn.Linear(10, 10), nn.Dropout(0.3, inplace=True), nn.Linear(10, 3))


def alpha() -> nn.Module:
    """SELU with its dropout."""
    return nn.Sequential(nn.Linear(6, 10), nn.SELU(), nn.AlphaDropout(0.3), nn.Linear(10, 3))


RANDOM_NETS: dict[str, Callable[[], nn.Module]] = {
    "dense": dense,
    "conv": Conv,
    "alpha": alpha,
    "lstm": lambda: Recurrent(nn.LSTM),
    "gru": lambda: Recurrent(nn.GRU, both=True),
    "transformer": Transformer,
    "own": Own,
}
