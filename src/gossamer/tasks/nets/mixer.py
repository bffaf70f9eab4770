"""A small network of linear layers alone for images (an MLP-Mixer): patches mix among each other, then their channels.

Its layers are tied otherwise than those of a convolutional network: one residual stream of channels goes through all
blocks, layer norms take statistics over it, and half of the linear layers work across patches.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

PATCH = 4
CHANNELS, ACROSS, INSIDE = 64, 32, 128
BLOCKS = 4


class MixerBlock(nn.Module):
    """Two linear layers across patches, then two across channels, each pair behind a norm and added to its input."""

    def __init__(self, patches: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(CHANNELS), nn.LayerNorm(CHANNELS)
        self.across1, self.across2 = nn.Linear(patches, ACROSS), nn.Linear(ACROSS, patches)
        self.inside1, self.inside2 = nn.Linear(CHANNELS, INSIDE), nn.Linear(INSIDE, CHANNELS)

    def forward(self, x: Tensor) -> Tensor:
        """The stream (batch x patches x channels) after this block."""
        x = x + self.across2(F.gelu(self.across1(self.norm1(x).transpose(1, 2)))).transpose(1, 2)
        mixed: Tensor = x + self.inside2(F.gelu(self.inside1(self.norm2(x))))
        return mixed


class Mixer(nn.Module):
    """Patches of 4 x 4 to vectors, four blocks, a norm, the mean over patches and a linear layer."""

    def __init__(self, shape: torch.Size, classes: int) -> None:
        super().__init__()
        channels, height, width = shape
        self.patches = nn.Conv2d(channels, CHANNELS, PATCH, stride=PATCH)
        self.blocks = nn.Sequential(*(MixerBlock((height // PATCH) * (width // PATCH)) for _ in range(BLOCKS)))
        self.norm, self.head = nn.LayerNorm(CHANNELS), nn.Linear(CHANNELS, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Scores of the classes."""
        scores: Tensor = self.head(self.norm(self.blocks(self.patches(x).flatten(2).transpose(1, 2))).mean(1))
        return scores


def mixer(shape: torch.Size, classes: int) -> nn.Module:
    """A Mixer for images of any size from 4 x 4 on; what is left over at the edges is not looked at."""
    return Mixer(shape, classes)
