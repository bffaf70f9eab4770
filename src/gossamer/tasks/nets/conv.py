"""Convolutional networks of the papers: ``cnn2`` (PERM, from FedTorch), ``cnn4`` and ``cnn8`` (FedMRN), ``lenet5`` and
``vgg11`` (FedSpa); and ``cnn-gn`` for benchmarks.

FedMRN's networks have no biases: every parameter is a weight of a convolution or linear layer, which FedMRN masks, or
belongs to a batch norm, which it sends uncompressed. Initial weights are small, N(0, 0.01^2); batch norm compensates
for that. ``cnn-gn`` uses group norm: outputs do not depend on other samples of the batch, nor models on other clients'
statistics.
"""

from collections.abc import Callable, Sequence

import torch
from torch import nn

INIT_STD = 0.01
GROUPS = 8


def cnn2(shape: torch.Size, classes: int) -> nn.Module:
    """Two 5 x 5 convolutions without padding, each with ReLU and pooling, then 512 hidden units."""
    return _small(shape, classes, 512)


def lenet5(shape: torch.Size, classes: int) -> nn.Module:
    """The same network with 500 hidden units: FedSpa's for EMNIST, 439,096 parameters for 26 letters."""
    return _small(shape, classes, 500)


def _small(shape: torch.Size, classes: int, hidden: int) -> nn.Module:
    channels, height, width = shape
    features = 50 * _twice_shrunk(height) * _twice_shrunk(width)
    return nn.Sequential(
        nn.Conv2d(channels, 20, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(20, 50, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(features, hidden),
        nn.ReLU(),
        nn.Linear(hidden, classes),
    )


def _twice_shrunk(side: int) -> int:
    return ((side - 4) // 2 - 4) // 2


def cnn4(shape: torch.Size, classes: int) -> nn.Module:
    """Four convolutions of 32, 64, 128 and 256 channels, each with pooling: FedMRN's for Fashion-MNIST and SVHN."""
    return _staged(shape, classes, [[32], [64], [128], [256]], nn.BatchNorm2d, bias=False).apply(_start_small)


def cnn8(shape: torch.Size, classes: int) -> nn.Module:
    """Eight convolutions in four pairs of 32, 64, 128 and 256 channels: FedMRN's for CIFAR."""
    stages = [[32, 32], [64, 64], [128, 128], [256, 256]]
    return _staged(shape, classes, stages, nn.BatchNorm2d, bias=False).apply(_start_small)


def cnn_gn(shape: torch.Size, classes: int) -> nn.Module:
    """Four convolutions in two pairs of 32 and 64 channels, with biases and group norm: for benchmarks."""
    return _staged(shape, classes, [[32, 32], [64, 64]], _group_norm, bias=True)


def vgg11(shape: torch.Size, classes: int) -> nn.Module:
    """Eight convolutions in five stages of 64 to 512 channels, with biases and group norm: FedSpa's for CIFAR-10."""
    stages = [[64], [128], [256, 256], [512, 512], [512, 512]]
    return _staged(shape, classes, stages, norm32, bias=True).apply(start_he)


def norm32(channels: int) -> nn.Module:
    """Return a group norm with 32 groups."""
    return nn.GroupNorm(32, channels)


def start_he(module: nn.Module) -> None:
    """Initialize convolutions as He et al. (fan-out), linear layers as N(0, 0.01^2), and biases with 0."""
    if isinstance(module, nn.Conv2d):
        nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
    if isinstance(module, nn.Linear):
        nn.init.normal_(module.weight, std=INIT_STD)
    if isinstance(module, nn.Conv2d | nn.Linear) and module.bias is not None:
        nn.init.zeros_(module.bias)


def _group_norm(channels: int) -> nn.Module:
    return nn.GroupNorm(GROUPS, channels)


def _staged(
    shape: torch.Size, classes: int, stages: Sequence[Sequence[int]], norm: Callable[[int], nn.Module], bias: bool
) -> nn.Module:
    """Build stages of 3 x 3 convolution, norm and ReLU, with pooling after each stage, and one linear layer."""
    wide, height, width = shape
    layers: list[nn.Module] = []
    for stage in stages:
        for channels in stage:
            layers += [nn.Conv2d(wide, channels, 3, padding=1, bias=bias), norm(channels), nn.ReLU()]
            wide = channels
        layers.append(nn.MaxPool2d(2))
    shrink = 2 ** len(stages)
    features = wide * (height // shrink) * (width // shrink)
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(features, classes, bias=bias))


def _start_small(module: nn.Module) -> None:
    if isinstance(module, nn.Conv2d | nn.Linear):
        nn.init.normal_(module.weight, std=INIT_STD)
