"""Augmentation of training batches on the device, from random numbers of a key.

An augmentation is called with a batch and with ``draws`` uniform numbers in [0, 1) per image. It holds no generator:
the caller draws the numbers from the key of the step, so all devices get the same images. It uses only index arithmetic
and gathering. It has no loop over images and no data-dependent shape, so it works with ``torch.vmap``,
``torch.compile`` and CUDA graphs.
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
        """Return the augmented images, with the same shape and type."""
        ...


@dataclass(frozen=True)
class CropFlip:
    """Shift each image by up to ``pad`` pixels along both axes, then mirror it with probability 1/2.

    Equivalent to padding by ``pad`` on every side and a random crop to the old size. It takes three draws per image:
    down, right, mirror.

    Args:
        pad: maximum shift in pixels
        fill: value of new pixels, per channel; a normalized black pixel is not 0
    """

    draws: ClassVar[int] = 3

    pad: int = 4
    fill: tuple[float, ...] = (0.0,)

    def __post_init__(self) -> None:
        require((self.pad >= 0, wrong(self, "pad", "must be at least 0")))

    def __call__(self, x: Tensor, draws: Tensor) -> Tensor:
        """Return the batch, shifted and mirrored."""
        height, width = x.shape[-2:]
        down, right = (self._shift(draws[:, axis])[:, None] for axis in (0, 1))
        columns = torch.arange(width, device=x.device)
        columns = torch.where(draws[:, 2:] < 0.5, width - 1 - columns, columns)
        rows, columns = torch.arange(height, device=x.device) + down, columns + right
        source = rows.clamp(0, height - 1)[:, :, None] * width + columns.clamp(0, width - 1)[:, None, :]
        moved = x.flatten(2).gather(2, source.flatten(1)[:, None, :].expand(-1, x.shape[1], -1)).view_as(x)
        inside = _within(rows, height)[:, None, :, None] & _within(columns, width)[:, None, None, :]
        return torch.where(inside, moved, self._fill(x))

    def _shift(self, draw: Tensor) -> Tensor:
        """Return a shift from -pad to pad; a draw just below 1 must not round up to pad + 1."""
        return (draw * (2 * self.pad + 1)).long().clamp(max=2 * self.pad) - self.pad

    def _fill(self, x: Tensor) -> Tensor:
        # Filled on the device: a CUDA graph cannot copy a list to it.
        return torch.cat([x.new_full((1, 1, 1), value) for value in self.fill])


def _within(index: Tensor, size: int) -> Tensor:
    return (index >= 0) & (index < size)
