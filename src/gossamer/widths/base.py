"""The width rule of a network: which dimensions of its tensors are channels, and which of these are the same.

A group is channels that belong together: whoever leaves some out leaves them out in every dimension of the group. A
dimension of a tensor may hold a group as it is, several times over (``4 x``: the gates of an LSTM), with several
entries for each channel (``x 49``: channels flattened with their 7 x 7 places), or groups one behind the other.
"""

import math
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gossamer.errors import ConfigError
from gossamer.types import Params, Part

LABELS = "labels"
PLACE = re.compile(r"(?:(\d+) x )?(\S+)\[(\d+)\](?: x (\d+))?")


@dataclass(frozen=True)
class Factor:
    """A factor of a dimension: a group, a number of entries that are all kept, or dimensions one behind the other."""

    size: int
    group: str | None = None
    parts: tuple["Axis", ...] = ()

    @property
    def groups(self) -> set[str]:
        """The groups in it."""
        return {self.group} if self.group else {group for part in self.parts for group in part.groups}

    def chosen(self, channels: Mapping[str, Tensor]) -> Tensor:
        """The positions that are kept, given the channels of groups of which not all are."""
        if self.group is not None and self.group in channels:
            return channels[self.group]
        if not self.groups & channels.keys():
            return torch.arange(self.size)
        starts = [0]
        for part in self.parts:
            starts.append(starts[-1] + part.size)
        return torch.cat([start + part.chosen(channels) for start, part in zip(starts, self.parts, strict=False)])


@dataclass(frozen=True)
class Axis:
    """A dimension of a tensor as a product of factors, the outermost first."""

    factors: tuple[Factor, ...]

    @property
    def size(self) -> int:
        """How many entries it has."""
        return math.prod(factor.size for factor in self.factors)

    @property
    def groups(self) -> set[str]:
        """The groups in it."""
        return {group for factor in self.factors for group in factor.groups}

    def chosen(self, channels: Mapping[str, Tensor]) -> Tensor:
        """The positions that are kept."""
        positions = torch.zeros(1, dtype=torch.int64)
        for factor in self.factors:
            positions = (positions.view(-1, 1) * factor.size + factor.chosen(channels)).view(-1)
        return positions

    def around(self, group: str) -> tuple[int, int] | None:
        """How often a group is there, and with how many entries a channel; none where it is one of several in a row."""
        for place, factor in enumerate(self.factors):
            if factor.group == group:
                before, after = self.factors[:place], self.factors[place + 1 :]
                return math.prod(f.size for f in before), math.prod(f.size for f in after)
        return None


@dataclass(frozen=True)
class Ties:
    """A width rule by hand.

    groups: for each group its name, and the dimensions of tensors that it is, such as ``fc.weight[1]``. The group
        ``labels`` is never narrowed: it says which dimensions have an entry for each label
    """

    groups: tuple[tuple[str, tuple[str, ...]], ...]

    @classmethod
    def of_text(cls, path: str) -> "Ties":
        """From a file in TOML, with a line for each group: ``hidden = ["0.weight[0]", "0.bias[0]", "2.weight[1]"]``."""
        try:
            return ties(tomllib.loads(Path(path).read_text(encoding="utf-8")))
        except OSError as error:
            raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
        except ValueError as error:
            raise ConfigError(f"{path}: is not a width rule: {error}") from error


def ties(groups: Mapping[str, Any]) -> Ties:
    """A width rule by hand, of a dictionary: ``{"hidden": ["0.weight[0]", "0.bias[0]", "2.weight[1] x 49"]}``."""
    for name, places in groups.items():
        if not isinstance(places, list | tuple) or not all(isinstance(place, str) for place in places):
            raise ConfigError(f"widths: group {name} must be a list of dimensions such as weight[0]")
    return Ties(tuple((name, tuple(places)) for name, places in groups.items()))


@dataclass(frozen=True)
class Widths:
    """The groups of a network with their sizes, and where they are.

    sizes: how many channels each group has
    axes: for each tensor its dimensions
    labels: which dimensions hold one entry a label: those that the network's output comes from
    """

    sizes: tuple[tuple[str, int], ...]
    axes: tuple[tuple[str, tuple[Axis, ...]], ...]
    labels: tuple[tuple[str, int], ...] = ()

    def part(self, channels: Mapping[str, Tensor], device: torch.device) -> Part:
        """The part of the model that has these channels of the groups named, and all others."""
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

    def places(self, group: str) -> Iterator[str]:
        """Where a group is, as it would be stated by hand."""
        for name, axes in self.axes:
            for dim, axis in enumerate(axes):
                if group in axis.groups:
                    yield _written(name, dim, axis.around(group))

    @classmethod
    def stated(cls, ties: Ties, like: Params) -> "Widths":
        """The rule as it is stated by hand."""
        return _Reading(like).rule(ties)


def _written(name: str, dim: int, around: tuple[int, int] | None) -> str:
    if around is None:
        return f"{name}[{dim}] in part"
    often, each = around
    return f"{often} x " * (often > 1) + f"{name}[{dim}]" + f" x {each}" * (each > 1)


class _Reading:
    """Reads a rule that is stated by hand, and collects what is wrong with it."""

    def __init__(self, like: Params) -> None:
        self.like = like
        self.mistakes: list[str] = []
        self.axes: dict[str, list[Axis]] = {
            name: [Axis((Factor(size),)) for size in tensor.shape] for name, tensor in like.items()
        }

    def rule(self, ties: Ties) -> Widths:
        sizes = {group: self.group(group, places) for group, places in ties.groups if group != LABELS}
        labels = [self.label(text) for group, places in ties.groups if group == LABELS for text in places]
        names = [group for group, _ in ties.groups]
        twice = sorted({group for group in names if names.count(group) > 1})
        self.mistakes += [f"widths: group {group} is stated twice: list all its places together" for group in twice]
        self.mistakes += [f"widths: group {group} has no places" for group, places in ties.groups if not places]
        if self.mistakes:
            raise ConfigError(*self.mistakes)
        axes = tuple((name, tuple(axes)) for name, axes in self.axes.items())
        return Widths(tuple(sizes.items()), axes, tuple(found for found in labels if found))

    def label(self, text: str) -> tuple[str, int] | None:
        size = self.place(LABELS, text)
        match = PLACE.fullmatch(text.strip())
        if size is None or match is None:
            return None
        name, dim = match[2], int(match[3])
        self.axes[name][dim] = Axis((Factor(self.like[name].shape[dim]),))
        return name, dim

    def group(self, group: str, places: Sequence[str]) -> int:
        found = {text: size for text in places if (size := self.place(group, text)) is not None}
        if len(set(found.values())) > 1:
            told = ", ".join(f"{text} has {size}" for text, size in found.items())
            self.mistakes.append(f"widths: group {group} must have as many channels everywhere, but {told}")
        return next(iter(found.values()), 0)

    def place(self, group: str, text: str) -> int | None:
        match = PLACE.fullmatch(text.strip())
        if match is None or match[2] not in self.like or int(match[3]) >= self.like[match[2]].dim():
            self._wrong(
                group, text, "is no dimension of a tensor: write it as weight[0], 4 x weight[0] or weight[1] x 49"
            )
            return None
        name, dim, often, each = match[2], int(match[3]), int(match[1] or 1), int(match[4] or 1)
        total = self.like[name].shape[dim]
        if not often * each or total % (often * each):
            self._wrong(group, text, f"does not fit: that dimension has {total} entries")
            return None
        if self.axes[name][dim].groups:
            self._wrong(group, text, f"belongs to group {', '.join(self.axes[name][dim].groups)} already")
            return None
        size = total // (often * each)
        factors = (Factor(often), Factor(size, group), Factor(each))
        self.axes[name][dim] = Axis(tuple(f for f in factors if f.size > 1 or f.group))
        return size

    def _wrong(self, group: str, text: str, what: str) -> None:
        self.mistakes.append(f"widths: {text!r} of group {group} {what}")
