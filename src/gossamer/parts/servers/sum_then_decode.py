"""A mean that is taken before anything is decoded: messages are added up as they are, and decoded once.

That needs codes of which means make sense, such as signs of random measurements: clients of a round then measure alike
(``common``). Those who hold the same part of the model share one sum; where parts
differ, each has a sum of its own, and the decoded means are put together.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from gossamer.core.exchange import Arrival, Assignment
from gossamer.core.types import Clock, Layout, Params, State
from gossamer.parts.servers.mean import Mean, Sum


@dataclass
class PartSum:
    """Clients with the same part: the first of them, and the sum of all codes."""

    first: Arrival
    total: Tensor
    weight: float = 0.0

    def fits(self, layout: Layout) -> bool:
        """Whether somebody with this layout holds the same."""
        mine = self.first.layout
        same = mine == layout and mine.held.keys() == layout.held.keys()
        return same and all(torch.equal(at, layout.held[name]) for name, at in mine.held.items())


@dataclass
class PartSums:
    """The sums of a round."""

    groups: list[PartSum] = field(default_factory=list)


@dataclass(frozen=True)
class SumThenDecode(Mean):
    """Averages codes, and decodes the mean."""

    def begin(self, state: State, assigned: Mapping[int, Assignment]) -> PartSums:  # type: ignore[override]
        """Nothing yet."""
        return PartSums()

    def fold(self, acc: PartSums, arrival: Arrival) -> PartSums:  # type: ignore[override]
        """Add one client's code, times its weight, to the sum of those with its part."""
        assert arrival.to_sum is not None
        vector, weight = arrival.to_sum(), self.weigh(arrival)
        group = next((group for group in acc.groups if group.fits(arrival.layout)), None)
        if group is None:
            group = PartSum(arrival, torch.zeros_like(vector))
            acc.groups.append(group)
        group.total.add_(vector, alpha=weight)
        group.weight += weight
        return acc

    def finish(self, state: State, acc: PartSums, clock: Clock) -> State:  # type: ignore[override]
        """Decode each mean once, and move the model as ``Mean`` does."""
        total: Sum = self.empty(state["params"])
        for group in acc.groups:
            self.add(total, self._decoded(group), group.weight)
        return super().finish(state, total, clock)

    def _decoded(self, group: PartSum) -> Arrival:
        first = group.first
        assert first.from_sum is not None
        change: Params = first.layout.unflatten(first.from_sum(group.total / group.weight))
        return Arrival.of(first.client, first.part, change, first.samples)
