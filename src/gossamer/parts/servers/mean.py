"""Weighted mean of client updates, over the cohort or over the holders of each entry.

The two differ in the denominator. Client k has weight p_k, 0/1 mask m_k and update D_k:

    over="cohort"     w + sum_k p_k m_k D_k / sum_k p_k        an entry outside a client's part counts as an update of 0
                                                               (FedAvg, FedSpa, sub-model training)
    over="holders"    w + sum_k p_k m_k D_k / sum_k p_k m_k    each entry is averaged over the clients that hold it
                                                               (HeteroFL, FedRolex, Sub-FedAvg)

An entry that no client holds keeps its value. If all clients hold the whole model, the two are equal.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from gossamer.core import tree
from gossamer.core.errors import require, wrong
from gossamer.core.exchange import Arrival, Assignment, Context
from gossamer.core.server import ReplayableServer, SumServer
from gossamer.core.types import Clock, Layout, Params, State

Weighting = Literal["samples", "batches", "uniform"]
"""Client weights in a mean: number of samples, number of batches, or equal."""


@dataclass
class Sum:
    """Running weighted sum of updates over the whole model. ``total`` is a view of ``vector`` in the model's shapes."""

    like: Params
    vector: Tensor
    total: Params
    cover: Params | None
    weight: float = 0.0

    def mean(self) -> Params:
        """Return the sum divided by the total weight, or per entry by its holders' weight (0 without holders)."""
        if self.cover is None:
            # A tensor, because a GPU divides by a number by multiplying with its inverse, which is rounded differently.
            weight = self.vector.new_tensor(self.weight)
            return {name: total / weight for name, total in self.total.items()}
        held = {name: torch.where(cover > 0, cover, 1) for name, cover in self.cover.items()}
        return {name: total / held[name] for name, total in self.total.items()}


@dataclass(frozen=True)
class Mean(ReplayableServer, SumServer):
    """Weighted mean of client updates.

    Args:
        weights: client weights: number of samples, number of batches, or equal (uniform)
        over: average each entry over all clients of the cohort, or over the holders of the entry
        radius: maximum norm of the model, enforced by projection after each round; none disables it
        server_lr: server learning rate, the factor of the mean update
    """

    replays: ClassVar[bool] = True
    folds_sums: ClassVar[bool] = True
    mean_only: ClassVar[bool] = True

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

    def takes_any_mean(self) -> bool:
        """Return whether ``finish`` reads only ``mean()`` and ``weight`` of the sum, which a robust rule can replace.

        Each class declares it for itself, as ``mean_only``: a subclass that declares nothing takes no rule.
        """
        return bool(vars(type(self)).get("mean_only", False))

    def fixed_rate(self) -> tuple[bool, str]:
        """Return the check of servers that do not use ``server_lr``, with its error message."""
        return self.server_lr == 1, wrong(self, "server_lr", "must be 1: this server does not use it")

    def bind(self, context: Context) -> "Mean":
        """Return the server with the weights that the sampler requires, if any."""
        return replace(self, weights=context.sampler.weights or self.weights)

    def weigh(self, arrival: Arrival) -> float:
        """Return the weight of an arrival: samples, batches or 1."""
        return float({"samples": arrival.samples, "batches": arrival.batches, "uniform": 1}[self.weights])

    @property
    def equal_weights(self) -> bool:
        """Whether all clients have the weight 1."""
        return self.weights == "uniform"

    def begin(self, state: State, assigned: Mapping[int, Assignment]) -> Sum:
        """Return an empty sum in the shape of the global model."""
        return self.empty(state["params"])

    def empty(self, like: Params) -> Sum:
        """Return an empty sum in the shape of a model."""
        layout = Layout.of(like)
        vector = torch.zeros(layout.size, dtype=layout.dtype, device=tree.device(like))
        cover = {name: torch.zeros_like(tensor) for name, tensor in like.items()} if self.over == "holders" else None
        return Sum(like, vector, layout.unflatten(vector), cover)

    def fold(self, acc: Sum, arrival: Arrival) -> Sum:
        """Add one client's update, multiplied by its weight."""
        return self.add(acc, arrival, self.weigh(arrival))

    def add(self, acc: Sum, arrival: Arrival, weight: float) -> Sum:
        """Add one client's update, multiplied by ``weight``."""
        self.spread(acc, arrival, weight)
        return self.counted(acc, arrival, weight)

    def spread(self, acc: Sum, arrival: Arrival, weight: float) -> None:
        """Add ``weight`` times the update to the entries of the arrival's part, and leave the total weight."""
        if arrival.part.whole:
            arrival.add(acc.vector, weight)
        elif arrival.part.masked and arrival.layout.held is not None:  # all tensors at once
            acc.vector.add_(arrival.layout.spread(arrival.vector(acc.vector.device)), alpha=weight)
        else:
            arrival.part.add(acc.total, arrival.change(acc.vector.device), weight)

    def fold_sum(self, acc: Sum, arrival: Arrival, total: Tensor, clients: int) -> Sum:
        """Add the decoded mean of several clients' vectors, multiplied by their number."""
        assert arrival.from_sum is not None
        exact = total.double()  # sums of 16-bit numbers can exceed what float32 holds exactly
        mean = arrival.from_sum(exact / exact.new_tensor(clients))
        return self.add(acc, with_vector(arrival, mean), float(clients))

    def counted(self, acc: Sum, arrival: Arrival, weight: float) -> Sum:
        """Add the weight of a client whose update was added."""
        if acc.cover is not None:
            arrival.part.add(acc.cover, arrival.part.ones(acc.like), weight)
        acc.weight += weight
        return acc

    def finish(self, state: State, acc: Sum, clock: Clock) -> State:
        """Add the mean update, multiplied by the server learning rate, to the model."""
        if acc.weight == 0:
            return state
        params: Params = state["params"]
        # Product and sum are separate operations: fused, they would be rounded once, and not on every device.
        moved = {name: params[name] + mean * self.server_lr for name, mean in acc.mean().items()}
        return {**state, "params": self.projected(moved)}

    def unreplayable(self) -> str:
        """Return that the norm of ``radius`` depends on all tensors, if it is set."""
        radius = f"{type(self).__name__}.radius depends on all tensors of the model" if self.radius else ""
        return super().unreplayable() or radius

    def projected(self, params: Params) -> Params:
        """Project a model onto the ball of norm ``radius``."""
        if self.radius is None:
            return params
        shrink = (self.radius / tree.norm(params)).clamp(max=1)
        return {name: tensor * shrink for name, tensor in params.items()}


def with_vector(arrival: Arrival, vector: Tensor) -> Arrival:
    """Return an arrival with the same part and layout whose update is a given vector."""
    return Arrival.laid(arrival.client, arrival.part, arrival.layout, vector, arrival.samples)
