"""Augmentation: what is done to a batch of training images, on the device, from draws that a key decides.

An augmentation is a value that is called with a batch and with ``draws`` uniform numbers in [0, 1) for each image. It
holds no generator: whoever trains draws the numbers from the key of the step, so the same images come out on every
device. It uses index arithmetic and gathering alone, with no loop over images and no shape that depends on the data,
so it runs under ``torch.vmap``, ``torch.compile`` and in a captured graph.
"""

from dataclasses import dataclass
from typing import ClassVar, Protocol

import torch
from torch import Tensor

from gossamer.core.errors import require, wrong


class Augment(Protocol):
    """``augment(x, draws)``: x is [batch, channels, height, width] and draws [batch, augment.draws], in [0, 1)."""

    draws: ClassVar[int]

    def __call__(self, x: Tensor, draws: Tensor) -> Tensor:
        """The images as a client trains on them this time, of the same shape and type."""
        ...


@dataclass(frozen=True)
class CropFlip:
    """Move each image by up to ``pad`` pixels along both axes, then mirror it half of the time.

    The same as padding by ``pad`` on every side and cropping at random to the old size. Three draws an image: down,
    right, mirror.

    Args:
        pad: how far an image may move
        fill: what moves in, by channel; a black pixel that was normalised is not 0
    """

    draws: ClassVar[int] = 3

    pad: int = 4
    fill: tuple[float, ...] = (0.0,)

    def __post_init__(self) -> None:
        require((self.pad >= 0, wrong(self, "pad", "must be at least 0")))

    def __call__(self, x: Tensor, draws: Tensor) -> Tensor:
        """The batch, moved and mirrored."""
        height, width = x.shape[-2:]
        down, right = (self._shift(draws[:, axis])[:, None] for axis in (0, 1))
        columns = torch.arange(width, device=x.device)
        columns = torch.where(draws[:, 2:] < 0.5, width - 1 - columns, columns)
        rows, columns = torch.arange(height, device=x.device) + down, columns + right
        place = rows.clamp(0, height - 1)[:, :, None] * width + columns.clamp(0, width - 1)[:, None, :]
        moved = x.flatten(2).gather(2, place.flatten(1)[:, None, :].expand(-1, x.shape[1], -1)).view_as(x)
        inside = _within(rows, height)[:, None, :, None] & _within(columns, width)[:, None, None, :]
        return torch.where(inside, moved, self._fill(x))

    def _shift(self, draw: Tensor) -> Tensor:
        """From -pad to pad, each as likely; a draw just below 1 must not round up to one more."""
        return (draw * (2 * self.pad + 1)).long().clamp(max=2 * self.pad) - self.pad

    def _fill(self, x: Tensor) -> Tensor:
        # Filled on the device: copying a list there would not do in a captured graph.
        return torch.cat([x.new_full((1, 1, 1), value) for value in self.fill])


def _within(index: Tensor, size: int) -> Tensor:
    return (index >= 0) & (index < size)
