"""Sparse models of clients' own: each client has a mask, trains what it covers, and may move it (FedSpa).

A client's mask is a state: packed bits for every tensor that is not held whole. How many entries of each tensor it
covers never changes. After training the client drops the entries of smallest weight and takes up as many others, those
of largest gradient or random ones. The new mask counts from its next round on, on the server's values at that time, if
the message that tells of it arrived; until then the old one does, for both. Only the changed bits travel.
"""

import math
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Literal

import torch
from torch import Tensor

from gossamer.core.bits import bits, unbits
from gossamer.core.errors import require, wrong
from gossamer.core.exchange import Context, LocalTrainingInfo
from gossamer.core.random import Key, fold, uniform, words
from gossamer.core.types import Clock, Params, Part, Payload, State
from gossamer.core.view import View
from gossamer.parts.views import masks
from gossamer.parts.views.masks import Bits, MaskMemory
from gossamer.parts.views.sparsity import DENSITIES, kept

Trained = tuple[tuple[str, torch.Size], ...]

LOWEST = torch.iinfo(torch.int64).min
"""Turns over the sign: words in the order that they have as unsigned numbers."""


@dataclass(frozen=True)
class PersonalMask(View):
    """A sparse model for each client.

    Args:
        density: share of all trained entries that a client holds, biases and norms included, which are held whole
        init: how that is spread over tensors: erk (small ones are denser) or uniform
        own_init: whether clients start with masks of their own rather than with one for all
        moving: whether masks move (dynamic sparse training) or stay as they start
        regrow: which entries are taken up for those dropped: gradient (of largest gradient) or random
        rate: share of the held entries that the first round drops; it falls to 0 by a cosine
        last: whether the rate is 0 in the last round already, or would be in the one after it
        seed: of the masks to start with; none takes the run's
    """

    density: float = 0.5
    init: Literal["erk", "uniform"] = "erk"
    own_init: bool = False
    moving: bool = True
    regrow: Literal["gradient", "random"] = "gradient"
    rate: float = 0.5
    last: bool = True
    seed: int | None = None

    def __post_init__(self) -> None:
        require(
            (0 < self.density <= 1, wrong(self, "density", "must be in (0, 1]")),
            (self.init in DENSITIES, wrong(self, "init", f"must be one of {', '.join(DENSITIES)}")),
            (self.regrow in ("gradient", "random"), wrong(self, "regrow", "must be gradient or random")),
            (0 <= self.rate <= 1, wrong(self, "rate", "must be in [0, 1]")),
        )

    def bind(self, context: Context) -> "BoundPersonalMask":
        """With the shapes of what is trained: statistics that a network gathers are held whole."""
        outline = context.network.outline()
        shapes = tuple((name, outline[name].shape) for name in context.trained)
        bound = BoundPersonalMask(**vars(self), shapes=shapes, at=context.shared_key(self.seed))
        _counts(bound)
        return bound


@dataclass(frozen=True)
class BoundPersonalMask(MaskMemory, PersonalMask):
    """The same with the shapes of what is trained, and the key of the masks to start with."""

    shapes: Trained = field(kw_only=True)
    at: Key = field(kw_only=True)

    def part(self, like: Params, clock: Clock, key: Key, memory: State | None = None) -> Part:
        """What the client's mask covers."""
        return masks.part((memory or self.first(clock.client))["mask"], like)

    def first(self, client: int) -> State:
        """As many random entries of each tensor as it is to have."""
        return {"mask": _first(self, client if self.own_init else None)}

    def rate_at(self, clock: Clock) -> float:
        """Which share of the held entries a round drops."""
        span = clock.rounds - 1 if self.last else clock.rounds
        return self.rate / 2 * (1 + math.cos(math.pi * clock.round / max(1, span)))

    def revise(self, memory: State, info: LocalTrainingInfo, clock: Clock, key: Key) -> tuple[State, Payload]:
        """Drop the smallest, and take up as many others."""
        if not self.moving or not memory["mask"]:
            return memory, {}
        share, gradient = self.rate_at(clock), info.gradient() if self.regrow == "gradient" else {}
        new: Bits = {}
        for name, packed in memory["mask"].items():
            weight = info.weights[name].reshape(-1)
            held = unbits(packed.to(weight.device), weight.numel())
            wanted = gradient[name].reshape(-1).abs() if gradient else _drawn(fold(key, "regrow", name), weight)
            new[name] = bits(moved(held, weight.abs(), wanted, share))
        said = masks.difference(memory["mask"], new)
        return {"mask": {name: packed.cpu() for name, packed in new.items()}}, said

    def follow(self, memory: State, said: Payload, like: Params) -> State:
        """Turn over the bits that changed; refused is what would change how many entries a tensor has."""
        if not self.moving or not memory["mask"]:
            masks.refuse_unless(not said, "says that its mask changed, though it cannot")
            return memory
        new = masks.turned(memory["mask"], said, like)
        for name, packed in new.items():
            same = masks.count(packed) == masks.count(memory["mask"][name])
            masks.refuse_unless(same, f"changes how many entries of {name} it holds")
        return {"mask": new}


def moved(held: Tensor, weight: Tensor, wanted: Tensor, share: float) -> Tensor:
    """A mask without the smallest weights of a share of its entries, and with as many others, the most wanted.

    What was just dropped may be taken up again; of equals the first ones count.
    """
    many = math.ceil(share * int(held.sum()) - 1e-9)
    if many == 0:
        return held
    left = held & ~masks.smallest(torch.where(held, weight, torch.inf), many)
    return left | masks.smallest(torch.where(left, torch.inf, -wanted), many)


@lru_cache(maxsize=64)
def _counts(view: BoundPersonalMask) -> dict[str, int]:
    """How many entries a client holds, of each tensor that it does not hold whole."""
    shapes = dict(view.shapes)
    many = kept(shapes, DENSITIES[view.init](shapes, view.density))
    return {name: many[name] for name, shape in view.shapes if many[name] < shape.numel()}


@lru_cache(maxsize=256)
def _first(view: BoundPersonalMask, client: int | None) -> Bits:
    """The mask that a client, or everybody, starts with: the first so many entries of a permutation of all."""
    shapes, found = dict(view.shapes), {}
    for name, many in _counts(view).items():
        at = fold(view.at, "mask", name, *([] if client is None else [client]))
        found[name] = bits(masks.smallest(words(at, shapes[name].numel()) ^ LOWEST, many))
    return found


def _drawn(key: Key, like: Tensor) -> Tensor:
    """Random numbers, by which entries are taken up at random."""
    return uniform(key, like.numel(), dtype=torch.float64, device=like.device)
