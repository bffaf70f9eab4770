"""Norm clipping: no update counts for more than a norm.

Sun et al., Can You Really Backdoor Federated Learning?, 2019, https://arxiv.org/abs/1911.07963: an update D becomes

    D min(1, c / |D|)

and the mean of these is the aggregate. The bound c is a number, or follows the round: a multiple of the median of the
round's norms, so that it needs no tuning and shrinks as training converges.

Breaking point: one hostile client of n moves the mean by at most c / n (by its weight, if weights differ). The median
is at most the largest honest norm while fewer than half of the clients are hostile. Against updates of an ordinary norm
in a harmful direction, clipping does not protect.
"""

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor

from gossamer.core.errors import require, wrong
from gossamer.core.random import Key
from gossamer.core.types import State
from gossamer.parts.servers.clipping import shrink
from gossamer.parts.servers.robust.rule import Aggregate, Rule, minority
from gossamer.parts.servers.robust.updates import Updates

Bound = Literal["median"] | float
"""A norm: a number, or the median of the round's norms."""


@dataclass(frozen=True)
class Clip(Rule):
    """Weighted mean of updates whose norms are clipped.

    Args:
        norm: largest norm of an update: a number, or median for that of the round
        multiple: with median, the factor of the median
    """

    weighted: ClassVar[bool] = True

    norm: Bound = "median"
    multiple: float = 1.0

    def __post_init__(self) -> None:
        require(
            positive(self, "norm"),
            (0 < self.multiple < math.inf, wrong(self, "multiple", "must be a positive number")),
            (self.norm == "median" or self.multiple == 1, wrong(self, "multiple", "must be 1 with a number as norm")),
        )

    @property
    def min_updates(self) -> int:
        """Three with the median: of two norms, one may be hostile. One with a number."""
        return 3 if self.norm == "median" else 1

    def tolerates(self, updates: int) -> int:
        """Return the largest minority."""
        return minority(updates)

    def aggregate(self, updates: Updates, memory: State, key: Key) -> Aggregate:
        """Return the weighted mean of the clipped updates."""
        norms = updates.norms()
        return Aggregate(updates.mean(updates.weights, shrink(norms, bound(self.norm, norms) * self.multiple)))


def positive(rule: Rule, field: str) -> tuple[bool, str]:
    """Return the check of a field with a norm, and its message."""
    value = getattr(rule, field)
    holds = value == "median" or (isinstance(value, int | float) and 0 < value < math.inf)
    return holds, wrong(rule, field, "must be a positive number or median")


def bound(norm: Bound, norms: Tensor) -> float:
    """Return a norm as a number, given the norms of a round."""
    return float(norms.median()) if norm == "median" else float(norm)
