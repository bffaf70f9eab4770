"""Dimensions of tensors as products of channel groups and numbers of entries, or as concatenations of these."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor


@dataclass(frozen=True)
class Factor:
    """A factor of a dimension: a group, a number of entries that are all kept, or a concatenation of dimensions."""

    size: int
    group: str | None = None
    parts: tuple["Axis", ...] = ()

    @property
    def groups(self) -> set[str]:
        """Groups in the factor."""
        return {self.group} if self.group else {group for part in self.parts for group in part.groups}

    def chosen(self, channels: Mapping[str, Tensor]) -> Tensor:
        """Return the kept indices, given the kept channels of some groups."""
        if self.group is not None and self.group in channels:
            return channels[self.group]
        if not self.groups & channels.keys():
            return torch.arange(self.size)
        starts = [0]
        for part in self.parts:
            starts.append(starts[-1] + part.size)
        return torch.cat([start + part.chosen(channels) for start, part in zip(starts, self.parts, strict=False)])

    def runs(self) -> list["Run"] | None:
        """Return the entries as runs; none if channels of a group are multiplied with others."""
        if not self.parts or not self.groups:
            return [Run(self.size, self.group)]
        found: list[Run] = []
        for part in self.parts:
            if (runs := part.runs()) is None:
                return None
            found += runs
        return found


@dataclass(frozen=True)
class Axis:
    """A dimension of a tensor as a product of factors, the outermost first."""

    factors: tuple[Factor, ...]

    @property
    def size(self) -> int:
        """Number of entries."""
        return math.prod(factor.size for factor in self.factors)

    @property
    def groups(self) -> set[str]:
        """Groups in the dimension."""
        return {group for factor in self.factors for group in factor.groups}

    def chosen(self, channels: Mapping[str, Tensor]) -> Tensor:
        """Return the kept indices, given the kept channels of some groups."""
        indices = torch.zeros(1, dtype=torch.int64)
        for factor in self.factors:
            indices = (indices.view(-1, 1) * factor.size + factor.chosen(channels)).view(-1)
        return indices

    def runs(self) -> list["Run"] | None:
        """Return the entries from first to last as runs; none if channels of a group are multiplied with others."""
        found: list[Run] | None = [Run(1)]
        for factor in self.factors:
            found = _times(found, factor.runs()) if found else None
        return found

    @classmethod
    def of_runs(cls, runs: Sequence["Run"]) -> "Axis":
        """Create a dimension from a concatenation of runs."""
        if len(runs) == 1:
            return runs[0].axis()
        return cls((Factor(sum(run.entries for run in runs), None, tuple(run.axis() for run in runs)),))


@dataclass(frozen=True)
class Run:
    """Neighbouring entries of a dimension.

    Args:
        size: number of channels of the group; without a group, number of entries
        group: the group; none means entries that are all kept
        often: number of repetitions of the channels
        each: number of entries per channel
    """

    size: int
    group: str | None = None
    often: int = 1
    each: int = 1

    @property
    def entries(self) -> int:
        """Number of entries."""
        return self.often * self.size * self.each

    def axis(self) -> Axis:
        """Return a dimension with only this run."""
        factors = (Factor(self.often), Factor(self.size, self.group), Factor(self.each))
        return Axis(tuple(f for f in factors if f.size > 1 or f.group) or (Factor(1),))


def _times(outer: list[Run], inner: list[Run] | None) -> list[Run] | None:
    """Return the runs of a product; none if two groups are multiplied."""
    if inner is None:
        return None
    if len(inner) == 1 and inner[0].group is None:
        count = inner[0].entries
        return [replace(run, each=run.each * count) if run.group else Run(run.entries * count) for run in outer]
    if len(outer) == 1 and outer[0].group is None:
        count = outer[0].entries
        return [replace(run, often=run.often * count) for run in inner] if len(inner) == 1 else inner * count
    return None
