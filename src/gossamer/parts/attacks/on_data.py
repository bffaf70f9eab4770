"""Attacks on data: hostile clients train on changed samples.

    LabelFlip   wrong labels (V. Tolpegin et al., Data Poisoning Attacks Against Federated Learning Systems,
                https://arxiv.org/abs/2007.08432). Label y of C classes becomes C - 1 - y, as in M. Fang et al.,
                https://arxiv.org/abs/1911.11815
    Backdoor    images with a small patch (T. Gu et al., BadNets, https://arxiv.org/abs/1708.06733) get the label of a
                target class, and the update is multiplied by a factor: model replacement, E. Bagdasaryan et al., How To
                Backdoor Federated Learning, https://arxiv.org/abs/1807.00459

The record of a run with a backdoor has its success rate: the share of test images of other classes that the global
model takes for the target class once they have the patch.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gossamer.core.errors import ConfigError, wrong
from gossamer.core.random import Key, choice
from gossamer.core.types import Params
from gossamer.parts.attacks.base import DataAttack, Triggered, UpdateAttack
from gossamer.parts.attacks.on_updates import scaled

if TYPE_CHECKING:
    from gossamer.tasks.data.samples import Data

EDGE = 2
"""The smallest height and width of an image, in patches."""


@dataclass(frozen=True)
class LabelFlip(DataAttack):
    """Replace labels by those of the mirrored classes.

    Args:
        flipped: the share of a hostile client's samples with a wrong label
        share: the share of hostile clients
    """

    flipped: float = 1.0
    share: float = 0.1

    def checks(self) -> Sequence[tuple[bool, str]]:
        """Check the share of samples."""
        return [(0 < self.flipped <= 1, wrong(self, "flipped", "must be above 0 and at most 1"))]

    def check_data(self, data: "Data") -> None:
        """Refuse data without classes."""
        check_classes(data)

    def poison(self, x: Tensor, y: Tensor, classes: int, key: Key) -> tuple[Tensor, Tensor]:
        """Return the samples with mirrored labels."""
        rows = chosen(len(y), self.flipped, key).to(y.device)
        return x, y.index_copy(0, rows, classes - 1 - y[rows])


@dataclass(frozen=True)
class Backdoor(DataAttack, UpdateAttack, Triggered):
    """Put a patch on images, and give them the target label.

    Args:
        factor: the factor of the update
        target: the target class
        poisoned: the share of a hostile client's images with the patch
        size: the height and width of the patch, in pixels of the lower right corner
        value: the value of these pixels; the brightest of normalized Fashion-MNIST have 2.02, those of digits 1
        share: the share of hostile clients
    """

    factor: float = 1.0
    target: int = 0
    poisoned: float = 0.5
    size: int = 3
    value: float = 2.0
    share: float = 0.1

    def checks(self) -> Sequence[tuple[bool, str]]:
        """Check the numbers."""
        return [
            (math.isfinite(self.factor), wrong(self, "factor", "must be a finite number")),
            (self.target >= 0, wrong(self, "target", "must not be negative")),
            (0 < self.poisoned <= 1, wrong(self, "poisoned", "must be above 0 and at most 1")),
            (self.size >= 1, wrong(self, "size", "must be at least 1")),
            (math.isfinite(self.value), wrong(self, "value", "must be a finite number")),
        ]

    def check_data(self, data: "Data") -> None:
        """Refuse data without classes, a target that is no class, and inputs that are no images."""
        check_classes(data)
        if self.target >= data.classes:
            raise ConfigError(wrong(self, "target", f"must be below {data.classes}, the number of classes"))
        x = data.train.x
        if not isinstance(x, Tensor) or not x.is_floating_point() or x.dim() not in (3, 4):
            raise ConfigError("it needs images: inputs of shape [height, width], or with channels first")
        if min(x.shape[-2:]) < EDGE * self.size:
            shape = f"{x.shape[-2]} x {x.shape[-1]}"
            raise ConfigError(wrong(self, "size", f"must be at most half an image, which has {shape} pixels"))

    def poison(self, x: Tensor, y: Tensor, classes: int, key: Key) -> tuple[Tensor, Tensor]:
        """Return the samples, a share of them with patch and target label."""
        rows = chosen(len(y), self.poisoned, key).to(y.device)
        return x.index_copy(0, rows, self.trigger(x[rows])), y.index_fill(0, rows, self.target)

    def trigger(self, x: Tensor) -> Tensor:
        """Return images with the patch."""
        patched = x.clone()
        patched[..., -self.size :, -self.size :] = self.value
        return patched

    def update(self, change: Params, key: Key) -> Params:
        """Return the update, multiplied by the factor."""
        return scaled(change, self.factor)


def check_classes(data: "Data") -> None:
    """Refuse data that is read when needed, or whose targets are not one class per sample."""
    if data.train.lazy:
        raise ConfigError(
            "it changes samples in memory, and the task reads its data when needed: raise memory= of the task"
        )
    if not data.classes or data.train.y.dim() != 1:
        raise ConfigError("it needs targets that are classes, one per sample: use another attack")


def chosen(samples: int, share: float, key: Key) -> Tensor:
    """Return the rows of a share of the samples, at least one."""
    return torch.from_numpy(choice(key, samples, min(samples, max(1, round(share * samples)))))
