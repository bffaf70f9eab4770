"""Robust rules: the mean of the updates is replaced by what a minority of hostile clients cannot control.

By norm:

    Clip                no update counts for more than a norm. Sun et al., Can You Really Backdoor Federated Learning?,
                        2019, https://arxiv.org/abs/1911.07963
    CenteredClipping    updates are clipped around the previous aggregate. Karimireddy et al., Learning from History for
                        Byzantine Robust Optimization, ICML 2021, https://arxiv.org/abs/2012.10333
    GeometricMedian     the point with the smallest sum of distances (RFA). Pillutla et al., Robust Aggregation for
                        Federated Learning, IEEE Transactions on Signal Processing 2022, https://arxiv.org/abs/1912.13445

By coordinate, both from Yin et al., Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates, ICML
2018, https://arxiv.org/abs/1803.01498:

    Median              the median of each entry, or the mean of the two middle values of an even number
    TrimmedMean         the mean of each entry without the floor(share n) largest and as many smallest of n values

By selection: ``gossamer.parts.servers.robust.krum``.

Before another rule:

    Bucketing           means of small random groups of updates. Karimireddy et al., Byzantine-Robust Learning on
                        Heterogeneous Datasets via Bucketing, ICLR 2022, https://arxiv.org/abs/2006.09365

Updates count equally, as in the papers, except in ``Clip`` and ``GeometricMedian``, where they count by the weights of
the mean that the rule replaces. Each class says its breaking point: how many hostile updates it tolerates.

Rules by coordinate sort the values of an entry in all updates. Where clients hold parts of the model, an entry has the
values of its holders alone. An entry with some holders, but too few for the rule, takes a weaker rule: the mean of
updates whose norms are clipped at the round's median (``Clip``). A hostile holder then moves it by no more than an
ordinary update does.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from gossamer.core.errors import ConfigError, require, wrong
from gossamer.core.random import Key, permutation
from gossamer.core.specs import parse
from gossamer.core.types import State
from gossamer.parts.servers.mean import shrink
from gossamer.parts.servers.robust import RULES
from gossamer.parts.servers.robust.server import Aggregate, Rule
from gossamer.parts.servers.robust.updates import Updates, blocks

Bound = Literal["median"] | float
"""A norm: a number, or the median of the round's norms."""

Combine = Callable[[Tensor, Tensor], Tensor]
"""``combine(ranked, holders)``: one value per column of sorted values. Only its first ``holders`` values count."""


def minority(updates: int) -> int:
    """Return the largest number that is less than half.

    >>> minority(10), minority(11)
    (4, 5)
    """
    return max(0, (updates - 1) // 2)


# By norm.


def positive(rule: Rule, field: str) -> tuple[bool, str]:
    """Return the check of a field with a norm, and its message."""
    value = getattr(rule, field)
    holds = value == "median" or (isinstance(value, int | float) and 0 < value < math.inf)
    return holds, wrong(rule, field, "must be a positive number or median")


def bound(norm: Bound, norms: Tensor) -> float:
    """Return a norm as a number, given the norms of a round."""
    return float(norms.median()) if norm == "median" else float(norm)


@dataclass(frozen=True)
class Clip(Rule):
    """Weighted mean of updates whose norms are clipped: D becomes D min(1, c / |D|).

    The bound c is a number, or follows the round: a multiple of the median of the round's norms, so that it needs no
    tuning and shrinks as training converges.

    Breaking point: one hostile client of n moves the mean by at most c / n (by its weight, if weights differ). The
    median is at most the largest honest norm while fewer than half of the clients are hostile. Against updates of an
    ordinary norm in a harmful direction, clipping does not protect.

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


@dataclass(frozen=True)
class CenteredClipping(Rule):
    """Mean of the updates, clipped around the previous aggregate.

    With the previous aggregate as the first center v, 0 before the first round, one iteration is

        v <- v + 1/n sum_k (D_k - v) min(1, radius / |D_k - v|)

    The center is part of the server state. The radius is a number, or the median of the round's distances |D_k - v|,
    which is this library's addition.

    Breaking point: less than half of the updates hostile. f hostile updates of n move v by at most radius f / n per
    iteration.

    Args:
        radius: largest distance from the center: a number, or median for that of the round
        iterations: number of iterations per round
    """

    radius: Bound = "median"
    iterations: int = 1

    def __post_init__(self) -> None:
        require(positive(self, "radius"), (self.iterations >= 1, wrong(self, "iterations", "must be at least 1")))

    @property
    def min_updates(self) -> int:
        """Three: of two, one may be hostile."""
        return 3

    def tolerates(self, updates: int) -> int:
        """Return the largest minority."""
        return minority(updates)

    def aggregate(self, updates: Updates, memory: State, key: Key) -> Aggregate:
        """Return the center after the last iteration. The next round starts from it."""
        center = memory["center"] if memory else updates.like.new_zeros(updates.size)
        for _ in range(self.iterations):
            apart = updates.distances(center)
            factors = shrink(apart, bound(self.radius, apart))
            center = center + updates.mean(updates.equal_weights, factors, center)
        return Aggregate(center, {"center": center})


@dataclass(frozen=True)
class GeometricMedian(Rule):
    """Weighted geometric median of the updates, by smoothed Weiszfeld iterations.

    The aggregate z minimizes the weighted sum of distances, sum_k p_k |z - D_k|. One iteration (Algorithm 2) is

        z <- sum_k b_k D_k / sum_k b_k        b_k = p_k / max(smoothing, |z - D_k|)

    The paper starts from the mean, which an update of a huge norm carries far away. Here the start is the mean of the
    updates with norms clipped at their median. The minimum is the same; a few iterations are enough to come close.

    Breaking point: hostile clients with less than half of the total weight. The error is a constant times the spread of
    the honest updates. Weights that clients claim count, so limit them in a deployment (``max_weight``).

    Args:
        iterations: number of Weiszfeld iterations, each of which decodes large updates twice
        smoothing: smallest distance in the denominator of a weight
    """

    weighted: ClassVar[bool] = True

    iterations: int = 8
    smoothing: float = 1e-6

    def __post_init__(self) -> None:
        require(
            (self.iterations >= 1, wrong(self, "iterations", "must be at least 1")),
            (0 < self.smoothing < math.inf, wrong(self, "smoothing", "must be a positive number")),
        )

    @property
    def min_updates(self) -> int:
        """Three: between two updates, every point has the same sum of distances."""
        return 3

    def tolerates(self, updates: int) -> int:
        """Return the largest minority, of equal weights."""
        return minority(updates)

    def aggregate(self, updates: Updates, memory: State, key: Key) -> Aggregate:
        """Return the result of the last iteration."""
        norms = updates.norms()
        found = updates.mean(updates.weights, shrink(norms, bound("median", norms)))
        for _ in range(self.iterations):
            nearness = updates.weights / updates.distances(found).clamp(min=self.smoothing)
            found = updates.mean(nearness / nearness.sum())
        return Aggregate(found)


# By coordinate.


@dataclass(frozen=True)
class Median(Rule):
    """Coordinate-wise median of the updates.

    Breaking point: with less than half of the updates hostile, each entry is between two honest values.
    """

    @property
    def min_updates(self) -> int:
        """Three: of two values, one may be hostile."""
        return 3

    def tolerates(self, updates: int) -> int:
        """Return the largest minority."""
        return minority(updates)

    def aggregate(self, updates: Updates, memory: State, key: Key) -> Aggregate:
        """Return the median of each entry."""
        return Aggregate(by_coordinate(updates, middle, self.min_updates))


@dataclass(frozen=True)
class TrimmedMean(Rule):
    """Coordinate-wise mean without the largest and the smallest values.

    Breaking point: floor(share n) hostile updates. With up to that number, each entry is between two honest values. A
    share of 0.2 tolerates 20 % hostile clients, and not 30 %.

    Args:
        share: fraction of the values that is left out at each end, below 1/2
    """

    share: float

    def __post_init__(self) -> None:
        require((0 < self.share < 0.5, wrong(self, "share", "must be above 0 and below 0.5")))

    @property
    def min_updates(self) -> int:
        """The smallest number of which at least one is left out at each end."""
        return math.ceil(round(1 / self.share, 9))

    def tolerates(self, updates: int) -> int:
        """Return the number of values that are left out at each end."""
        return math.floor(round(self.share * updates, 9))  # a product such as 0.29 * 100 is below the exact one

    def aggregate(self, updates: Updates, memory: State, key: Key) -> Aggregate:
        """Return the trimmed mean of each entry."""
        trimmed = torch.tensor([self.tolerates(number) for number in range(updates.count + 1)])

        def combine(ranked: Tensor, holders: Tensor) -> Tensor:
            out = trimmed.to(holders.device)[holders]
            rank = torch.arange(len(ranked), device=ranked.device)[:, None]
            kept = (rank >= out) & (rank < holders - out)
            return torch.where(kept, ranked, 0).sum(0) / (holders - 2 * out).clamp(min=1)

        return Aggregate(by_coordinate(updates, combine, self.min_updates))


def middle(ranked: Tensor, holders: Tensor) -> Tensor:
    """Return the median of the first ``holders`` values of each sorted column."""
    low, high = ((holders - 1).clamp(min=0) // 2)[None], (holders // 2)[None]
    # Halved before the sum, which cannot overflow then.
    return (ranked.gather(0, low) / 2 + ranked.gather(0, high) / 2)[0]


def by_coordinate(updates: Updates, combine: Combine, min_holders: int) -> Tensor:
    """Return the combination of each entry's values."""
    found = updates.like.new_empty(updates.size)
    for chunk in updates.chunks():
        found[chunk.at] = torch.cat([_combined(rows, held, combine) for rows, held in blocks(chunk)])
    if not updates.partial:
        return found
    holders = updates.holders()
    few = (holders > 0) & (holders < min_holders)
    if bool(few.any()):
        norms = updates.norms()
        found = torch.where(few, updates.mean(updates.equal_weights, shrink(norms, bound("median", norms))), found)
    return torch.where(holders > 0, found, 0)


def _combined(rows: Tensor, held: Tensor | None, combine: Combine) -> Tensor:
    if held is None:
        return combine(_sorted(rows), torch.full_like(rows[0], len(rows), dtype=torch.int64))
    ranked = _sorted(torch.where(held, rows, torch.inf))  # values that do not count are last
    return combine(ranked, held.sum(0))


def _sorted(rows: Tensor) -> Tensor:
    """Sort each column. On a CPU, NumPy is several times faster."""
    return rows.sort(0).values if rows.is_cuda else torch.from_numpy(np.sort(rows.numpy(), axis=0))


# Before another rule.


@dataclass(frozen=True)
class Bucketing(Rule):
    """A rule on the means of random buckets of updates, which are shuffled in every round.

    Where the data of clients differ, a median or Krum favours the majority and drops honest minorities; the means of
    buckets are more alike. Updates count equally in a bucket, and buckets count equally.

    Breaking point: a hostile update spoils its bucket, so of n updates as many may be hostile as the rule tolerates of
    ceil(n / size) values. The last bucket is smaller if ``size`` does not divide n.

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
