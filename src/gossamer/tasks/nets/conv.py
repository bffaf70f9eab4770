"""Convolutional networks of the papers: ``cnn2`` (PERM, from FedTorch), ``cnn4`` and ``cnn8`` (FedMRN), ``lenet5`` and
``vgg11`` (FedSpa); and ``cnn-gn``.

FedMRN's networks have no biases: every parameter is a convolution's or linear layer's weight, which is masked, or
belongs to a batch norm, which is sent as it is. Their weights start very small, N(0, 0.01^2), which batch norm makes up
for. ``cnn-gn`` has group norm, so that a sample's output does not depend on the batch it came in, nor a client's model
on statistics that other clients gathered.
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
    """The same with 500 hidden units: FedSpa on EMNIST, 439,096 parameters for 26 letters."""
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
    """Four convolutions of 32, 64, 128 and 256 channels with a pooling after each: FedMRN on Fashion-MNIST and SVHN."""
    return _staged(shape, classes, [[32], [64], [128], [256]], nn.BatchNorm2d, bias=False).apply(_start_small)


def cnn8(shape: torch.Size, classes: int) -> nn.Module:
    """Eight convolutions in four pairs of 32, 64, 128 and 256 channels: FedMRN on CIFAR."""
    stages = [[32, 32], [64, 64], [128, 128], [256, 256]]
    return _staged(shape, classes, stages, nn.BatchNorm2d, bias=False).apply(_start_small)


def cnn_gn(shape: torch.Size, classes: int) -> nn.Module:
    """Four convolutions in two pairs of 32 and 64 channels, with biases and group norm: the benchmarks' network."""
    return _staged(shape, classes, [[32, 32], [64, 64]], _group_norm, bias=True)


def vgg11(shape: torch.Size, classes: int) -> nn.Module:
    """Eight convolutions in five stages of 64 to 512 channels, with biases and group norm: FedSpa on CIFAR-10."""
    stages = [[64], [128], [256, 256], [512, 512], [512, 512]]
    return _staged(shape, classes, stages, norm32, bias=True).apply(start_he)


def norm32(channels: int) -> nn.Module:
    """A group norm with 32 groups."""
    return nn.GroupNorm(32, channels)


def start_he(module: nn.Module) -> None:
    """Convolutions as He et al. start them, by what goes out; linear layers as N(0, 0.01^2); biases at 0."""
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
    """Stages of 3 x 3 convolution, norm and ReLU, a pooling after each stage, and one linear layer."""
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
