"""Label flipping: hostile clients train with wrong labels.

V. Tolpegin et al., Data Poisoning Attacks Against Federated Learning Systems, https://arxiv.org/abs/2007.08432. Label y
of C classes becomes C - 1 - y, as in M. Fang et al., https://arxiv.org/abs/1911.11815.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gossamer.core.errors import ConfigError, wrong
from gossamer.core.random import Key, choice
from gossamer.parts.attacks.base import DataAttack

if TYPE_CHECKING:
    from gossamer.tasks.data.samples import Data


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
