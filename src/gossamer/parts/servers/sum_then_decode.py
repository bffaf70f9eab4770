"""Mean of encoded updates, decoded once.

This needs codes that can be averaged, such as the signs of random measurements. All clients of a round then use the
same random key (``common``). Clients with the same part of the model share one sum. Different parts have separate sums,
and their decoded means are combined.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from gossamer.core.exchange import Arrival, Assignment
from gossamer.core.server import RelayingServer
from gossamer.core.types import Clock, Layout, Params, State
from gossamer.parts.servers.mean import Mean, Sum


@dataclass
class PartSum:
    """The sum of the codes of clients with the same part, and the first of these arrivals."""

    first: Arrival
    total: Tensor
    weight: float = 0.0

    def fits(self, layout: Layout) -> bool:
        """Return whether a client with this layout holds the same part."""
        mine = self.first.layout
        if mine.held is None or layout.held is None:
            return mine == layout and mine.held is layout.held
        return mine == layout and torch.equal(mine.held, layout.held)


@dataclass
class PartSums:
    """The sums of a round, one per part."""

    groups: list[PartSum] = field(default_factory=list)


@dataclass(frozen=True)
class SumThenDecode(Mean, RelayingServer):
    """Weighted mean of codes, decoded once per round."""

    replays: ClassVar[bool] = True
    folds_sums: ClassVar[bool] = True

    def begin(self, state: State, assigned: Mapping[int, Assignment]) -> PartSums:  # type: ignore[override]
        """Return an accumulator without sums."""
        return PartSums()

    def fold(self, acc: PartSums, arrival: Arrival) -> PartSums:  # type: ignore[override]
        """Add one client's code, multiplied by its weight, to the sum of its part."""
        assert arrival.to_sum is not None
        weight = self.weigh(arrival)
        return self._add(acc, arrival, arrival.to_sum() * weight, weight)  # as in Mean.finish

    def fold_sum(  # type: ignore[override]
        self, acc: PartSums, arrival: Arrival, total: Tensor, clients: int
    ) -> PartSums:
        """Add the sum of the codes of several clients with the same part."""
        return self._add(acc, arrival, total.to(arrival.layout.dtype), float(clients))

    def total(self, acc: PartSums) -> tuple[Tensor, float] | None:
        """Return the sum of the codes if all clients hold the same part."""
        return (acc.groups[0].total, acc.groups[0].weight) if len(acc.groups) == 1 else None

    def fold_total(self, acc: PartSums, arrival: Arrival, total: Tensor, weight: float) -> PartSums:
        """Add the sum of a round's codes."""
        return self._add(acc, arrival, total, weight)

    def _add(self, acc: PartSums, arrival: Arrival, total: Tensor, weight: float) -> PartSums:
        group = next((group for group in acc.groups if group.fits(arrival.layout)), None)
        if group is None:
            group = PartSum(arrival, torch.zeros_like(total))
            acc.groups.append(group)
        group.total.add_(total)
        group.weight += weight
        return acc

    def finish(self, state: State, acc: PartSums, clock: Clock) -> State:  # type: ignore[override]
        """Decode the mean of each part, and update the model as in ``Mean``."""
        total: Sum = self.empty(state["params"])
        for group in acc.groups:
            self.add(total, self._decoded(group), group.weight)
        return super().finish(state, total, clock)

    def _decoded(self, group: PartSum) -> Arrival:
        first = group.first
        assert first.from_sum is not None
        change: Params = first.layout.unflatten(first.from_sum(group.total / group.total.new_tensor(group.weight)))
        return Arrival.of(first.client, first.part, change, first.samples)
