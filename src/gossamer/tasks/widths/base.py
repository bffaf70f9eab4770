"""The width rule of a network: which dimensions of its tensors are channels, and which of these are the same.

A group is channels that belong together: whoever leaves some out leaves them out in every dimension of the group. A
dimension of a tensor may hold a group as it is, several times over (``4 x``: the gates of an LSTM), with several
entries for each channel (``x 49``: channels flattened with their 7 x 7 places), or groups one behind the other
(``[0:64]``: the first 64 entries of a concatenation).
"""

import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gossamer.core.errors import ConfigError
from gossamer.core.types import Params, Part
from gossamer.tasks.widths.axes import Axis, Run

LABELS = "labels"
PLACE = re.compile(r"(?:(\d+) x )?(\S+)\[(\d+)\](?:\[(\d+):(\d+)\])?(?: x (\d+))?")


@dataclass(frozen=True)
class Ties:
    """A width rule by hand.

    Args:
        groups: for each group its name, and the dimensions of tensors that it is, such as ``fc.weight[1]``, or entries
            of
            one from a first up to a last that is left out, ``fc.weight[1][0:64]``. The group ``labels`` is never
            narrowed: it says which dimensions have an entry for each label
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

    Args:
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
        """Where a group is, as it would be stated by hand; where that cannot be, what is in the way."""
        for name, axes in self.axes:
            for dim, axis in enumerate(axes):
                if group in axis.groups:
                    yield from _written(f"{name}[{dim}]", axis.runs(), group)

    @property
    def multiplied(self) -> list[str]:
        """The dimensions that cannot be stated by hand, as channels of a group are multiplied with others there."""
        found = ((f"{name}[{dim}]", axis) for name, axes in self.axes for dim, axis in enumerate(axes))
        return [place for place, axis in found if axis.runs() is None]

    @classmethod
    def stated(cls, ties: Ties, like: Params) -> "Widths":
        """The rule as it is stated by hand."""
        return _Reading(like).rule(ties)


def _written(place: str, runs: list[Run] | None, group: str) -> Iterator[str]:
    if runs is None:
        yield f"{place} times others"
    start = 0
    for run in runs or ():
        entries = f"[{start}:{start + run.entries}]" if len(runs or ()) > 1 else ""
        start += run.entries
        if run.group == group:
            yield f"{run.often} x " * (run.often > 1) + place + entries + f" x {run.each}" * (run.each > 1)


class GroupSlice(NamedTuple):
    """Entries of a dimension, from a first up to a last that is left out, that are a group's."""

    first: int
    last: int
    run: Run


class _Reading:
    """Reads a rule that is stated by hand, and collects what is wrong with it."""

    def __init__(self, like: Params) -> None:
        self.like = like
        self.mistakes: list[str] = []
        self.places: dict[tuple[str, int], list[GroupSlice]] = {
            (name, dim): [] for name, tensor in like.items() for dim in range(tensor.dim())
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
        axes = tuple((name, tuple(self.axis(name, dim) for dim in range(t.dim()))) for name, t in self.like.items())
        return Widths(tuple(sizes.items()), axes, tuple(found for found in labels if found))

    def axis(self, name: str, dim: int) -> Axis:
        """A dimension, of which what belongs to no group is kept."""
        runs, at = [], 0
        for first, last, run in sorted(self.places[name, dim]):
            runs += [Run(first - at)] * (first > at) + [run]
            at = last
        rest = self.like[name].shape[dim] - at
        return Axis.of_runs(runs + [Run(rest)] * (rest > 0 or not runs))

    def label(self, text: str) -> tuple[str, int] | None:
        size = self.place(LABELS, text)
        match = PLACE.fullmatch(text.strip())
        if size is None or match is None:
            return None
        name, dim = match[2], int(match[3])
        self.places[name, dim].pop()  # which is not narrowed
        if size != self.like[name].shape[dim]:
            self._wrong(LABELS, text, "must be a whole dimension with an entry for each label, such as weight[0]")
        return name, dim

    def group(self, group: str, places: Sequence[str]) -> int:
        found = {text: size for text in places if (size := self.place(group, text)) is not None}
        if len(set(found.values())) > 1:
            told = ", ".join(f"{text} has {size}" for text, size in found.items())
            self.mistakes.append(f"widths: group {group} must have as many channels everywhere, but {told}")
        return next(iter(found.values()), 0)

    def place(self, group: str, text: str) -> int | None:
        """Note a place, and say how many channels it has."""
        match = PLACE.fullmatch(text.strip())
        if match is None or (match[2], int(match[3])) not in self.places:
            forms = "weight[0], 4 x weight[0], weight[1] x 49 or, of a concatenation, weight[1][0:64]"
            self._wrong(group, text, f"is no dimension of a tensor: write it as {forms}")
            return None
        name, dim, often, each = match[2], int(match[3]), int(match[1] or 1), int(match[6] or 1)
        total = self.like[name].shape[dim]
        first, last = int(match[4] or 0), int(match[5] or total)
        if not (often * each and first < last <= total) or (last - first) % (often * each):
            self._wrong(group, text, f"does not fit: that dimension has {total} entries")
            return None
        taken = {str(p.run.group) for p in self.places[name, dim] if p.first < last and first < p.last}
        if taken:
            self._wrong(group, text, f"belongs to group {', '.join(sorted(taken))} already")
            return None
        size = (last - first) // (often * each)
        self.places[name, dim].append(GroupSlice(first, last, Run(size, group, often, each)))
        return size

    def _wrong(self, group: str, text: str, what: str) -> None:
        self.mistakes.append(f"widths: {text!r} of group {group} {what}")
