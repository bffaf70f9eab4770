"""Pruned by magnitude, anew in every round: a client leaves out the weights that are smallest in the model it receives.

The whole model comes down, and the client cuts it; since server and client have the same model they agree on the mask,
and nothing of it travels. Only what is left is trained and sent. What is left out keeps its value at the server, and
comes back when others have become smaller. Biases, norms and running statistics are kept.
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
    """Leaves out a share of the smallest weights.

    Args:
        ratio: shares of the weights that are left out; client c has that at c modulo n, so one share is one mask for
            all
        by: whether the smallest of the whole model are left out, or of each tensor (model, tensor)
        rise: rounds in which shares grow from 0 to what they are; 0 is at once
    """

    ratio: tuple[float, ...] = (0.5,)
    by: Literal["model", "tensor"] = "model"
    rise: int = 0

    def __post_init__(self) -> None:
        require(
            (len(self.ratio) > 0, wrong(self, "ratio", "must have one share at least")),
            (all(0 <= ratio < 1 for ratio in self.ratio), wrong(self, "ratio", "must be in [0, 1)")),
            (self.by in ("model", "tensor"), wrong(self, "by", "must be model or tensor")),
            (self.rise >= 0, wrong(self, "rise", "must not be negative")),
        )

    def bind(self, context: Context) -> "BoundMagnitudePruned":
        """With the names of the weights that can be left out; the model must come down exactly as it is."""
        exact, outline = context.exchange.down == Dense(), context.network.outline()
        require((exact, "MagnitudePruned needs the model to come down exactly as it is: use Dense()"))
        return BoundMagnitudePruned(**vars(self), names=tuple(n for n in context.trained if outline[n].dim() >= 2))

    def ratio_of(self, clock: Clock) -> float:
        """The share that a client leaves out in a round."""
        share = self.ratio[clock.client % len(self.ratio)]
        return share * min(1.0, (clock.round + 1) / self.rise) if self.rise else share


@dataclass(frozen=True)
class BoundMagnitudePruned(BoundView, MagnitudePruned):
    """The same, and the names of the weights that can be left out."""

    names: tuple[str, ...] = field(kw_only=True)
    common: ClassVar[bool] = True

    def sent(self, like: Params, clock: Clock, key: Key, memory: State | None = None) -> Part:
        """The whole model: its values say what is left out."""
        return Part()

    def part(self, like: Params, clock: Clock, key: Key, memory: State | None = None) -> Part:
        """All but the smallest weights of ``like``, which are the model's values."""
        share, groups = self.ratio_of(clock), [self.names] if self.by == "model" else [(name,) for name in self.names]
        keep: Params = {}
        for group in groups if share else ():
            keep |= _kept({name: like[name] for name in group}, share)
        return Part(keep=keep)


def _kept(weights: Params, share: float) -> Params:
    """1 for each weight, and 0 for the smallest share of them all; of equals the first ones."""
    sizes: Tensor = torch.cat([tensor.reshape(-1).abs() for tensor in weights.values()])
    kept = ~masks.smallest(sizes, int(share * len(sizes)))
    pieces = torch.split(kept, [tensor.numel() for tensor in weights.values()])
    return {
        name: piece.view(like.shape).to(like.dtype) for (name, like), piece in zip(weights.items(), pieces, strict=True)
    }
