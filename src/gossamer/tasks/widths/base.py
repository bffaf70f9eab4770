"""The width rule of a network: which dimensions of its tensors are channels, and which of them share channels.

A group is a set of tied channels: a channel that is removed is removed in every dimension of its group. A dimension of
a tensor has one of these forms:

- the channels of a group;
- the channels repeated (``4 x``: the gates of an LSTM);
- several entries per channel (``x 49``: channels flattened with 7 x 7 pixels);
- a concatenation of groups (``[0:64]``: its first 64 entries).

In general a dimension (``Axis``) is a product of factors: channel groups, numbers of entries, or concatenations.
"""

import math
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gossamer.core.errors import ConfigError
from gossamer.core.types import Params, Part


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


LABELS = "labels"
DIMENSION = re.compile(r"(?:(\d+) x )?(\S+)\[(\d+)\](?:\[(\d+):(\d+)\])?(?: x (\d+))?")


@dataclass(frozen=True)
class Ties:
    """A width rule stated by hand.

    Args:
        groups: for each group its name and its dimensions of tensors, such as ``fc.weight[1]``, or a range of entries,
            ``fc.weight[1][0:64]``. The group ``labels`` is never narrowed: it lists the dimensions with one entry per
            label
    """

    groups: tuple[tuple[str, tuple[str, ...]], ...]

    @classmethod
    def of_text(cls, path: str) -> "Ties":
        """Read a TOML file with one line per group: ``hidden = ["0.weight[0]", "0.bias[0]", "2.weight[1]"]``."""
        try:
            return ties(tomllib.loads(Path(path).read_text(encoding="utf-8")))
        except OSError as error:
            raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
        except ValueError as error:
            raise ConfigError(f"{path}: is not a width rule: {error}") from error


def ties(groups: Mapping[str, Any]) -> Ties:
    """Create a rule from a dictionary: ``{"hidden": ["0.weight[0]", "0.bias[0]", "2.weight[1] x 49"]}``."""
    for name, dims in groups.items():
        if not isinstance(dims, list | tuple) or not all(isinstance(dim, str) for dim in dims):
            raise ConfigError(f"widths: group {name} must be a list of dimensions such as weight[0]")
    return Ties(tuple((name, tuple(dims)) for name, dims in groups.items()))


@dataclass(frozen=True)
class Widths:
    """The groups of a network, with their sizes and dimensions.

    Args:
        sizes: number of channels of each group
        axes: the dimensions of each tensor
        labels: dimensions with one entry per label, from which the network's output is computed
    """

    sizes: tuple[tuple[str, int], ...]
    axes: tuple[tuple[str, tuple[Axis, ...]], ...]
    labels: tuple[tuple[str, int], ...] = ()

    def part(self, channels: Mapping[str, Tensor], device: torch.device) -> Part:
        """Return the part of the model with the given channels of some groups, and all channels of the others."""
        kept: dict[Axis, Tensor] = {}
        index: dict[str, tuple[Tensor | None, ...]] = {}
        for name, axes in self.axes:
            if any(axis.groups & channels.keys() for axis in axes):
                index[name] = tuple(self._positions(axis, channels, kept, device) for axis in axes)
        return Part(index=index)

    def _positions(
        self, axis: Axis, channels: Mapping[str, Tensor], kept: dict[Axis, Tensor], device: torch.device
    ) -> Tensor | None:
        if not axis.groups & channels.keys():
            return None
        if axis not in kept:
            kept[axis] = axis.chosen(channels).to(device)
        return kept[axis]

    def members(self, group: str) -> Iterator[str]:
        """Yield the dimensions of a group in the syntax of ``Ties``; products of groups have no such syntax."""
        for name, axes in self.axes:
            for dim, axis in enumerate(axes):
                if group in axis.groups:
                    yield from _written(f"{name}[{dim}]", axis.runs(), group)

    @property
    def multiplied(self) -> list[str]:
        """Dimensions that ``Ties`` cannot state, because channels of a group are multiplied with others."""
        found = ((f"{name}[{dim}]", axis) for name, axes in self.axes for dim, axis in enumerate(axes))
        return [dim for dim, axis in found if axis.runs() is None]

    @classmethod
    def stated(cls, ties: Ties, like: Params) -> "Widths":
        """Build the rule from a statement by hand."""
        return _Reading(like).rule(ties)


def _written(dim: str, runs: list[Run] | None, group: str) -> Iterator[str]:
    if runs is None:
        yield f"{dim} times others"
    start = 0
    for run in runs or ():
        entries = f"[{start}:{start + run.entries}]" if len(runs or ()) > 1 else ""
        start += run.entries
        if run.group == group:
            yield f"{run.often} x " * (run.often > 1) + dim + entries + f" x {run.each}" * (run.each > 1)


class GroupSlice(NamedTuple):
    """A range of entries of a dimension (``last`` is exclusive) that belongs to a group."""

    first: int
    last: int
    run: Run


class _Reading:
    """Reads a rule stated by hand, and collects its mistakes."""

    def __init__(self, like: Params) -> None:
        self.like = like
        self.mistakes: list[str] = []
        self.slices: dict[tuple[str, int], list[GroupSlice]] = {
            (name, dim): [] for name, tensor in like.items() for dim in range(tensor.dim())
        }

    def rule(self, ties: Ties) -> Widths:
        sizes = {group: self.group(group, dims) for group, dims in ties.groups if group != LABELS}
        labels = [self.label(text) for group, dims in ties.groups if group == LABELS for text in dims]
        names = [group for group, _ in ties.groups]
        twice = sorted({group for group in names if names.count(group) > 1})
        self.mistakes += [f"widths: group {group} is stated twice: list all its dimensions together" for group in twice]
        self.mistakes += [f"widths: group {group} has no dimensions" for group, dims in ties.groups if not dims]
        if self.mistakes:
            raise ConfigError(*self.mistakes)
        axes = tuple((name, tuple(self.axis(name, dim) for dim in range(t.dim()))) for name, t in self.like.items())
        return Widths(tuple(sizes.items()), axes, tuple(found for found in labels if found))

    def axis(self, name: str, dim: int) -> Axis:
        """Return a dimension; entries without a group are always kept."""
        runs, at = [], 0
        for first, last, run in sorted(self.slices[name, dim]):
            runs += [Run(first - at)] * (first > at) + [run]
            at = last
        rest = self.like[name].shape[dim] - at
        return Axis.of_runs(runs + [Run(rest)] * (rest > 0 or not runs))

    def label(self, text: str) -> tuple[str, int] | None:
        size = self.add(LABELS, text)
        match = DIMENSION.fullmatch(text.strip())
        if size is None or match is None:
            return None
        name, dim = match[2], int(match[3])
        self.slices[name, dim].pop()  # labels are not narrowed
        if size != self.like[name].shape[dim]:
            self._wrong(LABELS, text, "must be a whole dimension with an entry for each label, such as weight[0]")
        return name, dim

    def group(self, group: str, dims: Sequence[str]) -> int:
        found = {text: size for text in dims if (size := self.add(group, text)) is not None}
        if len(set(found.values())) > 1:
            listed = ", ".join(f"{text} has {size}" for text, size in found.items())
            self.mistakes.append(f"widths: group {group} must have equal numbers of channels, but {listed}")
        return next(iter(found.values()), 0)

    def add(self, group: str, text: str) -> int | None:
        """Add a dimension to a group, and return its number of channels."""
        match = DIMENSION.fullmatch(text.strip())
        if match is None or (match[2], int(match[3])) not in self.slices:
            forms = "weight[0], 4 x weight[0], weight[1] x 49 or, of a concatenation, weight[1][0:64]"
            self._wrong(group, text, f"is no dimension of a tensor: write it as {forms}")
            return None
        name, dim, often, each = match[2], int(match[3]), int(match[1] or 1), int(match[6] or 1)
        total = self.like[name].shape[dim]
        first, last = int(match[4] or 0), int(match[5] or total)
        if not (often * each and first < last <= total) or (last - first) % (often * each):
            self._wrong(group, text, f"does not fit: that dimension has {total} entries")
            return None
        taken = {str(p.run.group) for p in self.slices[name, dim] if p.first < last and first < p.last}
        if taken:
            self._wrong(group, text, f"belongs to group {', '.join(sorted(taken))} already")
            return None
        size = (last - first) // (often * each)
        self.slices[name, dim].append(GroupSlice(first, last, Run(size, group, often, each)))
        return size

    def _wrong(self, group: str, text: str, what: str) -> None:
        self.mistakes.append(f"widths: {text!r} of group {group} {what}")
