"""Sub-models of the largest weights: a client holds the weights of largest magnitude that its capacity allows (FIARSE).

Wu et al., FIARSE: Model-Heterogeneous Federated Learning via Importance-Aware Submodel Extraction, NeurIPS 2024,
https://arxiv.org/abs/2407.19389.

The magnitude of a weight is its importance. The server ranks the weights of the global model in every round, so a
sub-model follows the model, and a smaller one is contained in a larger one. Only the server knows all weights. It sends
the positions of the held weights with their values; the client sends values only. Biases, norms and running statistics
are held whole; the paper's code ranks biases together with the weights.

A weight outside the sub-model counts as zero for the client and keeps its value at the server. It returns when others
become smaller. Weights that are initialized to zero are the last to be held.
"""

import math
from dataclasses import dataclass, field
from typing import Literal

from gossamer.core import indices, tree
from gossamer.core.errors import PayloadError, require, wrong
from gossamer.core.exchange import Context
from gossamer.core.random import Key
from gossamer.core.types import Clock, Layout, Params, Part, Payload, State
from gossamer.core.view import DescribedView, View
from gossamer.fleet.capacity import Capacities, capacity, check_shares
from gossamer.parts.views.magnitude_pruned import largest


@dataclass(frozen=True)
class LargestWeights(View):
    """The weights of largest magnitude, as many as the client's capacity allows.

    Args:
        capacities: fractions of the weights that clients hold; client c takes value c modulo their number
        drawn: draw the capacity of each client at random in every round
        by: rank the weights over the whole model, or within each tensor (model, tensor)
    """

    capacities: Capacities = (0.5,)
    drawn: bool = False
    by: Literal["model", "tensor"] = "model"

    def __post_init__(self) -> None:
        check_shares("LargestWeights", self.capacities)
        require((self.by in ("model", "tensor"), wrong(self, "by", "must be model or tensor")))

    def bind(self, context: Context) -> "BoundLargestWeights":
        """Return the view with the names of the weights."""
        outline = context.network.outline()
        weights = {name: outline[name] for name in context.trained if outline[name].dim() >= 2}
        tree.check_entries(weights, "LargestWeights")
        return BoundLargestWeights(**vars(self), names=tuple(weights))


@dataclass(frozen=True)
class BoundLargestWeights(DescribedView, LargestWeights):
    """``LargestWeights`` with the names of the weights."""

    names: tuple[str, ...] = field(kw_only=True)

    def part(self, like: Params, clock: Clock, key: Key, memory: State | None = None) -> Part:
        """Return all tensors without their smallest weights. A capacity of 1 gives the whole model."""
        share = capacity(self.capacities, self.drawn, clock, key)
        groups = [self.names] if self.by == "model" else [(name,) for name in self.names]
        keep: Params = {}
        for group in groups if share < 1 else ():
            weights = {name: like[name] for name in group}
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
