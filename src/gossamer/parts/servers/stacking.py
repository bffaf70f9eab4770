"""Stacking of low-rank adapters of unequal ranks: the mean of the clients' products is added to the base weights.

Wang et al., FLoRA: Federated Fine-Tuning Large Language Models with Heterogeneous Low-Rank Adaptations, NeurIPS 2024,
https://arxiv.org/abs/2409.05976. The mean of the matrices A times the mean of the matrices B is not the mean of the
products. Stacked side by side, the matrices of all clients give it exactly, whatever the rank r_k of client k:

    W <- W + scale sum_k p_k B_k A_k        B_k: outputs x r_k,  A_k: r_k x inputs,  sum_k p_k = 1

B_k and A_k are the client's matrices after training. Then all adapters restart: A is drawn anew, from the run's key and
the round, with the distribution of a new layer, and B is zero. Other trained tensors and running statistics are
averaged over the cohort. All clients of a round start from the same A, of which each takes its first ranks. In the
authors' code each client draws its own A, so that the mean of the products can have a higher rank.

The stack of a round determines the next model. FLoRA sends it to all clients. With ``Delta(shared_start=True)`` a
client receives the stacks that it has missed when it takes part again. Every device must then get the same weights. So
a product is a sum of outer products, one rank after the other, in separate multiplications and additions, not a matrix
product.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from gossamer.core import tree
from gossamer.core.errors import PayloadError, require
from gossamer.core.exchange import Arrival, Assignment, Context
from gossamer.core.random import Key, Purpose, fold, uniform
from gossamer.core.server import ReplayableServer, Server
from gossamer.core.types import Clock, Params, State
from gossamer.core.untrusted import LARGEST, TOO_LARGE, largest
from gossamer.core.view import View
from gossamer.parts.adapters.lora import A, B, LowRankLayer
from gossamer.parts.servers.mean import Mean, Weighting
from gossamer.parts.views.rank_slice import BoundRankSlice

STACKING = "stacking"
"""The purpose of the keys of new matrices."""


class StackedLayer(NamedTuple):
    """A layer whose products are added to its weight.

    Args:
        weight: the name of the weight
        down: the name of A
        up: the name of B
        scale: the factor of the product
        transposed: whether the weight is inputs x outputs
    """

    weight: str
    down: str
    up: str
    scale: float
    transposed: bool


@dataclass
class Stack:
    """The weighted sums of a round: of products in the place of base weights, of changes for other tensors."""

    start: Params
    total: Params
    weight: float = 0.0


@dataclass(frozen=True)
class Stacking(Server):
    """Adds the weighted mean of the clients' products to the base weights, and restarts the adapters.

    Args:
        weights: client weights: number of samples, number of batches, or equal (uniform)
    """

    weights: Weighting = "samples"

    def __post_init__(self) -> None:
        Mean(self.weights)

    def bind(self, context: Context) -> "BoundStacking":
        """Return the server with the adapted layers. Refuse networks whose products cannot be merged."""
        found = {name: each for name, each in context.network.layers().items() if isinstance(each, LowRankLayer)}
        sent, mean = context.network.outline(), Mean(self.weights).bind(context)
        layers = tuple(_stacked(name, layer) for name, layer in found.items())
        require(
            (bool(layers), "Stacking: the network has no low-rank adapters: use LoRA(rank=8, merges=True)"),
            *((layer.weight in sent, _unmerged(layer)) for layer in layers),
            *((layer.down in sent, f"Stacking: {layer.down} is frozen: use LoRA(train='both')") for layer in layers),
            (_holds_weights(context.exchange.view), "Stacking needs clients with whole weights: RankSlice or Full()"),
            (context.exchange.send == "change", f"Stacking needs send='change', got {context.exchange.send!r}"),
        )
        return BoundStacking(mean.weights, mean=mean, layers=layers, key=context.network.key)


@dataclass(frozen=True)
class BoundStacking(ReplayableServer, Stacking):
    """``Stacking`` with the adapted layers, the client weights and the run's key."""

    replays: ClassVar[bool] = True
    replays_parts: ClassVar[bool] = True

    mean: Mean = field(kw_only=True)
    layers: tuple[StackedLayer, ...] = field(kw_only=True)
    key: Key = field(kw_only=True)

    @property
    def joint(self) -> tuple[frozenset[str], ...]:
        """The three tensors of each adapted layer."""
        return tuple(frozenset({layer.weight, layer.down, layer.up}) for layer in self.layers)

    def purposes(self, version: int) -> Iterable[Purpose]:
        """Return the new matrices of the round."""
        yield STACKING, version

    def begin(self, state: State, assigned: Mapping[int, Assignment]) -> Stack:
        """Return empty sums."""
        start: Params = state["params"]
        matrices = {name for layer in self._of(start) for name in (layer.down, layer.up)}
        return Stack(start, {name: torch.zeros_like(t) for name, t in start.items() if name not in matrices})

    def _of(self, params: Params) -> list[StackedLayer]:
        """Return the layers of a model; a client that repeats the aggregation may have some tensors alone."""
        return [layer for layer in self.layers if layer.weight in params]

    def fold(self, acc: Stack, arrival: Arrival) -> Stack:
        """Add the products of one client, and the changes of its other tensors, multiplied by its weight."""
        change, weight = arrival.change(tree.device(acc.start)), self.mean.weigh(arrival)
        before = arrival.part.take(arrival.model or acc.start)
        layers = self._of(acc.start)
        found = {layer.weight: _product(layer, before, change) for layer in layers}
        if not largest(found.values()) <= LARGEST:
            raise PayloadError(f"the product of two matrices holds values above {LARGEST:.3g}, {TOO_LARGE}")
        for name, total in acc.total.items():
            total.add_((found[name] if name in found else change[name]) * weight)  # as in Mean.finish
        acc.weight += weight
        return acc

    def finish(self, state: State, acc: Stack, clock: Clock) -> State:
        """Add the mean product to each base weight, restart the adapters, and add the mean change of the rest."""
        if acc.weight == 0:
            return state
        params: Params = state["params"]
        scales = {layer.weight: layer.scale for layer in self._of(params)}
        new, weight = dict(params), next(iter(acc.total.values())).new_tensor(acc.weight)
        for name, total in acc.total.items():
            mean = total / weight
            new[name] = params[name] + mean * scales.get(name, 1.0)
        for layer in self._of(params):
            new[layer.down] = restarted(params[layer.down], fold(self.key, STACKING, clock.round, layer.down))
            new[layer.up] = torch.zeros_like(params[layer.up])
        return {**state, "params": new}


def restarted(like: Tensor, key: Key) -> Tensor:
    """Return a new matrix A, uniform in +- 1 / sqrt(inputs) as in a new layer, with the same bits on every device."""
    drawn = uniform(key, like.numel(), dtype=like.dtype, device=like.device).view(like.shape)
    centred = drawn * 2 - 1  # exact
    return centred * (1 / math.sqrt(like.shape[1]))


def _product(layer: StackedLayer, before: Params, change: Params) -> Tensor:
    """Return the product of a client's matrices in the shape of the weight, one rank after the other."""
    up, down = before[layer.up] + change[layer.up], before[layer.down] + change[layer.down]
    total = up.new_zeros(len(up), down.shape[1])
    for column, row in zip(up.T, down, strict=True):
        total.add_(column[:, None] * row)
    return total.T if layer.transposed else total


def _stacked(name: str, layer: LowRankLayer) -> StackedLayer:
    weight, down, up = (f"{name}.{tensor}" if name else tensor for tensor in ("weight", A, B))
    return StackedLayer(weight, down, up, layer.lora_scale, not isinstance(layer, nn.Linear))


def _unmerged(layer: StackedLayer) -> str:
    return f"Stacking: {layer.weight} is not sent, so products cannot be added to it: use LoRA(merges=True)"


def _holds_weights(view: View) -> bool:
    """Return whether the clients of a view hold the base weights whole."""
    return view.whole or isinstance(view, BoundRankSlice)
