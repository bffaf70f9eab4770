"""Servers for low-rank adapters: the mean of their matrices, and the mean of their products.

The weight of an adapted layer is W + scale B A, with B: outputs x r and A: r x inputs. The mean of the clients' weights
needs the mean of the products B_k A_k, and the product of the means of A_k and B_k is another matrix.

**AdapterMean** averages A and B, like ``Mean``, bit for bit, and measures what is lost. After each round, the record
has

    adapter_error = |sum_k p_k B_k A_k - B A|_F / |sum_k p_k B_k A_k - B_0 A_0|_F        0 / 0 is 0

over all adapted layers together. B_k and A_k are the matrices of client k as the server decodes them, of the client's
rank; B and A are those after the round, B_0 and A_0 those before it, and the weights p_k sum to 1. So the error is
relative to the step that exact averaging would take. It is 0 where A is frozen (FFA-LoRA), and that of rounding where
one client takes part. The products are kept as their factors, and as matrices where these are smaller. So the memory is
that of the round's decoded uploads in float64, at most that of the adapted weights. With R ranks of all clients
together, a norm takes about 2 R^2 (inputs + outputs) operations per layer.

**Stacking** adds the mean of the products to the base weights. Wang et al., FLoRA: Federated Fine-Tuning Large Language
Models with Heterogeneous Low-Rank Adaptations, NeurIPS 2024, https://arxiv.org/abs/2409.05976. Stacked side by side,
the matrices of all clients give it exactly, whatever the rank r_k of client k:

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
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, NamedTuple, Self

import torch
from torch import Tensor, nn

from gossamer.core import tree
from gossamer.core.errors import PayloadError, require
from gossamer.core.exchange import Arrival, Assignment, Context
from gossamer.core.random import Key, Purpose, fold, uniform
from gossamer.core.server import Server
from gossamer.core.types import Clock, Params, State
from gossamer.core.untrusted import LARGEST, TOO_LARGE, largest
from gossamer.parts.adapters.lora import A, B, LowRankLayer, pairs, rank_dimension
from gossamer.parts.servers.mean import Mean, Sum, WeightedMean, Weighting, weight_of
from gossamer.parts.views.sliced import RankSlice

STACKING = "stacking"
"""The purpose of the keys of new matrices."""


@dataclass
class Product:
    """A sum of products of matrices in float64, as its factors."""

    left: Tensor
    right: Tensor

    def plus(self, left: Tensor, right: Tensor) -> "Product":
        """Return the sum with one more product. Factors that are larger than the product are multiplied."""
        lefts, rights = torch.cat([self.left, left.double()], 1), torch.cat([self.right, right.double()])
        (outputs, ranks), inputs = lefts.shape, rights.shape[1]
        if ranks <= min(outputs, inputs):
            return Product(lefts, rights)
        whole = lefts @ rights
        ones = torch.eye(min(outputs, inputs), dtype=whole.dtype, device=whole.device)
        return Product(ones, whole) if outputs < inputs else Product(whole, ones)

    def norm(self) -> float:
        """Return the Frobenius norm: that of the product of the triangular factors, which are small."""
        left, right = torch.linalg.qr(self.left, mode="r").R, torch.linalg.qr(self.right.T, mode="r").R
        return float(torch.linalg.matrix_norm(left @ right.T))


@dataclass
class AdapterSum(Sum):
    """Running weighted sum of updates, and of the clients' products by layer: the names of A and B.

    Args:
        start: the model before the round
        products: the sums of products
        measured: the weight of the clients behind them; others were folded as a sum
    """

    start: Params = field(default_factory=dict)
    products: dict[tuple[str, str], Product] = field(default_factory=dict)
    measured: float = 0.0


@dataclass(frozen=True)
class AdapterMean(WeightedMean):
    """Weighted mean of client updates, with the error of averaging the two matrices of adapters separately."""

    takes_any_mean: ClassVar[bool] = True

    def begin(self, state: State, assigned: Mapping[int, Assignment]) -> AdapterSum:
        """Return an empty sum in the shape of the global model."""
        start: Params = state["params"]
        return AdapterSum(**vars(self.empty(start)), start=start)

    def fold(self, acc: AdapterSum, arrival: Arrival) -> AdapterSum:
        """Add one client's update, multiplied by its weight, and its products."""
        weight, change = self.weigh(arrival), arrival.change(acc.vector.device)
        before = arrival.part.take(arrival.model or acc.start)
        for a, b in pairs(acc.start):
            # weight * B_k and A_k: the weight belongs to one factor only.
            left, right = weight * (before[b] + change[b]).flatten(1), (before[a] + change[a]).flatten(1)
            known = acc.products.get((a, b))
            acc.products[a, b] = known.plus(left, right) if known else Product(left.double(), right.double())
        acc.measured += weight
        acc.add(arrival, weight)
        return acc

    def finish(self, state: State, acc: Sum, clock: Clock) -> State:
        """Add the mean update, multiplied by the server learning rate, to the model."""
        return self.moved(state, acc)

    def unreplayable(self, whole: bool = True) -> str:
        """Return why clients cannot repeat the mean."""
        return self.repeated(whole)

    def measure(self, state: State, acc: AdapterSum) -> dict[str, Any]:
        """Return the relative error of averaging A and B separately.

        Return nothing where the server got only sums of updates, or no update, or where there is no adapter.
        """
        adapted = any(rank_dimension(name) is not None for name in acc.start)
        if not (adapted and 0 < acc.weight == acc.measured):
            return {}
        error = self._distance(acc, state["params"])
        return {"adapter_error": error / self._distance(acc, acc.start) if error else 0.0}

    def _distance(self, acc: AdapterSum, model: Params) -> float:
        """Return the norm of the mean product less the product of a model's matrices, over all layers."""
        norms = [
            Product(product.left / acc.weight, product.right).plus(-model[b].flatten(1), model[a].flatten(1)).norm()
            for (a, b), product in acc.products.items()
        ]
        return math.hypot(*norms)


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
        layers: the adapted layers, from the network
        key: the run's key
    """

    weights: Weighting = "samples"
    layers: tuple[StackedLayer, ...] = field(default=(), init=False, repr=False, compare=False)
    key: Key = field(default=Key(0, 0), init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        Mean(self.weights)

    def bind(self, context: Context) -> Self:
        """Return the server with the adapted layers. Refuse networks whose products cannot be merged."""
        sent, view, send = context.network.outline(), context.exchange.view, context.exchange.send
        layers = []
        for name, layer in context.network.layers().items():
            if isinstance(layer, LowRankLayer):
                weight, down, up = (f"{name}.{tensor}" if name else tensor for tensor in ("weight", A, B))
                layers.append(StackedLayer(weight, down, up, layer.lora_scale, not isinstance(layer, nn.Linear)))
        unmerged = "is not sent, so products cannot be added to it: use LoRA(merges=True)"
        require(
            (bool(layers), "Stacking: the network has no low-rank adapters: use LoRA(rank=8, merges=True)"),
            *((layer.weight in sent, f"Stacking: {layer.weight} {unmerged}") for layer in layers),
            *((layer.down in sent, f"Stacking: {layer.down} is frozen: use LoRA(train='both')") for layer in layers),
            (
                view.whole or isinstance(view, RankSlice),
                "Stacking needs clients with whole weights: RankSlice or Full()",
            ),
            (send == "change", f"Stacking needs send='change', got {send!r}"),
        )
        weights = context.sampler.weights or self.weights
        return replace(self, weights=weights).filled(layers=tuple(layers), key=context.network.key)

    @property
    def joint(self) -> tuple[frozenset[str], ...]:
        """The three tensors of each adapted layer."""
        return tuple(frozenset({layer.weight, layer.down, layer.up}) for layer in self.layers)

    def purposes(self, version: int) -> Iterable[Purpose]:
        """Return the new matrices of the round."""
        yield STACKING, version

    def unreplayable(self, whole: bool = True) -> str:
        """Return that clients can repeat it, with their parts too: a product has the shape of the whole weight."""
        return ""

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
        change, weight = arrival.change(tree.device(acc.start)), weight_of(arrival, self.weights)
        before = arrival.part.take(arrival.model or acc.start)
        layers = self._of(acc.start)
        found = {layer.weight: _product(layer, before, change) for layer in layers}
        if not largest(found.values()) <= LARGEST:
            raise PayloadError(f"the product of two matrices holds values above {LARGEST:.3g}, {TOO_LARGE}")
        for name, total in acc.total.items():
            total.add_((found[name] if name in found else change[name]) * weight)  # as in WeightedMean.moved
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
