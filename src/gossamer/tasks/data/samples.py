"""Data in memory: inputs and targets, with a default split, a default model, and the augmentation of training batches.

Some data has natural owners: writers, speakers, or the clients of a generator. ``group`` holds them, and the split
``natural`` makes them the clients.

An augmentation is called with a batch and with ``draws`` uniform numbers in [0, 1) per image. It holds no generator:
the caller draws the numbers from the key of the step, so all devices get the same images. It uses only index arithmetic
and gathering. It has no loop over images and no data-dependent shape, so it works with ``torch.vmap``,
``torch.compile`` and CUDA graphs.
"""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, Protocol

import numpy as np
import torch
from torch import Tensor

from gossamer.core.errors import require, wrong
from gossamer.tasks.data import nests
from gossamer.tasks.data.nests import Nest
from gossamer.tasks.data.partition import Index


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
        # A shift from -pad to pad; a draw just below 1 must not round up to pad + 1.
        shifts = (draws[:, :2] * (2 * self.pad + 1)).long().clamp(max=2 * self.pad) - self.pad  # [batch, 2]
        down, right = shifts[:, :1], shifts[:, 1:]
        columns = torch.arange(width, device=x.device)
        columns = torch.where(draws[:, 2:] < 0.5, width - 1 - columns, columns)
        rows, columns = torch.arange(height, device=x.device) + down, columns + right
        source = rows.clamp(0, height - 1)[:, :, None] * width + columns.clamp(0, width - 1)[:, None, :]
        moved = x.flatten(2).gather(2, source.flatten(1)[:, None, :].expand(-1, x.shape[1], -1)).view_as(x)
        high, wide = (rows >= 0) & (rows < height), (columns >= 0) & (columns < width)
        # Filled on the device: a CUDA graph cannot copy a list to it.
        fill = torch.cat([x.new_full((1, 1, 1), value) for value in self.fill])
        return torch.where(high[:, None, :, None] & wide[:, None, None, :], moved, fill)


Batch = tuple[Any, Tensor]
"""The inputs of some samples, a nest of tensors, and their targets."""


@dataclass(frozen=True, eq=False)
class AnySamples(ABC):
    """Inputs and targets, with the natural owner of each sample if there is one; targets are in memory.

    Args:
        x: inputs
        y: targets
        group: natural owner of each sample
    """

    x: Any
    y: Tensor
    group: Index | None = None
    lazy: ClassVar[bool] = False
    """Whether inputs are read when they are needed."""

    def __len__(self) -> int:
        return len(self.y)

    @property
    def labels(self) -> Index:
        """Labels as a NumPy array, for splits and counts."""
        return self.y.cpu().numpy().astype(np.int64, copy=False)

    @abstractmethod
    def take(self, index: Index) -> "AnySamples":
        """Return the samples at ``index``, in that order."""

    @abstractmethod
    def to(self, device: torch.device | str) -> "AnySamples":
        """Return the samples on a device."""

    @abstractmethod
    def read(self, rows: Any) -> Batch:
        """Return the samples at ``rows``, an index tensor or a slice."""

    @abstractmethod
    def example(self, count: int) -> Batch:
        """Return the first samples; with a count of 0 the shapes of one sample."""

    @abstractmethod
    def inputs_in_order(self, size: int, index: Tensor | None = None) -> Iterator[Nest]:
        """Yield the inputs of some samples, or of all, in batches of ``size`` at most."""

    @abstractmethod
    def content(self) -> Iterator[np.ndarray]:
        """Yield arrays for a digest."""

    def close(self) -> None:  # noqa: B027
        """Release processes, if there are any."""


@dataclass(frozen=True, eq=False)
class Samples(AnySamples):
    """Inputs and targets in memory, with the natural owner of each sample if there is one.

    Args:
        x: inputs, a tensor or a nest of tensors
        y: targets
        group: natural owner of each sample
    """

    def __repr__(self) -> str:
        """Return number and shape of the samples."""
        shapes = nests.shapes(self.example(0)[0])
        return f"<Samples: {len(self):,}, inputs {shapes}, targets {list(self.y.shape[1:])}>"

    def take(self, index: Index) -> "Samples":
        """Return the samples at ``index``, in that order."""
        at = torch.from_numpy(np.ascontiguousarray(index))
        return Samples(nests.take(self.x, at), self.y[at], None if self.group is None else self.group[index])

    def to(self, device: torch.device | str) -> "Samples":
        """Return the samples on a device."""
        return replace(self, x=nests.move(self.x, device), y=self.y.to(device))

    def read(self, rows: Any) -> Batch:
        """Return the samples at ``rows``, an index tensor or a slice."""
        return nests.take(self.x, rows), self.y[rows]

    def example(self, count: int) -> Batch:
        """Return the first samples."""
        return self.read(slice(count))

    def inputs_in_order(self, size: int, index: Tensor | None = None) -> Iterator[Nest]:
        """Yield the inputs of some samples, or of all, in batches of ``size``."""
        x = self.x if index is None else nests.take(self.x, index)
        for start in range(0, nests.count(x), size):
            yield nests.take(x, slice(start, start + size))

    def content(self) -> Iterator[np.ndarray]:
        """Yield all arrays, for a digest."""
        yield from (tensor.cpu().numpy() for tensor in nests.leaves(self.x).values())
        yield self.y.cpu().numpy()


@dataclass(frozen=True, eq=False)
class Data:
    """A data set with its default split, default model, and augmentation of training batches, if any.

    Args:
        name: its name
        train: training samples
        test: test samples
        classes: number of classes; 0 if a target is not one class
        split: default split
        model: default network
        augment: augmentation of training batches
        loss: name of the default loss
        metrics: names of the default metrics; empty means those of the loss
        tokens: number of different tokens, if targets are sequences of tokens
    """

    name: str
    train: AnySamples
    test: AnySamples
    classes: int
    split: str
    model: str
    augment: Augment | None = None
    loss: str = "cross_entropy"
    metrics: tuple[str, ...] = ()
    tokens: int = 0

    def __repr__(self) -> str:
        """Return name and sizes."""
        classes = f", {self.classes} classes" if self.classes else ""
        return f"<Data: {self.name}, {len(self.train):,} + {len(self.test):,} samples{classes}>"

    @property
    def outputs(self) -> int:
        """Number of outputs of a network: one per class or token, or one per target."""
        if self.tokens:
            return self.tokens
        return self.classes if self.loss in ("cross_entropy", "nll") else self.train.y[:1].numel()

    @property
    def shape(self) -> torch.Size:
        """Shape of one input; inputs that are nests have none."""
        x, _ = self.train.example(0)
        shape: torch.Size = x.shape[1:]
        return shape

    def digest(self) -> str:
        """Return the SHA-256 of the samples; a resumed run must have the same data."""
        return self._digest

    @cached_property
    def _digest(self) -> str:
        total = hashlib.sha256()
        for samples in (self.train, self.test):
            for array in (*samples.content(), samples.group):
                if array is not None:
                    total.update(f"{array.dtype.str}{array.shape}".encode())
                    total.update(np.ascontiguousarray(array).data)
        return total.hexdigest()
