"""Magnitude pruning in every round: a client prunes the weights of smallest magnitude in the model it receives.

The server sends the whole model, and the client prunes it. Both have the same values, so both compute the same mask and
no mask is sent. The client trains and sends the remaining weights only. A pruned weight keeps its value at the server.
It returns when other weights become smaller. Biases, norms and running statistics are never pruned.
"""

from dataclasses import dataclass, field
from typing import ClassVar, Literal

import torch
from torch import Tensor

from gossamer.core.errors import require, wrong
from gossamer.core.exchange import Context
from gossamer.core.random import Key
from gossamer.core.types import Clock, Params, Part, State
from gossamer.core.view import BoundView, View
from gossamer.parts.codecs.dense import Dense
from gossamer.parts.views import masks


@dataclass(frozen=True)
class MagnitudePruned(View):
    """Prunes a fraction of the weights, those of smallest magnitude.

    Args:
        ratio: fractions of the weights to prune; client c takes value c modulo their number
        by: rank the magnitudes over the whole model, or within each tensor (model, tensor)
        rise: rounds over which the pruned fraction grows linearly from 0; 0 prunes fully at once
    """

    ratio: tuple[float, ...] = (0.5,)
    by: Literal["model", "tensor"] = "model"
    rise: int = 0

    def __post_init__(self) -> None:
        require(
            (len(self.ratio) > 0, wrong(self, "ratio", "must have at least one value")),
            (all(0 <= ratio < 1 for ratio in self.ratio), wrong(self, "ratio", "must be in [0, 1)")),
            (self.by in ("model", "tensor"), wrong(self, "by", "must be model or tensor")),
            (self.rise >= 0, wrong(self, "rise", "must not be negative")),
        )

    def bind(self, context: Context) -> "BoundMagnitudePruned":
        """Return the view with the names of the weights that can be pruned. The download must be lossless."""
        exact, outline = context.exchange.down == Dense(), context.network.outline()
        require((exact, "MagnitudePruned needs a lossless downlink codec: use Dense() or --down dense"))
        return BoundMagnitudePruned(**vars(self), names=tuple(n for n in context.trained if outline[n].dim() >= 2))

    def ratio_of(self, clock: Clock) -> float:
        """Return the fraction of the weights that a client prunes in a round."""
        share = self.ratio[clock.client % len(self.ratio)]
        return share * min(1.0, (clock.round + 1) / self.rise) if self.rise else share


@dataclass(frozen=True)
class BoundMagnitudePruned(BoundView, MagnitudePruned):
    """``MagnitudePruned`` with the names of the weights that can be pruned."""

    names: tuple[str, ...] = field(kw_only=True)
    common: ClassVar[bool] = True

    def sent(self, like: Params, clock: Clock, key: Key, memory: State | None = None) -> Part:
        """Return the whole model: the mask follows from its values."""
        return Part()

    def part(self, like: Params, clock: Clock, key: Key, memory: State | None = None) -> Part:
        """Return all entries of ``like`` except the weights of smallest magnitude."""
        share, groups = self.ratio_of(clock), [self.names] if self.by == "model" else [(name,) for name in self.names]
        keep: Params = {}
        for group in groups if share else ():
            weights = {name: like[name] for name in group}
            keep |= largest(weights, int(share * sum(tensor.numel() for tensor in weights.values())))
        return Part(keep=keep)


def largest(weights: Params, pruned: int) -> Params:
    """Return 0/1 masks: 0 for the ``pruned`` smallest weights. Among equal weights, the first are pruned."""
    sizes: Tensor = torch.cat([tensor.reshape(-1).abs() for tensor in weights.values()])
    kept = ~masks.smallest(sizes, pruned)
    pieces = torch.split(kept, [tensor.numel() for tensor in weights.values()])
    return {
        name: piece.view(like.shape).to(like.dtype) for (name, like), piece in zip(weights.items(), pieces, strict=True)
    }
