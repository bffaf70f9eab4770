"""Servers for clients that send models instead of updates.

    Average            the mean of the models
    MaskAverage        the mean of masks, converted to scores by the logit (FedPM: Isik et al., Sparse Random Networks
                       for Communication-Efficient Federated Learning, ICLR 2023, https://arxiv.org/abs/2209.15328)
    PrunedAverage      the mean is pruned to the sparsity of the round (FedSparsify-Global)
    MajorityAverage    clients send pruned models; a weight of the mean is kept if at least floor(n / 2) of the n models
                       have it, as in the authors' code, else it is zero (FedSparsify-Local)

FedSparsify: Stripelis et al., Federated Progressive Sparsification (Purge, Merge, Tune)+, 2022,
https://arxiv.org/abs/2204.12430. In both forms, the mean is over all models: a weight that a client has pruned counts
as zero.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from gossamer.core.errors import ConfigError, require, wrong
from gossamer.core.exact import log
from gossamer.core.exchange import Arrival, Assignment, Context
from gossamer.core.types import Clock, Params, State
from gossamer.parts.pruning_schedule import Progressive, pruned_to, weights_of
from gossamer.parts.servers.mean import Sum, WeightedMean, with_vector


@dataclass(frozen=True)
class ModelMean(WeightedMean):
    """Base of servers that average models."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.fixed_rate())

    def averaged(self, state: State, acc: Sum) -> State:
        """Return the state with the mean as the model. An entry that no client sent keeps its value."""
        if acc.weight == 0:
            return state
        mean = acc.mean()
        if acc.cover is not None:
            params: Params = state["params"]
            held = acc.layout.unflatten(acc.held)
            mean = {name: torch.where(held[name], sent, params[name]) for name, sent in mean.items()}
        return {**state, "params": self.projected(mean)}


@dataclass(frozen=True)
class Average(ModelMean):
    """Weighted mean of client models."""

    def finish(self, state: State, acc: Sum, clock: Clock) -> State:
        """Return the mean as the next model."""
        return self.averaged(state, acc)

    def unreplayable(self, whole: bool = True) -> str:
        """Return why clients cannot repeat the mean."""
        return self.repeated(whole)

    def unsummable(self, exact: bool = False) -> str:
        """Return why the sum of the models is not enough."""
        return super().unsummable(exact) if exact else self.unequal()


@dataclass(frozen=True)
class MaskAverage(ModelMean):
    """Mean of client masks, converted to scores by the logit, for tensors with two or more dimensions (FedPM).

    Args:
        eps: mask bits 0 and 1 count as eps and 1 - eps, so that all scores are finite
    """

    eps: float = 0.01

    def __post_init__(self) -> None:
        super().__post_init__()
        require((0 < self.eps < 0.5, wrong(self, "eps", "must be between 0 and 0.5")))

    def unreplayable(self, whole: bool = True) -> str:
        """Return why clients cannot repeat the mean."""
        return self.repeated(whole)

    def unsummable(self, exact: bool = False) -> str:
        """Return why the sum of the masks is not enough. It is exact: masks are whole numbers."""
        return self.unequal()

    def fold_sum(self, acc: Sum, arrival: Arrival, total: Tensor, clients: int) -> Sum:
        """Add the sum of several clients' masks, which is exact, and of their other values."""
        assert arrival.from_sum is not None
        whole = total.double()
        # Decoding is affine. For masks it is the identity, and the offset is zero: no division rounds their sum.
        offset = arrival.from_sum(torch.zeros_like(whole))
        acc.spread(with_vector(arrival, arrival.from_sum(whole) + offset * (clients - 1)), 1.0)
        acc.count(arrival, float(clients))
        return acc

    def finish(self, state: State, acc: Sum, clock: Clock) -> State:
        """Return the mean as the next model, with means of masks converted to scores."""
        new = self.averaged(state, acc)
        if new is state:
            return state
        mean: Params = new["params"]
        return {**new, "params": {name: self._scores(t) if t.dim() >= 2 else t for name, t in mean.items()}}

    def _scores(self, mean: Tensor) -> Tensor:
        share = self.eps + (1 - 2 * self.eps) * mean.clamp(0, 1)
        return log(share / (1 - share))  # torch.logit is rounded differently on different devices


@dataclass(frozen=True)
class PrunedAverage(ModelMean):
    """Weighted mean of client models, pruned after each round (FedSparsify-Global).

    Args:
        pruning: the sparsity after each round
    """

    pruning: Progressive = Progressive()

    def finish(self, state: State, acc: Sum, clock: Clock) -> State:
        """Return the mean as the next model, with its smallest weights set to zero."""
        new = self.averaged(state, acc)
        share = self.pruning.at(clock.round, clock.rounds)
        return new if new is state or not share else {**new, "params": pruned_to(new["params"], share)}


@dataclass
class Votes:
    """The sum of the models, the number of models with each entry, and the number of models."""

    models: Sum
    held: Tensor  # [n]
    voters: int = 0


@dataclass(frozen=True)
class MajorityAverage(ModelMean):
    """Weighted mean of client models, where most of them have a weight (FedSparsify-Local)."""

    def bind(self, context: Context) -> Self:
        """Refuse clients that hold a part of the model: what they do not hold is no vote."""
        if not context.exchange.view.whole:
            raise ConfigError("MajorityAverage needs clients that hold the whole model: use Full()")
        return super().bind(context)

    def begin(self, state: State, assigned: Mapping[int, Assignment]) -> Votes:
        """Return an empty sum without votes."""
        models = self.empty(state["params"])
        return Votes(models, torch.zeros(len(models.vector), dtype=torch.int32, device=models.vector.device))

    def fold(self, acc: Votes, arrival: Arrival) -> Votes:
        """Add one client's model, multiplied by its weight, and its votes."""
        model, weight = arrival.vector(acc.held.device), self.weigh(arrival)
        acc.models.vector.add_(model, alpha=weight)
        acc.models.weight += weight
        acc.held += model != 0
        acc.voters += 1
        return acc

    def finish(self, state: State, acc: Votes, clock: Clock) -> State:
        """Return the mean as the next model, with zeros at weights without a majority."""
        new = self.averaged(state, acc.models)
        if new is state:
            return state
        params: Params = new["params"]
        held = acc.models.layout.unflatten(acc.held)
        kept = {name: torch.where(held[name] >= acc.voters // 2, t, 0) for name, t in weights_of(params).items()}
        return {**new, "params": {**params, **kept}}
