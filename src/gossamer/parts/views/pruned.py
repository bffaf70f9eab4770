"""Personal masks that are pruned step by step (Sub-FedAvg).

Vahidian et al., Personalized Federated Learning by Structured and Unstructured Pruning under Data Heterogeneity, 2021,
https://arxiv.org/abs/2105.00562.

A client starts with all entries. After training it may prune a fraction of its remaining weights, the smallest of each
tensor. It prunes if three conditions hold:

    its density is above the target
    the candidate masks after the first and the last epoch differ, so training has not converged
    the pruned model is accurate enough on the client's training samples

Biases and norms are held whole. The new mask takes effect once the server has received it.
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from gossamer.core import tree
from gossamer.core.bits import bits, unbits
from gossamer.core.errors import require, wrong
from gossamer.core.exchange import Context, LocalTrainingInfo
from gossamer.core.random import Key
from gossamer.core.types import Clock, Params, Part, Payload, State
from gossamer.core.view import View
from gossamer.parts.views import masks
from gossamer.parts.views.masks import Bits, MaskMemory

Flags = dict[str, Tensor]
"""Masks as boolean vectors, by tensor name."""


@dataclass(frozen=True)
class Pruned(View):
    """Personal masks that are pruned by magnitude, down to a target density.

    Args:
        target: density of the weights at which a client stops pruning
        share: fraction of the remaining weights that is pruned at a time
        distance: prune only if the masks after the first and last epoch differ by more than this fraction
        accuracy: prune only if the pruned model's training accuracy is above this value
    """

    target: float = 0.5
    share: float = 0.05
    distance: float = 1e-4
    accuracy: float = 0.5

    def __post_init__(self) -> None:
        require(
            (0 < self.target <= 1, wrong(self, "target", "must be in (0, 1]")),
            (0 < self.share < 1, wrong(self, "share", "must be above 0 and below 1")),
            (self.distance >= 0, wrong(self, "distance", "must not be negative")),
            (0 <= self.accuracy <= 1, wrong(self, "accuracy", "must be in [0, 1]")),
        )

    def bind(self, context: Context) -> "BoundPruned":
        """Return the view with the names and sizes of the weights that can be pruned."""
        check_accuracy(self, context)
        outline = context.network.outline()
        names = tuple(name for name in context.trained if outline[name].dim() >= 2)
        tree.check_entries({name: outline[name] for name in names}, "Pruned")
        sizes = tuple((name, outline[name].numel()) for name in names)
        return BoundPruned(**vars(self), names=names, sizes=sizes)


@dataclass(frozen=True)
class BoundPruned(MaskMemory, Pruned):
    """``Pruned`` with the names of the weights that are pruned, and the sizes of all tensors with a mask."""

    names: tuple[str, ...] = field(kw_only=True)
    sizes: tuple[tuple[str, int], ...] = field(kw_only=True)

    def part(self, like: Params, clock: Clock, key: Key, memory: State | None = None) -> Part:
        """Return the part that the client's mask covers."""
        return masks.part(memory["mask"], like) if memory else Part()

    def first(self, client: int) -> State:
        """Return masks that cover all entries."""
        return {"mask": {name: bits(torch.ones(size, dtype=torch.bool)) for name, size in self.sizes}}

    def revise(self, memory: State, info: LocalTrainingInfo, clock: Clock, key: Key) -> tuple[State, Payload]:
        """Prune if the three conditions hold."""
        held = opened(memory["mask"], info.weights)
        return mask_update(memory, held, self.thinned(held, info))

    def thinned(self, held: Flags, info: LocalTrainingInfo) -> Flags:
        """Return the masks after pruning, or ``held`` itself if a condition fails."""
        if _density(held) <= self.target:
            return held
        early, late = (self._pruned(held, weights) for weights in (info.carry["early"], info.weights))
        if differences(early, late) <= self.distance * sum(map(len, held.values())):
            return held
        return late if info.accuracy(applied(late, info.weights)) > self.accuracy else held

    def _pruned(self, held: Flags, weights: Params) -> Flags:
        """Return the masks without the smallest of the held weights."""
        found = {}
        for name, mask in held.items():
            count = int(self.share * int(mask.sum()))
            size = torch.where(mask, weights[name].reshape(-1).abs(), torch.inf)
            found[name] = mask & ~masks.smallest(size, count)
        return found

    def follow(self, memory: State, payload: Payload, like: Params) -> State:
        """Apply the changed bits. Refuse a payload that adds pruned entries."""
        if not payload:
            return memory
        new: Bits = masks.turned(memory["mask"], payload, like)
        for name, packed in new.items():
            added = packed & ~memory["mask"][name].cpu()
            masks.refuse_unless(not bool(added.any()), f"adds pruned entries of {name} to its mask")
        return {"mask": new}


def check_accuracy(view: Pruned, context: Context) -> None:
    """Refuse a task without accuracy, by which clients decide whether to prune."""
    name, metrics = type(view).__name__, context.network.metrics
    needs = f"{name} prunes by the accuracy of clients, but the task measures {', '.join(metrics)}"
    require(("accuracy" in metrics, f"{needs}: add accuracy to its metrics, or use another view"))


def opened(packed: Bits, like: Params) -> Flags:
    """Unpack masks to boolean vectors, on the devices of the tensors."""
    return {name: unbits(mask.to(like[name].device), like[name].numel()) for name, mask in packed.items()}


def mask_update(mine: State, held: Flags, kept: Flags) -> tuple[State, Payload]:
    """Return the new state and the payload for the server. Without new masks, the payload is empty."""
    if all(kept[name] is mask for name, mask in held.items()):
        return mine, {}
    new: Bits = {name: bits(mask).cpu() for name, mask in kept.items()}
    return {"mask": new}, masks.difference(mine["mask"], new)


def applied(kept: Flags, weights: Params) -> Params:
    """Return the tensors with masked-out entries set to zero."""
    return {name: w * kept[name].view(w.shape) if name in kept else w for name, w in weights.items()}


def differences(one: Flags, other: Flags) -> int:
    """Return the number of entries in which two sets of masks differ."""
    return sum(int((one[name] != other[name]).sum()) for name in one)


def _density(held: Flags) -> float:
    return sum(int(mask.sum()) for mask in held.values()) / max(1, sum(map(len, held.values())))
