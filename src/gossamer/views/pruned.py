"""Masks of clients' own that lose weights round by round (Sub-FedAvg).

A client begins with all entries. After training it may prune a share of what it still holds, the smallest weights of
each tensor. It does so if three things hold: what it would prune after the first epoch and after the last differs,
which says that training has not settled; it holds more than the target; and its pruned model is right often enough on
its own training samples. Biases and norms are held whole. As with every personal view, the new mask counts once the
server has it.
"""

from dataclasses import dataclass, field, replace
from typing import ClassVar

import torch
from torch import Tensor

from gossamer.codecs.packing import bits, unbits
from gossamer.errors import ConfigError, require
from gossamer.random import Key
from gossamer.solvers import Solver
from gossamer.types import Clock, Params, Part, Payload, State
from gossamer.views import masks
from gossamer.views.base import Evidence, Network
from gossamer.views.masks import Bits

Flags = dict[str, Tensor]
"""Masks as vectors of booleans, by the name of a tensor."""


@dataclass(frozen=True)
class Pruned:
    """Masks that shrink towards a target.

    target: share of the weights at which a client prunes no more
    share: of the weights held, how many are pruned at a time
    distance: mean difference of the two candidate masks above which a client prunes
    accuracy: share of its training samples that the pruned model must get right
    """

    target: float = 0.5
    share: float = 0.05
    distance: float = 1e-4
    accuracy: float = 0.5
    names: tuple[str, ...] | None = field(default=None, repr=False, kw_only=True)
    common: ClassVar[bool] = False
    personal: ClassVar[bool] = True
    nested: ClassVar[bool] = False
    by_value: ClassVar[bool] = False

    def __post_init__(self) -> None:
        name = type(self).__name__
        require(
            (0 < self.target <= 1, f"{name}.target must be in (0, 1], got {self.target}"),
            (0 < self.share < 1, f"{name}.share must be between 0 and 1, got {self.share}"),
            (self.distance >= 0, f"{name}.distance must not be negative, got {self.distance}"),
            (0 <= self.accuracy <= 1, f"{name}.accuracy must be in [0, 1], got {self.accuracy}"),
        )

    def fit(self, network: Network, solver: Solver) -> "Pruned":
        """With the names of the weights that can be pruned."""
        outline = network.outline()
        return replace(self, names=tuple(name for name in network.trained if outline[name].dim() >= 2))

    def part(self, like: Params, clock: Clock, key: Key, mine: State | None = None) -> Part:
        """What the client's mask covers."""
        return masks.part(mine["mask"], like) if mine else Part()

    def start(self, like: Params, client: int) -> State:
        """Everything."""
        if self.names is None:
            raise ConfigError(f"{type(self).__name__} knows nothing of the network yet: Method.fit tells it")
        return {"mask": {name: bits(torch.ones(like[name].numel(), dtype=torch.bool)) for name in self.masked()}}

    def masked(self) -> tuple[str, ...]:
        """The tensors that have a mask."""
        return self.names or ()

    def revise(self, mine: State, evidence: Evidence, clock: Clock, key: Key) -> tuple[State, Payload]:
        """Prune, if the three thresholds are passed."""
        held = opened(mine["mask"], evidence.weights)
        return told(mine, held, self.thinned(held, evidence))

    def thinned(self, held: Flags, evidence: Evidence) -> Flags:
        """What is left of masks; the same, if a threshold is not passed."""
        if _density(held) <= self.target:
            return held
        early, late = (self._pruned(held, weights) for weights in (evidence.notes["early"], evidence.weights))
        if differences(early, late) <= self.distance * sum(map(len, held.values())):
            return held
        return late if evidence.accuracy(applied(late, evidence.weights)) > self.accuracy else held

    def _pruned(self, held: Flags, weights: Params) -> Flags:
        """Masks without the smallest weights of what is held."""
        found = {}
        for name, mask in held.items():
            many = int(self.share * int(mask.sum()))
            size = torch.where(mask, weights[name].reshape(-1).abs(), torch.inf)
            found[name] = mask & ~masks.smallest(size, many)
        return found

    def follow(self, mine: State, said: Payload, like: Params) -> State:
        """Turn over the bits that changed; refused is what takes up entries that were pruned."""
        if not said:
            return mine
        new: Bits = masks.turned(mine["mask"], said, like)
        for name, packed in new.items():
            taken_up = packed & ~mine["mask"][name].cpu()
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
