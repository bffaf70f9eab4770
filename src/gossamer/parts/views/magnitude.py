"""Sub-models of the weights of largest magnitude, ranked anew in every round.

**MagnitudePruned.** The server sends the whole model, and the client prunes the weights of smallest magnitude. Both
have the same values, so both compute the same mask and no mask is sent. The client trains and sends the remaining
weights only. A pruned weight keeps its value at the server. It returns when other weights become smaller. Biases, norms
and running statistics are never pruned.

**LargestWeights** (FIARSE). Wu et al., FIARSE: Model-Heterogeneous Federated Learning via Importance-Aware Submodel
Extraction, NeurIPS 2024, https://arxiv.org/abs/2407.19389. The magnitude of a weight is its importance. The server
ranks the weights of the global model, so a sub-model follows the model, and a smaller one is contained in a larger one.
Only the server knows all weights. It sends the positions of the held weights with their values; the client sends values
only. Biases, norms and running statistics are held whole; the paper's code ranks biases together with the weights. A
weight outside the sub-model counts as zero for the client and keeps its value at the server. Weights that are
initialized to zero are the last to be held.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import ClassVar, Literal, Self

import torch
from torch import Tensor

from gossamer.core import indices, tree
from gossamer.core.errors import PayloadError, require, wrong
from gossamer.core.exchange import Context
from gossamer.core.random import Key
from gossamer.core.types import Clock, Layout, Params, Part, Payload, State
from gossamer.core.view import PART, View
from gossamer.fleet.capacity import Capacities, capacity, check_shares
from gossamer.parts.codecs.dense import Dense
from gossamer.parts.views import masks

By = Literal["model", "tensor"]
"""Whether magnitudes are ranked over the whole model, or within each tensor."""


@dataclass(frozen=True)
class MagnitudePruned(View):
    """Prunes a fraction of the weights, those of smallest magnitude.

    Args:
        ratio: fractions of the weights to prune; client c takes value c modulo their number
        by: rank the magnitudes over the whole model, or within each tensor (model, tensor)
        rise: rounds over which the pruned fraction grows linearly from 0; 0 prunes fully at once
        names: the names of the weights that can be pruned
    """

    common: ClassVar[bool] = True

    ratio: tuple[float, ...] = (0.5,)
    by: By = "model"
    rise: int = 0
    names: tuple[str, ...] = field(default=(), init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        require(
            (len(self.ratio) > 0, wrong(self, "ratio", "must have at least one value")),
            (all(0 <= ratio < 1 for ratio in self.ratio), wrong(self, "ratio", "must be in [0, 1)")),
            (self.by in ("model", "tensor"), wrong(self, "by", "must be model or tensor")),
            (self.rise >= 0, wrong(self, "rise", "must not be negative")),
        )

    def bind(self, context: Context) -> Self:
        """Return the view with the names of the weights that can be pruned. The download must be lossless."""
        exact, outline = context.exchange.down == Dense(), context.network.outline()
        require((exact, "MagnitudePruned needs a lossless downlink codec: use Dense() or --down dense"))
        return self.filled(names=tuple(n for n in context.trained if outline[n].dim() >= 2))

    def ratio_of(self, clock: Clock) -> float:
        """Return the fraction of the weights that a client prunes in a round."""
        share = self.ratio[clock.client % len(self.ratio)]
        return share * min(1.0, (clock.round + 1) / self.rise) if self.rise else share

    def sent(self, like: Params, clock: Clock, key: Key, memory: State | None = None) -> Part:
        """Return the whole model: the mask follows from its values."""
        return Part()

    def part(self, like: Params, clock: Clock, key: Key, memory: State | None = None) -> Part:
        """Return all entries of ``like`` except the weights of smallest magnitude."""
        share, keep = self.ratio_of(clock), Params()
        for weights in groups(self.names, self.by, like) if share else ():
            keep |= largest(weights, int(share * sum(tensor.numel() for tensor in weights.values())))
        return Part(keep=keep)


@dataclass(frozen=True)
class LargestWeights(View):
    """The weights of largest magnitude, as many as the client's capacity allows.

    Args:
        capacities: fractions of the weights that clients hold; client c takes value c modulo their number
        drawn: draw the capacity of each client at random in every round
        by: rank the weights over the whole model, or within each tensor (model, tensor)
        names: the names of the weights
    """

    section: ClassVar[Literal["part"]] = PART

    capacities: Capacities = (0.5,)
    drawn: bool = False
    by: By = "model"
    names: tuple[str, ...] = field(default=(), init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_shares("LargestWeights", self.capacities)
        require((self.by in ("model", "tensor"), wrong(self, "by", "must be model or tensor")))

    def bind(self, context: Context) -> Self:
        """Return the view with the names of the weights."""
        outline = context.network.outline()
        weights = {name: outline[name] for name in context.trained if outline[name].dim() >= 2}
        tree.check_entries(weights, "LargestWeights")
        return self.filled(names=tuple(weights))

    def part(self, like: Params, clock: Clock, key: Key, memory: State | None = None) -> Part:
        """Return all tensors without their smallest weights. A capacity of 1 gives the whole model."""
        share = capacity(self.capacities, self.drawn, clock, key)
        keep: Params = {}
        for weights in groups(self.names, self.by, like) if share < 1 else ():
            count = sum(tensor.numel() for tensor in weights.values())
            keep |= largest(weights, count - max(1, math.ceil(count * share - 1e-9)))
        return Part(keep=keep)

    def describe(self, part: Part, like: Params) -> Payload:
        """Return the mask over all weights, coded as indices or as a bitmap."""
        return indices.pack(self._weights(like).flatten(part.keep) != 0)

    def restore(self, payload: Payload, like: Params) -> Part:
        """Return the part of a mask. Refuse a mask that holds no weight, or all."""
        weights = self._weights(like)
        mask = indices.unpack(payload, weights.size)
        if not 0 < indices.marked(mask) < weights.size:
            raise PayloadError(f"the mask of the sub-model holds {indices.marked(mask):,} of {weights.size:,} weights")
        return Part(keep=weights.unflatten(mask.to(weights.dtype)))

    def _weights(self, like: Params) -> Layout:
        return Layout.of({name: like[name] for name in self.names})


def groups(names: tuple[str, ...], by: By, like: Params) -> Iterator[Params]:
    """Yield the tensors that are ranked together."""
    for group in [names] if by == "model" else [(name,) for name in names]:
        yield {name: like[name] for name in group}


def largest(weights: Params, pruned: int) -> Params:
    """Return 0/1 masks: 0 for the ``pruned`` smallest weights. Among equal weights, the first are pruned."""
    sizes: Tensor = torch.cat([tensor.reshape(-1).abs() for tensor in weights.values()])
    kept = ~masks.smallest(sizes, pruned)
    pieces = torch.split(kept, [tensor.numel() for tensor in weights.values()])
    return {
        name: piece.view(like.shape).to(like.dtype) for (name, like), piece in zip(weights.items(), pieces, strict=True)
    }
