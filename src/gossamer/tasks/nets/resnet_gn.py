"""A post-activation residual network with group norm, as FedSpa uses it for CIFAR-100."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gossamer.tasks.nets.conv import norm32, start_he
from gossamer.tasks.nets.resnet import WIDTHS


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
