"""Networks for images, and for inputs of any shape.

``logistic`` and ``mlp`` have linear layers alone, for inputs of any shape.

The convolutional networks of the papers are ``cnn2`` (PERM, from FedTorch), ``cnn4`` and ``cnn8`` (FedMRN), ``lenet5``
and ``vgg11`` (FedSpa); ``cnn-gn`` is for benchmarks. FedMRN's networks have no biases: every parameter is a weight of a
convolution or linear layer, which FedMRN masks, or belongs to a batch norm, which it sends uncompressed. Initial
weights are small, N(0, 0.01^2); batch norm compensates for that. ``cnn-gn`` uses group norm: outputs do not depend on
other samples of the batch, nor models on other clients' statistics.

``mixer`` is a small MLP-Mixer (https://arxiv.org/abs/2105.01601): linear layers across patches and across channels. Its
dimensions are tied differently from those of a convolutional network: one residual stream of channels passes through
all blocks, layer norms normalize over it, and half of the linear layers work across patches.

``resnet18`` is a pre-activation residual network, as HeteroFL and FedRolex use it for sub-model training. Its batch
norms are static: they keep no running statistics, because clients of different widths could not share them. In training
they normalize by the batch. For evaluation see ``gossamer.tasks.batch_norms``. In training a scaler before each norm
compensates for channels that a client does not hold. With batch statistics it only changes the effect of the norm's
epsilon.

``resnet18-gn`` is a post-activation residual network with group norm, as FedSpa uses it for CIFAR-100.
"""

import math
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

HIDDEN = 200


def logistic(shape: torch.Size, classes: int) -> nn.Module:
    """Logistic regression, with a bias."""
    return nn.Sequential(nn.Flatten(), nn.Linear(shape.numel(), classes))


def mlp(shape: torch.Size, classes: int, hidden: int = HIDDEN) -> nn.Module:
    """Two hidden layers of 200 units with ReLU: PERM's network for MNIST and EMNIST, 199,210 parameters."""
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(shape.numel(), hidden),
        nn.ReLU(),
        nn.Linear(hidden, hidden),
        nn.ReLU(),
        nn.Linear(hidden, classes),
    )


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
    high, wide = (((side - 4) // 2 - 4) // 2 for side in (height, width))
    return nn.Sequential(
        nn.Conv2d(channels, 20, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(20, 50, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(50 * high * wide, hidden),
        nn.ReLU(),
        nn.Linear(hidden, classes),
    )


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


PATCH = 4
CHANNELS, ACROSS, INSIDE = 64, 32, 128
BLOCKS = 4


class MixerBlock(nn.Module):
    """Two linear layers across patches, then two across channels; each pair has a norm and a residual connection."""

    def __init__(self, patches: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(CHANNELS), nn.LayerNorm(CHANNELS)
        self.across1, self.across2 = nn.Linear(patches, ACROSS), nn.Linear(ACROSS, patches)
        self.inside1, self.inside2 = nn.Linear(CHANNELS, INSIDE), nn.Linear(INSIDE, CHANNELS)

    def forward(self, x: Tensor) -> Tensor:
        """Return the residual stream (batch x patches x channels) after this block."""
        x = x + self.across2(F.gelu(self.across1(self.norm1(x).transpose(1, 2)))).transpose(1, 2)
        mixed: Tensor = x + self.inside2(F.gelu(self.inside1(self.norm2(x))))
        return mixed


class Mixer(nn.Module):
    """Embeds 4 x 4 patches, then applies four blocks, a norm, the mean over patches and a linear layer."""

    def __init__(self, shape: torch.Size, classes: int) -> None:
        super().__init__()
        channels, height, width = shape
        self.patches = nn.Conv2d(channels, CHANNELS, PATCH, stride=PATCH)
        self.blocks = nn.Sequential(*(MixerBlock((height // PATCH) * (width // PATCH)) for _ in range(BLOCKS)))
        self.norm, self.head = nn.LayerNorm(CHANNELS), nn.Linear(CHANNELS, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return scores of the classes."""
        scores: Tensor = self.head(self.norm(self.blocks(self.patches(x).flatten(2).transpose(1, 2))).mean(1))
        return scores


def mixer(shape: torch.Size, classes: int) -> nn.Module:
    """Build a Mixer for images of at least 4 x 4 pixels; incomplete patches at the edges are ignored."""
    return Mixer(shape, classes)


WIDTHS = (64, 128, 256, 512)
"""Channels of the four stages; each stage has two blocks."""


def resnet18(shape: torch.Size, classes: int, width: float = 1.0) -> nn.Module:
    """Build seventeen convolutions and a linear layer; ``width`` is the fraction of channels in each layer."""
    stages = [math.ceil(channels * width) for channels in WIDTHS]
    blocks, before = [], stages[0]
    for number, channels in enumerate(stages):
        blocks += [Block(before, channels, stride=2 if number else 1), Block(channels, channels)]
        before = channels
    head = nn.Linear(before, classes)
    nn.init.zeros_(head.bias)
    stem = nn.Conv2d(shape[0], stages[0], 3, padding=1, bias=False)
    tail = (Scaler(before), norm(before), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), head)
    return nn.Sequential(stem, *blocks, *tail)


def norm(channels: int) -> nn.Module:
    """Return a static batch norm."""
    return nn.BatchNorm2d(channels, track_running_stats=False)


class Scaler(nn.Module):
    """Divide by the fraction of channels that a narrower network holds, in training."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.channels = channels

    def forward(self, x: Tensor) -> Tensor:
        """Scale the input up if channels are missing."""
        here = x.shape[1]
        return x * (self.channels / here) if self.training and here < self.channels else x


class Block(nn.Module):
    """Two convolutions, each after a norm and a ReLU, plus the input or a 1 x 1 convolution of it."""

    def __init__(self, before: int, channels: int, stride: int = 1) -> None:
        super().__init__()
        self.scaler1, self.scaler2 = Scaler(before), Scaler(channels)
        self.norm1, self.norm2 = norm(before), norm(channels)
        self.conv1 = nn.Conv2d(before, channels, 3, stride, padding=1, bias=False)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        changes = stride > 1 or before != channels
        self.shortcut = nn.Conv2d(before, channels, 1, stride, bias=False) if changes else None

    def forward(self, x: Tensor) -> Tensor:
        """Return the block's output; a convolutional shortcut takes the activated input."""
        active = F.relu(self.norm1(self.scaler1(x)))
        inner: Tensor = self.conv2(F.relu(self.norm2(self.scaler2(self.conv1(active)))))
        return inner + (self.shortcut(active) if self.shortcut is not None else x)


def resnet18_gn(shape: torch.Size, classes: int) -> nn.Module:
    """Build seventeen convolutions and a linear layer: 11,220,132 parameters for 100 classes."""
    stem = nn.Conv2d(shape[0], WIDTHS[0], 3, padding=1, bias=False)
    blocks, before = [], WIDTHS[0]
    for number, channels in enumerate(WIDTHS):
        blocks += [BlockGN(before, channels, stride=2 if number else 1), BlockGN(channels, channels)]
        before = channels
    tail = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, classes))
    return nn.Sequential(stem, norm32(WIDTHS[0]), nn.ReLU(), *blocks, *tail).apply(start_he)


class BlockGN(nn.Module):
    """Two convolutions, each with a norm, plus the input or a 1 x 1 convolution of it, then a ReLU."""

    def __init__(self, before: int, channels: int, stride: int = 1) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(before, channels, 3, stride, padding=1, bias=False)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm1, self.norm2 = norm32(channels), norm32(channels)
        changes = stride > 1 or before != channels
        short = (nn.Conv2d(before, channels, 1, stride, bias=False), norm32(channels))
        self.shortcut = nn.Sequential(*short) if changes else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        """Return the block's output."""
        inner = self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x)))))
        return F.relu(inner + self.shortcut(x))
