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
    names: tuple[str, ...] | None = field(default=None, repr=False)
    common: ClassVar[bool] = False
    personal: ClassVar[bool] = True

    def __post_init__(self) -> None:
        require(
            (0 < self.target <= 1, f"Pruned.target must be in (0, 1], got {self.target}"),
            (0 < self.share < 1, f"Pruned.share must be between 0 and 1, got {self.share}"),
            (self.distance >= 0, f"Pruned.distance must not be negative, got {self.distance}"),
            (0 <= self.accuracy <= 1, f"Pruned.accuracy must be in [0, 1], got {self.accuracy}"),
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
            raise ConfigError("Pruned knows nothing of the network yet: Method.fit tells it")
        return {"mask": {name: bits(torch.ones(like[name].numel(), dtype=torch.bool)) for name in self.names}}

    def revise(self, mine: State, evidence: Evidence, clock: Clock, key: Key) -> tuple[State, Payload]:
        """Prune, if the three thresholds are passed."""
        held = {name: _held(packed, evidence.weights[name]) for name, packed in mine["mask"].items()}
        if _density(held) <= self.target:
            return mine, {}
        early, late = (self._pruned(held, weights) for weights in (evidence.notes["early"], evidence.weights))
        differs = sum(int((early[name] != late[name]).sum()) for name in held)
        if differs <= self.distance * sum(mask.numel() for mask in held.values()):
            return mine, {}
        kept = {name: mask.view(evidence.weights[name].shape) for name, mask in late.items()}
        tried = {name: w * kept[name] if name in kept else w for name, w in evidence.weights.items()}
        if evidence.accuracy(tried) <= self.accuracy:
            return mine, {}
        new = {name: bits(mask).cpu() for name, mask in late.items()}
        return {"mask": new}, masks.difference(mine["mask"], new)

    def _pruned(self, held: dict[str, Tensor], weights: Params) -> dict[str, Tensor]:
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


def _held(packed: Tensor, like: Tensor) -> Tensor:
    return unbits(packed.to(like.device), like.numel())


def _density(held: dict[str, Tensor]) -> float:
    return sum(int(mask.sum()) for mask in held.values()) / max(1, sum(mask.numel() for mask in held.values()))
