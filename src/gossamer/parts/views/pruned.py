"""Masks of clients' own that lose weights round by round (Sub-FedAvg).

A client begins with all entries. After training it may prune a share of what it still holds, the smallest weights of
each tensor. It does so if three things hold: what it would prune after the first epoch and after the last differs,
which says that training has not settled; it holds more than the target; and its pruned model is right often enough on
its own training samples. Biases and norms are held whole. As with every personal view, the new mask counts once the
server has it.
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from gossamer.core.bits import bits, unbits
from gossamer.core.errors import require, wrong
from gossamer.core.exchange import Context, LocalTrainingInfo
from gossamer.core.random import Key
from gossamer.core.types import Clock, Params, Part, Payload, State
from gossamer.core.view import View
from gossamer.parts.views import masks
from gossamer.parts.views.masks import Bits, MaskMemory

Flags = dict[str, Tensor]
"""Masks as vectors of booleans, by the name of a tensor."""


@dataclass(frozen=True)
class Pruned(View):
    """Masks that shrink towards a target.

    Args:
        target: share of the weights at which a client prunes no more
        share: of the weights held, how many are pruned at a time
        distance: mean difference of the two candidate masks above which a client prunes
        accuracy: share of its training samples that the pruned model must get right
    """

    target: float = 0.5
    share: float = 0.05
    distance: float = 1e-4
    accuracy: float = 0.5

    def __post_init__(self) -> None:
        require(
            (0 < self.target <= 1, wrong(self, "target", "must be in (0, 1]")),
            (0 < self.share < 1, wrong(self, "share", "must be between 0 and 1")),
            (self.distance >= 0, wrong(self, "distance", "must not be negative")),
            (0 <= self.accuracy <= 1, wrong(self, "accuracy", "must be in [0, 1]")),
        )

    def bind(self, context: Context) -> "BoundPruned":
        """With the weights that can be pruned, and how large they are."""
        outline = context.network.outline()
        names = tuple(name for name in context.trained if outline[name].dim() >= 2)
        sizes = tuple((name, outline[name].numel()) for name in names)
        return BoundPruned(**vars(self), names=names, sizes=sizes)


@dataclass(frozen=True)
class BoundPruned(MaskMemory, Pruned):
    """The same with the weights that are pruned one by one, and the sizes of all tensors that have a mask."""

    names: tuple[str, ...] = field(kw_only=True)
    sizes: tuple[tuple[str, int], ...] = field(kw_only=True)

    def part(self, like: Params, clock: Clock, key: Key, memory: State | None = None) -> Part:
        """What the client's mask covers."""
        return masks.part(memory["mask"], like) if memory else Part()

    def first(self, client: int) -> State:
        """Everything."""
        return {"mask": {name: bits(torch.ones(size, dtype=torch.bool)) for name, size in self.sizes}}

    def revise(self, memory: State, info: LocalTrainingInfo, clock: Clock, key: Key) -> tuple[State, Payload]:
        """Prune, if the three thresholds are passed."""
        held = opened(memory["mask"], info.weights)
        return told(memory, held, self.thinned(held, info))

    def thinned(self, held: Flags, info: LocalTrainingInfo) -> Flags:
        """What is left of masks; the same, if a threshold is not passed."""
        if _density(held) <= self.target:
            return held
        early, late = (self._pruned(held, weights) for weights in (info.carry["early"], info.weights))
        if differences(early, late) <= self.distance * sum(map(len, held.values())):
            return held
        return late if info.accuracy(applied(late, info.weights)) > self.accuracy else held

    def _pruned(self, held: Flags, weights: Params) -> Flags:
        """Masks without the smallest weights of what is held."""
        found = {}
        for name, mask in held.items():
            many = int(self.share * int(mask.sum()))
            size = torch.where(mask, weights[name].reshape(-1).abs(), torch.inf)
            found[name] = mask & ~masks.smallest(size, many)
        return found

    def follow(self, memory: State, said: Payload, like: Params) -> State:
        """Turn over the bits that changed; refused is what takes up entries that were pruned."""
        if not said:
            return memory
        new: Bits = masks.turned(memory["mask"], said, like)
        for name, packed in new.items():
            taken_up = packed & ~memory["mask"][name].cpu()
            masks.refuse_unless(not bool(taken_up.any()), f"takes up pruned entries of {name}")
        return {"mask": new}


def opened(packed: Bits, like: Params) -> Flags:
    """Masks as vectors of booleans, where the tensors are."""
    return {name: unbits(mask.to(like[name].device), like[name].numel()) for name, mask in packed.items()}


def told(mine: State, held: Flags, kept: Flags) -> tuple[State, Payload]:
    """The new part, and what tells the server of it: nothing, if masks are the same objects as before."""
    if all(kept[name] is mask for name, mask in held.items()):
        return mine, {}
    new: Bits = {name: bits(mask).cpu() for name, mask in kept.items()}
    return {"mask": new}, masks.difference(mine["mask"], new)


def applied(kept: Flags, weights: Params) -> Params:
    """Tensors, zero where a mask does not hold them."""
    return {name: w * kept[name].view(w.shape) if name in kept else w for name, w in weights.items()}


def differences(one: Flags, other: Flags) -> int:
    """In how many places masks differ."""
    return sum(int((one[name] != other[name]).sum()) for name in one)


def _density(held: Flags) -> float:
    return sum(int(mask.sum()) for mask in held.values()) / max(1, sum(map(len, held.values())))
