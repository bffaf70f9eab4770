"""The interface of robust aggregation rules.

A rule is a frozen dataclass with three members: how many updates it needs, how many hostile ones it tolerates, and the
aggregate of a round's updates. A complete rule, which takes the update with the smallest norm:

    @dataclass(frozen=True)
    class Shortest(Rule):
        @property
        def min_updates(self):
            return 2

        def tolerates(self, updates):
            return 0  # a hostile update of norm 0 stops the training

        def aggregate(self, updates, memory, key):
            shortest = int(updates.norms().argmin())
            return Aggregate(updates.vector(shortest), used=(shortest,))
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from torch import Tensor

from gossamer.core.fields import CheckedFields
from gossamer.core.random import Key
from gossamer.core.specs import spec
from gossamer.core.types import State
from gossamer.parts.servers.robust import RULES
from gossamer.parts.servers.robust.updates import Updates


@dataclass(frozen=True, eq=False)
class Aggregate:
    """The result of a rule.

    Args:
        vector: the aggregate, for all entries of the model
        memory: what the rule keeps for the next round: tensors by name
        used: the indices of the updates that it was computed from, where the rule selects some; none: all
    """

    vector: Tensor
    memory: State = field(default_factory=dict)
    used: Sequence[int] | None = None


class Rule(CheckedFields, ABC):
    """Combines the updates of a round so that a limited number of hostile ones cannot control the result.

    Args:
        weighted: whether updates count by the weights of the mean that the rule replaces, or equally
    """

    weighted: ClassVar[bool] = False

    @property
    @abstractmethod
    def min_updates(self) -> int:
        """The smallest number of updates with which the rule protects. With fewer, the model is kept."""

    @property
    def min_cohort(self) -> int:
        """The smallest number of clients per round. Some of them may fail, so it may exceed ``min_updates``."""
        return self.min_updates

    @abstractmethod
    def tolerates(self, updates: int) -> int:
        """Return the breaking point: how many of a number of updates may be hostile."""

    @abstractmethod
    def aggregate(self, updates: Updates, memory: State, key: Key) -> Aggregate:
        """Return the aggregate of at least ``min_updates`` updates.

        ``memory`` is that of the previous aggregate, empty before the first round. ``key`` is that of the round.
        """

    def to_text(self) -> str:
        """Return the rule as the command line takes it."""
        return spec(self, RULES)


def minority(updates: int) -> int:
    """Return the largest number that is less than half.

    >>> minority(10), minority(11)
    (4, 5)
    """
    return max(0, (updates - 1) // 2)
