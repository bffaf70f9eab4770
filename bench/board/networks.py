"""The published networks, in PyTorch alone. The names of files are in ``workloads.py``."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from board.samples import CHARACTERS, CLASSES
from board.workloads import Workload

CHANNELS_PER_GROUP = 32


def network(work: Workload) -> nn.Module:
    """Return the network of a workload; a small workload has a narrow one."""
    return NETS[work.net](CLASSES[work.data], 8 if work.small else 1)


def _conv_dropout(colours: int, side: int, classes: int, narrow: int) -> nn.Module:
    """Return two convolutions of 3 x 3, one pooling, a hidden layer of 128, and dropout before both linear layers."""
    first, second, hidden = 32 // narrow, 64 // narrow, 128 // narrow
    convolutions = [nn.Conv2d(colours, first, 3), nn.ReLU(), nn.Conv2d(first, second, 3), nn.ReLU(), nn.MaxPool2d(2)]
    dense = [nn.Linear(second * ((side - 4) // 2) ** 2, hidden), nn.ReLU(), nn.Dropout(0.5), nn.Linear(hidden, classes)]
    return nn.Sequential(*convolutions, nn.Dropout(0.25), nn.Flatten(), *dense)


def cnn_blazefl(classes: int, narrow: int) -> nn.Module:
    """Return the network of PyTorch's CIFAR-10 tutorial; it is small, so it is never narrower."""
    convolutions = [nn.Conv2d(3, 6, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2)]
    dense = [nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, classes)]
    return nn.Sequential(*convolutions, nn.Flatten(), *dense)


def group_norm(channels: int) -> nn.Module:
    return nn.GroupNorm(max(1, channels // CHANNELS_PER_GROUP), channels)


Norm = Callable[[int], nn.Module]


class Block(nn.Module):
    """A basic block of ResNet18."""

    def __init__(self, wide: int, channels: int, stride: int, norm: Norm) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(wide, channels, 3, stride, padding=1, bias=False)
        self.norm1 = norm(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm2 = norm(channels)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or wide != channels:
            self.shortcut = nn.Sequential(nn.Conv2d(wide, channels, 1, stride, bias=False), norm(channels))

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.norm1(self.conv1(x)))
        return F.relu(self.norm2(self.conv2(out)) + self.shortcut(x))


def resnet18(norm: Norm, classes: int, narrow: int) -> nn.Module:
    """Return ResNet18 as for ImageNet: a first convolution of 7 x 7 with stride 2, and max-pooling."""
    wide = 64 // narrow
    layers = [nn.Conv2d(3, wide, 7, 2, padding=3, bias=False), norm(wide), nn.ReLU(), nn.MaxPool2d(3, 2, padding=1)]
    before = wide
    for number in range(4):
        channels = wide * 2**number
        layers += [Block(before, channels, 1 if number == 0 else 2, norm), Block(channels, channels, 1, norm)]
        before = channels
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, classes))


class Lstm(nn.Module):
    """Scores of the next character at each position, [batch, time, characters]."""

    def __init__(self, classes: int, narrow: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(CHARACTERS, 8, padding_idx=0)
        self.lstm = nn.LSTM(8, 256 // narrow, num_layers=2, batch_first=True)
        self.output = nn.Linear(256 // narrow, classes)

    def forward(self, x: Tensor) -> Tensor:
        states, _ = self.lstm(self.embedding(x))
        scores: Tensor = self.output(states)
        return scores


NETS: dict[str, Callable[[int, int], nn.Module]] = {
    "cnn-femnist": lambda classes, narrow: _conv_dropout(1, 28, classes, narrow),
    "cnn-pfl": lambda classes, narrow: _conv_dropout(3, 32, classes, narrow),
    "cnn-blazefl": cnn_blazefl,
    "resnet18-gn": lambda classes, narrow: zero_last_norms(resnet18(group_norm, classes, narrow)),
    "resnet18": lambda classes, narrow: resnet18(nn.BatchNorm2d, classes, narrow),
    "lstm2": Lstm,
}


def loss(scores: Tensor, targets: Tensor) -> Tensor:
    """Return the mean cross-entropy over samples, or over all characters."""
    return F.cross_entropy(scores.flatten(0, -2), targets.flatten())


def parameters(module: nn.Module) -> int:
    return sum(tensor.numel() for tensor in module.parameters())


def zero_last_norms(module: nn.Module) -> nn.Module:
    """Start every residual block as the identity, as FedML's ResNet18 with group norm does."""
    for block in module.modules():
        if isinstance(block, Block):
            nn.init.zeros_(block.norm2.weight)  # type: ignore[arg-type]
    return module


def seeded(work: Workload) -> nn.Module:
    """Return the network with fixed initial weights."""
    torch.manual_seed(0)
    return network(work)
