"""Weighted mean of client updates, over the cohort or over the holders of each entry.

The two differ in the denominator. Client k has weight p_k, 0/1 mask m_k and update D_k:

    over="cohort"     w + sum_k p_k m_k D_k / sum_k p_k        an entry outside a client's part counts as an update of 0
                                                               (FedAvg, FedSpa, sub-model training)
    over="holders"    w + sum_k p_k m_k D_k / sum_k p_k m_k    each entry is averaged over the clients that hold it
                                                               (HeteroFL, FedRolex, Sub-FedAvg)

An entry that no client holds keeps its value. If all clients hold the whole model, the two are equal.

``WeightedMean`` is the base of all servers that aggregate by such a mean: they write ``finish``, from the mean of a
``Sum``. ``Mean`` adds it to the model. ``Listen`` is the server without any aggregation.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, Literal, Self

import torch
from torch import Tensor

from gossamer.core import tree
from gossamer.core.errors import require, wrong
from gossamer.core.exchange import Arrival, Assignment, Context
from gossamer.core.server import Server
from gossamer.core.types import Clock, Layout, Params, State

Weighting = Literal["samples", "batches", "uniform"]
"""Client weights in a mean: number of samples, number of batches, or equal."""


def weight_of(arrival: Arrival, weights: Weighting) -> float:
    """Return the weight of an arrival: samples, batches or 1."""
    if weights == "uniform":
        return 1.0
    return float(arrival.samples if weights == "samples" else arrival.batches)


@dataclass
class Sum:
    """Running weighted sum of updates over the whole model.

    Args:
        layout: names and shapes of the model's tensors
        vector: the sum
        cover: the weight of each entry's holders, where the mean is over them
        weight: the weight of all clients
    """

    layout: Layout
    vector: Tensor  # [n]
    cover: Tensor | None = None  # [n]
    weight: float = 0.0

    @classmethod
    def of(cls, like: Params, over: Literal["cohort", "holders"] = "cohort") -> Self:
        """Return an empty sum in the shape of a model."""
        layout = Layout.of(like)
        vector = torch.zeros(layout.size, dtype=layout.dtype, device=tree.device(like))
        return cls(layout, vector, torch.zeros_like(vector) if over == "holders" else None)

    @cached_property
    def total(self) -> Params:
        """The sum as tensors, which are views of ``vector``."""
        return self.layout.unflatten(self.vector)

    def add(self, arrival: Arrival, weight: float) -> None:
        """Add a client's update, multiplied by its weight."""
        self.spread(arrival, weight)
        self.count(arrival, weight)

    def spread(self, arrival: Arrival, weight: float) -> None:
        """Add ``weight`` times the update to the entries of the arrival's part, and leave the weights."""
        if arrival.part.whole:
            arrival.add(self.vector, weight)
        elif arrival.part.masked and arrival.layout.held is not None:  # all tensors at once
            self.vector.add_(arrival.layout.spread(arrival.vector(self.vector.device)), alpha=weight)
        else:
            arrival.part.add(self.total, arrival.change(self.vector.device), weight)

    def count(self, arrival: Arrival, weight: float) -> None:
        """Add the weight of a client whose update was added."""
        self.weight += weight
        if self.cover is None:
            return
        one = self.cover.new_ones(())
        if arrival.part.whole:
            self.cover.add_(one, alpha=weight)
        elif arrival.part.masked and (held := arrival.layout.held) is not None:
            self.cover.add_(arrival.layout.spread(one.expand(len(held))), alpha=weight)
        else:
            arrival.part.add(self.layout.unflatten(self.cover), arrival.part.ones(self.total), weight)

    def mean(self) -> Params:
        """Return the sum divided by the total weight, or per entry by its holders' weight (0 without holders)."""
        # A tensor, because a GPU divides by a number by multiplying with its inverse, which is rounded differently.
        weight = self.vector.new_tensor(self.weight) if self.cover is None else torch.where(self.held, self.cover, 1)
        return self.layout.unflatten(self.vector / weight)

    @property
    def held(self) -> Tensor:
        """Which entries have a holder, where the mean is over them."""
        assert self.cover is not None
        return self.cover > 0


@dataclass(frozen=True)
class WeightedMean(Server):
    """Base of servers that aggregate by a weighted mean. ``finish`` must be written; ``moved`` is that of ``Mean``.

    Args:
        weights: client weights: number of samples, number of batches, or equal (uniform)
        over: average each entry over all clients of the cohort, or over the holders of the entry
        radius: maximum norm of the model, enforced by projection after each round; none disables it
        server_lr: server learning rate, the factor of the mean update
        takes_any_mean: whether ``finish`` reads only ``mean()`` and ``weight`` of the sum, so that a robust or private
            mean may take the place of this one
    """

    takes_any_mean: ClassVar[bool] = False

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
        """Return the check of servers that do not use ``server_lr``, with its error message."""
        return self.server_lr == 1, wrong(self, "server_lr", "must be 1: this server does not use it")

    def bind(self, context: Context) -> Self:
        """Return the server with the weights that the sampler requires, if any."""
        return replace(self, weights=context.sampler.weights or self.weights)

    # A round.

    def weigh(self, arrival: Arrival) -> float:
        """Return the weight of an arrival. By default, it is its number of samples or batches, or 1."""
        return weight_of(arrival, self.weights)

    def empty(self, like: Params) -> Sum:
        """Return an empty sum in the shape of a model."""
        return Sum.of(like, self.over)

    def begin(self, state: State, assigned: Mapping[int, Assignment]) -> Any:
        """Return the accumulator: by default, an empty sum in the shape of the global model."""
        return self.empty(state["params"])

    def fold(self, acc: Any, arrival: Arrival) -> Any:
        """Add one client's update: by default, multiplied by its weight."""
        acc.add(arrival, self.weigh(arrival))
        return acc

    def moved(self, state: State, acc: Sum) -> State:
        """Return the state with the mean update, multiplied by the server learning rate, added to the model."""
        if acc.weight == 0:
            return state
        params: Params = state["params"]
        # Product and sum are separate operations: fused, they would be rounded once, and not on every device.
        moved = {name: params[name] + mean * self.server_lr for name, mean in acc.mean().items()}
        return {**state, "params": self.projected(moved)}

    def projected(self, params: Params) -> Params:
        """Project a model onto the ball of norm ``radius``."""
        if self.radius is None:
            return params
        shrink = (self.radius / tree.norm(params)).clamp(max=1)
        return {name: tensor * shrink for name, tensor in params.items()}

    # What else may take the place of the updates.

    def repeated(self, whole: bool) -> str:
        """Return why clients cannot repeat a mean and an update of each tensor by itself; empty if they can."""
        name = type(self).__name__
        if self.radius:
            return f"{name}.radius depends on all tensors of the model"
        return "" if whole else f"{name} does not declare that clients can repeat it where they hold parts of the model"

    @property
    def equal_weights(self) -> bool:
        """Whether all clients have the weight 1."""
        return self.weights == "uniform"

    def unequal(self) -> str:
        """Return that a sum of updates needs equal weights, if clients have others."""
        return "" if self.equal_weights else "clients have different weights: use weights='uniform' (--weights uniform)"

    def unsummable(self, exact: bool = False) -> str:
        """Return why a sum is not enough. By default it is where any mean is; ``fold_sum`` rounds, and is not exact."""
        return self.unequal() if self.takes_any_mean and not exact else super().unsummable(exact)

    def fold_sum(self, acc: Any, arrival: Arrival, total: Tensor, clients: int) -> Any:
        """Add the sum of several clients' vectors: by default, the decoded mean multiplied by their number."""
        assert arrival.from_sum is not None
        exact = total.double()  # sums of 16-bit numbers can exceed what float32 holds exactly
        mean = arrival.from_sum(exact / exact.new_tensor(clients))
        acc.add(with_vector(arrival, mean), float(clients))
        return acc


def with_vector(arrival: Arrival, vector: Tensor) -> Arrival:
    """Return an arrival with the same part and layout whose update is a given vector."""
    return Arrival.laid(arrival.client, arrival.part, arrival.layout, vector, arrival.samples)


def whole_vector(arrival: Arrival, model: Params, layout: Layout) -> Tensor:
    """Decode an update, and return it over the whole model, zero at entries that are not aggregated."""
    device = tree.device(model)
    if arrival.part.whole:
        return arrival.vector(device)
    if arrival.part.masked and arrival.layout.held is not None:
        return arrival.layout.spread(arrival.vector(device))
    return layout.flatten(arrival.part.spread(arrival.change(device), model))


def shrink(norms: Tensor, most: float) -> Tensor:
    """Return the factors that bring norms down to ``most``, and leave smaller ones as they are.

    The largest norm bounds the influence of one client: against poisoning (``Clip``), or as the sensitivity of the sum,
    from which the noise of differential privacy follows (``PrivateMean``, ``TreeMean``).
    """
    return torch.where(norms > most, most / norms, 1.0)


@dataclass(frozen=True)
class Mean(WeightedMean):
    """Weighted mean of client updates.

    Args:
        weights: client weights: number of samples, number of batches, or equal (uniform)
        over: average each entry over all clients of the cohort, or over the holders of the entry
        radius: maximum norm of the model, enforced by projection after each round; none disables it
        server_lr: server learning rate, the factor of the mean update
    """

    takes_any_mean: ClassVar[bool] = True

    def finish(self, state: State, acc: Sum, clock: Clock) -> State:
        """Add the mean update, multiplied by the server learning rate, to the model."""
        return self.moved(state, acc)

    def unreplayable(self, whole: bool = True) -> str:
        """Return why clients cannot repeat the mean: the norm of ``radius`` depends on all tensors, if it is set."""
        return self.repeated(whole)


@dataclass(frozen=True)
class Listen(Server):
    """Receives uploads without changing the state. A sampler's probe reads the sections of clients with it."""

    def begin(self, state: State, assigned: Mapping[int, Assignment]) -> None:
        """Return no accumulator."""

    def fold(self, acc: None, arrival: Arrival) -> None:
        """Ignore the update."""

    def finish(self, state: State, acc: None, clock: Clock) -> State:
        """Return the state unchanged."""
        return state
