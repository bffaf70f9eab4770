"""Bucketing: means of small random groups of updates, before another rule.

Karimireddy et al., Byzantine-Robust Learning on Heterogeneous Datasets via Bucketing, ICLR 2022,
https://arxiv.org/abs/2006.09365. The updates are shuffled in every round, and averaged in buckets of ``size``. The
rule then works on the means of the buckets. Where the data of clients differ, a median or Krum favours the majority and
drops honest minorities; the means of buckets are more alike.

Breaking point: a hostile update spoils its bucket, so of n updates as many may be hostile as the rule tolerates of
ceil(n / size) values. The last bucket is smaller if ``size`` does not divide n. Updates count equally in a bucket, and
buckets count equally.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from gossamer.core.errors import ConfigError, require, wrong
from gossamer.core.random import Key, permutation
from gossamer.core.specs import parse
from gossamer.core.types import State
from gossamer.parts.servers.robust import RULES
from gossamer.parts.servers.robust.rule import Aggregate, Rule
from gossamer.parts.servers.robust.updates import Updates


@dataclass(frozen=True)
class Bucketing(Rule):
    """A rule on the means of random buckets of updates.

    Args:
        size: the number of updates in a bucket
        rule: the rule that combines the means
    """

    spec_usage: ClassVar[str] = "bucketing:SIZE/RULE such as bucketing:2/median"

    size: int
    rule: Rule

    @classmethod
    def of_spec(cls, text: str) -> "Bucketing":
        """Return the rule of the command line: ``bucketing:2/krum:f=1``."""
        size, slash, rule = text.partition("/")
        if not (slash and rule and size.isascii() and size.isdecimal()):
            raise ConfigError(f"write it as {cls.spec_usage}")
        return cls(int(size), parse(rule, RULES, "server"))

    def __post_init__(self) -> None:
        require((self.size >= 2, wrong(self, "size", "must be at least 2")))

    def to_text(self) -> str:
        """Return the rule as the command line takes it."""
        return f"bucketing:{self.size}/{self.rule.to_text()}"

    @property
    def min_updates(self) -> int:
        """The smallest number with enough buckets for the rule."""
        return (self.rule.min_updates - 1) * self.size + 1

    @property
    def min_cohort(self) -> int:
        """The smallest number of clients with enough buckets for the rule."""
        return (self.rule.min_cohort - 1) * self.size + 1

    def tolerates(self, updates: int) -> int:
        """Return what the rule tolerates of the number of buckets."""
        return self.rule.tolerates(-(-updates // self.size))

    def aggregate(self, updates: Updates, memory: State, key: Key) -> Aggregate:
        """Return the aggregate of the buckets' means."""
        order = permutation(key, updates.count).tolist()
        groups = [order[start : start + self.size] for start in range(0, updates.count, self.size)]
        found = self.rule.aggregate(Buckets(updates, groups), memory, key)
        used = None if found.used is None else sorted(index for group in found.used for index in groups[group])
        return Aggregate(found.vector, found.memory, used)


class Buckets(Updates):
    """Means of groups of updates, per entry over those that hold it."""

    def __init__(self, updates: Updates, groups: Sequence[Sequence[int]]) -> None:
        self.updates, self.groups = updates, groups
        self.count, self.size = len(groups), updates.size
        self.partial, self.like, self.small = updates.partial, updates.like, False

    def vector(self, index: int) -> Tensor:
        """Return the mean of a group."""
        group = self.groups[index]
        weights = torch.zeros(self.updates.count, dtype=torch.float64)
        weights[list(group)] = 1 / len(group)
        return self.updates.mean(weights)

    def held(self, index: int) -> Tensor | None:
        """Return where at least one update of a group holds an entry."""
        masks = [self.updates.held(each) for each in self.groups[index]] if self.partial else [None]
        known = [mask for mask in masks if mask is not None]
        return torch.stack(known).any(0) if len(known) == len(masks) else None

    @property
    def weights(self) -> Tensor:
        """Equal weights."""
        return self.equal_weights
