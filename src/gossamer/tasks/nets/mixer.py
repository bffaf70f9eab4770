"""A small MLP-Mixer for images (https://arxiv.org/abs/2105.01601): linear layers across patches and across channels.

Its dimensions are tied differently from those of a convolutional network: one residual stream of channels passes
through all blocks, layer norms normalize over it, and half of the linear layers work across patches.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

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
