"""A pre-activation residual network, as HeteroFL and FedRolex use it for sub-model training.

Its batch norms are static: they keep no running statistics, because clients of different widths could not share them.
In training they normalize by the batch. For evaluation see ``gossamer.tasks.static_norms``.

In training a scaler before each norm compensates for channels that a client does not hold. With batch statistics it
only changes the effect of the norm's epsilon.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

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
