"""A residual network with activations ahead of its convolutions, as sub-model training uses it (HeteroFL, FedRolex).

Its batch norms are static: they keep no running statistics, so that clients of unequal width have none to agree on, and
normalise by the batch at hand in training. In evaluation that is one of three choices of a run (``statistics``).

A scaler ahead of each norm makes up, in training, for channels that a client does not hold. Where the norm takes the
batch's own statistics it makes no difference but for the norm's epsilon.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

WIDTHS = (64, 128, 256, 512)
"""Channels of the four stages, of two blocks each."""


def resnet18(shape: torch.Size, classes: int, width: float = 1.0) -> nn.Module:
    """Seventeen convolutions and a linear layer; ``width`` is the share of channels that each layer has."""
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
    """A static batch norm."""
    return nn.BatchNorm2d(channels, track_running_stats=False)


class Scaler(nn.Module):
    """In training, divides by the share of a layer's channels that are there."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.channels = channels

    def forward(self, x: Tensor) -> Tensor:
        """What comes in, scaled up where channels are missing."""
        here = x.shape[1]
        return x * (self.channels / here) if self.training and here < self.channels else x


class Block(nn.Module):
    """Two convolutions, each behind a norm and a ReLU, added to the input or to a 1 x 1 convolution of it."""

    def __init__(self, before: int, channels: int, stride: int = 1) -> None:
        super().__init__()
        self.scaler1, self.scaler2 = Scaler(before), Scaler(channels)
        self.norm1, self.norm2 = norm(before), norm(channels)
        self.conv1 = nn.Conv2d(before, channels, 3, stride, padding=1, bias=False)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        changes = stride > 1 or before != channels
        self.shortcut = nn.Conv2d(before, channels, 1, stride, bias=False) if changes else None

    def forward(self, x: Tensor) -> Tensor:
        """The block's output; where the shape changes, the shortcut too comes after the activation."""
        active = F.relu(self.norm1(self.scaler1(x)))
        inner: Tensor = self.conv2(F.relu(self.norm2(self.scaler2(self.conv1(active)))))
        return inner + (self.shortcut(active) if self.shortcut is not None else x)
