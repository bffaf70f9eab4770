"""Averages of sparse models: pruned after averaging, or by majority vote. The servers of FedSparsify.

Stripelis et al., Federated Progressive Sparsification (Purge, Merge, Tune)+, 2022, https://arxiv.org/abs/2204.12430.

    FedSparsify-Global    the mean of the models is pruned to the sparsity of the round
    FedSparsify-Local     clients send pruned models; a weight of the mean is kept if at least floor(n / 2) of the n
                          models have it, as in the authors' code, else it is zero

In both, the mean is over all models: a weight that a client has pruned counts as zero.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from gossamer.core.errors import ConfigError
from gossamer.core.exchange import Arrival, Assignment, Context
from gossamer.core.types import Clock, Layout, Params, State
from gossamer.parts.pruning_schedule import Progressive, pruned_to, weights_of
from gossamer.parts.servers.average import Average
from gossamer.parts.servers.mean import Mean, Sum


@dataclass(frozen=True)
class PrunedAverage(Average):
    """Weighted mean of client models, pruned after each round (FedSparsify-Global).

    Args:
        pruning: the sparsity after each round
    """

    pruning: Progressive = Progressive()

    def finish(self, state: State, acc: Sum, clock: Clock) -> State:
        """Return the mean as the next model, with its smallest weights set to zero."""
        new = super().finish(state, acc, clock)
        share = self.pruning.at(clock.round, clock.rounds)
        return new if new is state or not share else {**new, "params": pruned_to(new["params"], share)}


@dataclass
class Votes:
    """The sum of the models, the number of models with each entry, and the number of models."""

    models: Sum
    held: Tensor
    voters: int = 0


@dataclass(frozen=True)
class MajorityAverage(Average):
    """Weighted mean of client models, where most of them have a weight (FedSparsify-Local)."""

    def bind(self, context: Context) -> Mean:  # type: ignore[override]
        """Refuse clients that hold a part of the model: what they do not hold is no vote."""
        if not context.exchange.view.whole:
            raise ConfigError("MajorityAverage needs clients that hold the whole model: use Full()")
        return super().bind(context)

    def begin(self, state: State, assigned: Mapping[int, Assignment]) -> Votes:  # type: ignore[override]
        """Return an empty sum without votes."""
        models = self.empty(state["params"])
        return Votes(models, torch.zeros(len(models.vector), dtype=torch.int32, device=models.vector.device))

    def fold(self, acc: Votes, arrival: Arrival) -> Votes:  # type: ignore[override]
        """Add one client's model, multiplied by its weight, and its votes."""
        model, weight = arrival.vector(acc.held.device), self.weigh(arrival)
        acc.models.vector.add_(model, alpha=weight)
        acc.models.weight += weight
        acc.held += model != 0
        acc.voters += 1
        return acc

    def finish(self, state: State, acc: Votes, clock: Clock) -> State:  # type: ignore[override]
        """Return the mean as the next model, with zeros at weights without a majority."""
        new = super().finish(state, acc.models, clock)
        if new is state:
            return state
        params: Params = new["params"]
        held = Layout.of(params).unflatten(acc.held)
        kept = {name: torch.where(held[name] >= acc.voters // 2, t, 0) for name, t in weights_of(params).items()}
        return {**new, "params": {**params, **kept}}
