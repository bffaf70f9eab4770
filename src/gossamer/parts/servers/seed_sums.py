"""Sums of scalars over the rounds: the global model is the initial one plus a sum of the run's directions.

Qin et al., https://arxiv.org/abs/2312.06353 (FedKSeed). With K directions z_j of the run, and weights p_i of clients
that send the scalars s_i:

    A_j <- A_j + server_lr sum_i p_i s_ij / sum_i p_i
    w    = w_0 + sum_j scale A_j z_j

The model is computed from A in this order in every round, so a client that knows w_0 and A has the same bits, whatever
rounds it has missed (``gossamer.parts.downlinks.seed_sums``).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gossamer.core import tree
from gossamer.core.codec import Summing, carry_codec
from gossamer.core.errors import ConfigError, require, wrong
from gossamer.core.exchange import Arrival, Assignment, Context
from gossamer.core.random import Key
from gossamer.core.server import SummingServer
from gossamer.core.types import Clock, Layout, Params, State
from gossamer.parts.servers.mean import Mean

SUMS = "sums"
"""The entry of the server state with the sums."""


class SeedModel:
    """Computes the model of a run from its sums. The last one is kept.

    Args:
        codec: the codec of the scalars, for one network
        first: the initial model
    """

    def __init__(self, codec: Summing, first: Params) -> None:
        self.codec, self.first, self.layout = codec, first, Layout.of(first)
        self.size = codec.sum_size(self.layout)
        self._last: tuple[Tensor, Params] | None = None

    def at(self, sums: Tensor) -> Params:
        """Return the model for some sums."""
        if self._last is None or not torch.equal(self._last[0], sums):
            change = self.layout.unflatten(self.codec.from_sum(sums, self.layout, Key(0, 0)))
            self._last = sums.clone(), {name: self.first[name] + change[name] for name in self.first}
        return dict(self._last[1])


@dataclass(frozen=True)
class SeedSums(Mean, SummingServer):
    """Sums the scalars of a fixed set of directions over all rounds; ``over`` and ``radius`` are not used."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(
            (self.over == "cohort", wrong(self, "over", "must be cohort: all clients have all directions")),
            (self.radius is None, wrong(self, "radius", "must be none: the model is a sum of directions")),
        )

    def bind(self, context: Context) -> "BoundSeedSums":
        """Return the server with the initial model. It needs the scalars of directions that do not change."""
        codec, solver = context.exchange.codec.bind(context), context.exchange.solver
        if not (solver.span is not None and solver.span.fixed and carry_codec(codec) and isinstance(codec, Summing)):
            raise ConfigError("SeedSums needs the scalars of fixed directions: use KSeed() with Seeds(candidates)")
        weights, model = context.sampler.weights or self.weights, SeedModel(codec, context.network.initial())
        return BoundSeedSums(weights, server_lr=self.server_lr, model=model)


@dataclass
class ScalarSum:
    """The weighted sum of the scalars of a round."""

    total: Tensor | None = None
    weight: float = 0.0


@dataclass(frozen=True)
class BoundSeedSums(SeedSums):
    """``SeedSums`` for one network.

    Args:
        model: the model of some sums
    """

    model: SeedModel | None = None

    def _model(self) -> SeedModel:
        assert self.model is not None
        return self.model

    def init(self, params: Params) -> State:
        """Return the initial model and sums of zero."""
        first = self._model().first
        if not all(torch.equal(tensor, params[name]) for name, tensor in first.items()):
            raise ConfigError("SeedSums needs the initial model of the network: leave out the parametrization")
        some = next(iter(first.values()))
        return {"params": params, SUMS: some.new_zeros(self._model().size)}

    def begin(self, state: State, assigned: Mapping[int, Assignment]) -> ScalarSum:  # type: ignore[override]
        """Return an empty sum."""
        return ScalarSum()

    def fold(self, acc: ScalarSum, arrival: Arrival) -> ScalarSum:  # type: ignore[override]
        """Add the scalars of one client, multiplied by its weight."""
        assert arrival.to_sum is not None
        weight = self.weigh(arrival)
        term = arrival.to_sum() * weight
        acc.total = term if acc.total is None else acc.total + term
        acc.weight += weight
        return acc

    def fold_sum(self, acc: Any, arrival: Arrival, total: Tensor, clients: int) -> Any:
        """Refuse sums: scalars are no whole numbers."""
        raise ConfigError("SeedSums needs every upload")

    def finish(self, state: State, acc: ScalarSum, clock: Clock) -> State:  # type: ignore[override]
        """Add the mean of the scalars to the sums, and compute the model."""
        if acc.total is None:
            return state
        mean = (acc.total / acc.total.new_tensor(acc.weight)).to(tree.device(state["params"]))
        sums = state[SUMS] + mean * self.server_lr
        return {**state, SUMS: sums, "params": self._model().at(sums)}
