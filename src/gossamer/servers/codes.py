"""A mean that is taken before anything is decoded: messages are added up as they are, and decoded once.

That needs codes of which means make sense, such as signs of random measurements: clients of a round then measure alike
(:attr:`~gossamer.codecs.Codec.common`). Those who hold the same part of the model share one sum; where parts differ,
each has a sum of its own, and the decoded means are put together.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from gossamer.exchange import Arrival, Assignment
from gossamer.servers.mean import Mean, Sum
from gossamer.types import Clock, Layout, Params, State


@dataclass
class Group:
    """Clients with the same part: the first of them, and the sum of all codes."""

    first: Arrival
    code: Tensor
    weight: float = 0.0

    def fits(self, layout: Layout) -> bool:
        """Whether somebody with this layout holds the same."""
        mine = self.first.layout
        same = mine == layout and mine.held.keys() == layout.held.keys()
        return same and all(torch.equal(at, layout.held[name]) for name, at in mine.held.items())


@dataclass
class Codes:
    """The sums of a round."""

    groups: list[Group] = field(default_factory=list)


@dataclass(frozen=True)
class CodedMean(Mean):
    """Averages codes, and decodes the mean.

    weights: what a client counts for: its samples, its batches, or one each (uniform)
    over: cohort divides by all who arrived, holders divides each entry by those who hold it
    radius: the largest norm of the model, which is projected onto that ball after each round; none is no ball
    step: 1, as what is decoded is taken as it is
    """

    def begin(self, state: State, assigned: Mapping[int, Assignment]) -> Codes:  # type: ignore[override]
        """Nothing yet."""
        return Codes()

    def fold(self, acc: Codes, arrival: Arrival) -> Codes:  # type: ignore[override]
        """Add one client's code, times its weight, to the sum of those with its part."""
        assert arrival.code is not None
        code, weight = arrival.code(), self.weigh(arrival)
        group = next((group for group in acc.groups if group.fits(arrival.layout)), None)
        if group is None:
            group = Group(arrival, torch.zeros_like(code))
            acc.groups.append(group)
        group.code.add_(code, alpha=weight)
        group.weight += weight
        return acc

    def finish(self, state: State, acc: Codes, clock: Clock) -> State:  # type: ignore[override]
        """Decode each mean once, and move the model as :class:`Mean` does."""
        total: Sum = self.empty(state["params"])
        for group in acc.groups:
            self.add(total, self._decoded(group), group.weight)
        return super().finish(state, total, clock)

    def _decoded(self, group: Group) -> Arrival:
        first = group.first
        assert first.restore is not None
        change: Params = first.layout.unflatten(first.restore(group.code / group.weight))
        return Arrival.of(first.client, first.part, change, first.samples)
