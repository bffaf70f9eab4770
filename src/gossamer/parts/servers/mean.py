"""The weighted mean of the clients' changes, over the cohort or over the holders of each entry.

Both are the same sum with another denominator. With ``over="cohort"`` an entry that a client does not hold counts as
unchanged by it: ``w + sum_k p_k m_k D_k / sum_k p_k`` (federated averaging, FedSpa, sub-model training). With
``over="holders"`` each entry is averaged over those who hold it: ``w + sum_k p_k m_k D_k / sum_k p_k m_k`` (HeteroFL,
FedRolex, Sub-FedAvg). An entry that nobody holds keeps its value; where everybody holds everything the two agree.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from gossamer.core import tree
from gossamer.core.errors import require, wrong
from gossamer.core.exchange import Arrival, Assignment, Context
from gossamer.core.server import BoundServer
from gossamer.core.types import Clock, Layout, Params, State

Weighting = Literal["samples", "batches", "uniform"]


@dataclass
class Sum:
    """A running weighted sum of changes, laid out over the whole model; ``total`` is ``vector`` in its shapes."""

    like: Params
    vector: Tensor
    total: Params
    cover: Params | None
    weight: float = 0.0

    def mean(self) -> Params:
        """The sum, divided once: by all weight, or each entry by that of its holders; 0 where there are none."""
        if self.cover is None:
            return {name: total / self.weight for name, total in self.total.items()}
        held = {name: torch.where(cover > 0, cover, 1) for name, cover in self.cover.items()}
        return {name: total / held[name] for name, total in self.total.items()}


@dataclass(frozen=True)
class Mean(BoundServer):
    """Averages what arrives.

    Args:
        weights: what a client counts for: its samples, its batches, or one each (uniform)
        over: cohort divides by all who arrived, holders divides each entry by those who hold it
        radius: the largest norm of the model, which is projected onto that ball after each round; none is no ball
        server_lr: server learning rate: the model moves by this much times the mean
    """

    weights: Weighting = "samples"
    over: Literal["cohort", "holders"] = "cohort"
    radius: float | None = None
    server_lr: float = 1.0

    def __post_init__(self) -> None:
        require(
            (
                self.weights in ("samples", "batches", "uniform"),
                wrong(self, "weights", "must be samples, batches or uniform"),
            ),
            (self.over in ("cohort", "holders"), wrong(self, "over", "must be cohort or holders")),
            (self.radius is None or self.radius > 0, wrong(self, "radius", "must be positive")),
            (0 < self.server_lr < math.inf, wrong(self, "server_lr", "must be a positive number")),
        )

    def fixed_rate(self) -> tuple[bool, str]:
        """The rule of a server to which a learning rate means nothing."""
        return self.server_lr == 1, wrong(self, "server_lr", "must be 1: this server does not use it")

    def bind(self, context: Context) -> "Mean":
        """Where clients are drawn by their size, each that is drawn counts alike."""
        return replace(self, weights=context.sampler.weights or self.weights)

    def weigh(self, arrival: Arrival) -> float:
        """What an arrival counts for: samples, batches or one."""
        return float({"samples": arrival.samples, "batches": arrival.batches, "uniform": 1}[self.weights])

    def begin(self, state: State, assigned: Mapping[int, Assignment]) -> Sum:
        """Zero, in the shape of the model."""
        return self.empty(state["params"])

    def empty(self, like: Params) -> Sum:
        """Zero, in the shape of a model."""
        layout = Layout.of(like)
        vector = torch.zeros(layout.size, dtype=layout.dtype, device=tree.device(like))
        cover = {name: torch.zeros_like(tensor) for name, tensor in like.items()} if self.over == "holders" else None
        return Sum(like, vector, layout.unflatten(vector), cover)

    def fold(self, acc: Sum, arrival: Arrival) -> Sum:
        """Add one client's change, times its weight."""
        return self.add(acc, arrival, self.weigh(arrival))

    def add(self, acc: Sum, arrival: Arrival, weight: float) -> Sum:
        """Add one client's change, times a weight."""
        if arrival.part.whole:
            arrival.add(acc.vector, weight)
        else:
            arrival.part.add(acc.total, arrival.change(acc.vector.device), weight)
        if acc.cover is not None:
            arrival.part.add(acc.cover, arrival.part.ones(acc.like), weight)
        acc.weight += weight
        return acc

    def finish(self, state: State, acc: Sum, clock: Clock) -> State:
        """Divide once, and move the model."""
        if acc.weight == 0:
            return state
        params: Params = state["params"]
        moved = {name: params[name].add(mean, alpha=self.server_lr) for name, mean in acc.mean().items()}
        return {**state, "params": self.projected(moved)}

    def projected(self, params: Params) -> Params:
        """The nearest model in the ball."""
        if self.radius is None:
            return params
        shrink = (self.radius / tree.norm(params)).clamp(max=1)
        return {name: tensor * shrink for name, tensor in params.items()}
