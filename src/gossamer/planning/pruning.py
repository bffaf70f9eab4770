"""What pruning saves of computing, weight by weight.

A view that leaves out a share rho of each tensor leaves out floor(rho n) of its n entries, and what they take of the
operations is saved. So a share saves a little less than itself, and what no weight takes is never saved.
"""

import math
from collections import defaultdict
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from gossamer.errors import require
from gossamer.objective import Objective
from gossamer.types import Params

HALVINGS = 60


class Weights(NamedTuple):
    """A tensor that is pruned: its entries, and their part of all operations."""

    entries: int
    part: float


@dataclass(frozen=True)
class Pruning:
    """Which tensors are pruned, each by the same share.

    tensors: their entries and their parts of the operations; without, any share saves just as much
    """

    tensors: tuple[Weights, ...] = ()

    def __post_init__(self) -> None:
        whole = sum(weights.part for weights in self.tensors)
        require(
            (all(weights.entries >= 1 for weights in self.tensors), "Pruning.tensors: each must have an entry"),
            (all(weights.part >= 0 for weights in self.tensors), "Pruning.tensors: parts must not be negative"),
            (whole < 1 + 1e-9, f"Pruning.tensors: parts must be 1 at most together, got {whole}"),
        )

    @classmethod
    def of(cls, objective: Objective, rows: Tensor) -> "Pruning":
        """Of a model, by the operations that a pass over some samples takes."""
        model, layers = objective.initial(), defaultdict[str, Params](dict)
        for name in objective.trained:
            if model[name].dim() > 1:
                layers[name.rpartition(".")[0]][name] = torch.zeros_like(model[name])
        tensors = []
        for without in layers.values():
            passed, entries = objective.flops(model, rows, without), sum(t.numel() for t in without.values())
            part = (passed.done - passed.useful) / max(1, passed.done)
            tensors += [Weights(tensor.numel(), part * tensor.numel() / entries) for tensor in without.values()]
        return cls(tuple(tensors))

    @property
    def whole(self) -> float:
        """What would be saved if all of the weights were pruned."""
        return sum(weights.part for weights in self.tensors) if self.tensors else 1.0

    def saved(self, ratio: float, operations: float = 0.0) -> float:
        """What a share saves for certain; of so many operations, if that is said, as whole ones are counted."""
        if not self.tensors:
            return ratio
        found = math.fsum(part * int(ratio * entries) / entries for entries, part in self.tensors)
        return max(0.0, found - (1 / operations if operations else 0.0))

    def least(self, wanted: float, largest: float, operations: float = 0.0) -> float:
        """The least share, up to the largest, that saves as much as is wanted; the largest, if none does."""
        if wanted <= 0 or not self.tensors:
            return min(max(wanted, 0.0), largest)
        low, high = 0.0, largest
        for _ in range(HALVINGS):
            middle = (low + high) / 2
            low, high = (low, middle) if self.saved(middle, operations) >= wanted else (middle, high)
        return high
