"""Personal sparse models: each client has a mask, trains the entries in it, and may change it (FedSpa).

Huang et al., Achieving Personalized Federated Learning with Sparse Local Models, 2022,
https://arxiv.org/abs/2201.11380.

The mask is client state: packed bits for every tensor that is not held whole. The number of entries per tensor never
changes. After training, the client drops the entries of smallest magnitude. It adds the same number of other entries,
those of largest gradient or random ones. The client sends the changed bits only. The new mask is used in the client's
next round, if the upload arrived. Otherwise client and server both keep the old mask.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Literal, Self

import torch
from torch import Tensor

from gossamer.core import tree
from gossamer.core.bits import bits, unbits
from gossamer.core.errors import require, wrong
from gossamer.core.exchange import Context, LocalTrainingInfo
from gossamer.core.random import Key, Purpose, fold, uniform, words
from gossamer.core.types import Clock, Params, Part, Payload, State
from gossamer.parts.views import masks
from gossamer.parts.views.masks import Bits, MaskView
from gossamer.parts.views.sparsity import DENSITIES, Distribution, kept

Masked = tuple[tuple[str, int, int], ...]
"""Name, number of entries in a mask, and size of each tensor with a mask."""

LOWEST = torch.iinfo(torch.int64).min
"""XOR with this value flips the sign bit, so that signed words sort in unsigned order."""

MASK = "mask"
"""The purpose of the keys of initial masks."""


@dataclass(frozen=True)
class PersonalMask(MaskView):
    """A personal sparse mask per client, of fixed density.

    Args:
        density: fraction of the trained entries in a mask; biases and norms count
        init: density of each tensor: erk (small tensors are denser), uniform (the same for all tensors, biases and
            norms included) or uniform-weights (the same for all weights; biases and norms are held whole)
        own_init: start each client with its own random mask, instead of one mask for all clients
        moving: change the masks after training (dynamic sparse training), instead of keeping them fixed
        regrow: entries that replace the dropped ones: gradient (of largest gradient) or random
        rate: fraction of a mask's entries dropped in the first round; it decays to 0 by a cosine
        last: let the drop rate reach 0 in the last round, instead of one round after it
        seed: seed of the initial masks; none takes the run's seed
        masked: the tensors that are not held whole
        at: the key of the initial masks
    """

    density: float = 0.5
    init: Distribution = "erk"
    own_init: bool = False
    moving: bool = True
    regrow: Literal["gradient", "random"] = "gradient"
    rate: float = 0.5
    last: bool = True
    seed: int | None = None
    masked: Masked = field(default=(), init=False, repr=False, compare=False)
    at: Key = field(default=Key(0, 0), init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        require(
            (0 < self.density <= 1, wrong(self, "density", "must be in (0, 1]")),
            (self.init in DENSITIES, wrong(self, "init", f"must be one of {', '.join(DENSITIES)}")),
            (self.regrow in ("gradient", "random"), wrong(self, "regrow", "must be gradient or random")),
            (0 <= self.rate <= 1, wrong(self, "rate", "must be in [0, 1]")),
        )

    def bind(self, context: Context) -> Self:
        """Return the view with the trained tensors that have masks. Running statistics are held whole."""
        outline = context.network.outline()
        shapes = {name: outline[name].shape for name in context.trained}
        tree.check_entries({name: outline[name] for name in shapes}, "PersonalMask")
        counts = kept(shapes, DENSITIES[self.init](shapes, self.density))
        masked = tuple((n, counts[n], size.numel()) for n, size in shapes.items() if counts[n] < size.numel())
        return self.filled(masked=masked, at=context.shared_key(self.seed))

    def part(self, like: Params, clock: Clock, key: Key, memory: State | None = None) -> Part:
        """Return the part that the client's mask covers."""
        return masks.part((memory or self.first(clock.client))["mask"], like)

    def first(self, client: int) -> State:
        """Return a random mask with the required number of entries per tensor."""
        return {"mask": _first(self.masked, self.at, client if self.own_init else None)}

    def purposes(self, client: int) -> Iterable[Purpose]:
        """Return the initial masks: those of the client alone, or those that all clients share."""
        own = (client,) if self.own_init else ()
        return [] if self.seed is not None else [(MASK, name, *own) for name, *_ in self.masked]

    def rate_at(self, clock: Clock) -> float:
        """Return the fraction of the mask's entries that is dropped in a round."""
        span = clock.rounds - 1 if self.last else clock.rounds
        return self.rate / 2 * (1 + math.cos(math.pi * clock.round / max(1, span)))

    @property
    def screens(self) -> bool:
        """Whether entries are added by their gradient."""
        return self.moving and self.regrow == "gradient" and bool(self.masked)

    def revise(self, memory: State, info: LocalTrainingInfo, clock: Clock, key: Key) -> tuple[State, Payload]:
        """Drop the entries of smallest magnitude, and add the same number of other entries."""
        old: Bits = memory["mask"]
        if not self.moving or not old:
            return memory, {}
        wanted = info.gradient() if self.regrow == "gradient" else _drawn(fold(key, "regrow"), info.weights, old)
        weight, score = masks.padded(info.weights, old), masks.padded(wanted, old, torch.nan)
        before = masks.joined(old, weight.device)
        sizes, share = [8 * len(old[name]) for name in sorted(old)], self.rate_at(clock)
        moves = [math.ceil(share * count - 1e-9) for _, count, _ in sorted(self.masked)]
        after = bits(moved(unbits(before, len(weight)), weight.abs(), score.abs(), sizes, moves))
        return {"mask": masks.cut(after, old)}, masks.changes(before, after)

    def follow(self, memory: State, payload: Payload, like: Params) -> State:
        """Apply the changed bits. Refuse a payload that changes the number of entries in a tensor."""
        if not self.moving or not memory["mask"]:
            masks.refuse_unless(not payload, "sends a mask update, but its mask is fixed")
            return memory
        new = masks.turned(memory["mask"], payload, like)
        for name, packed in new.items():
            same = masks.count(packed) == masks.count(memory["mask"][name])
            masks.refuse_unless(same, f"changes the number of entries in its mask of {name}")
        return {"mask": new}


def moved(held: Tensor, weight: Tensor, wanted: Tensor, sizes: Sequence[int], counts: Sequence[int]) -> Tensor:
    """Return masks that drop entries by ``weight`` and add the same number by ``wanted``.

    All are vectors of consecutive tensors with these sizes. Of each tensor, the ``counts`` smallest weights are dropped
    and the largest values of ``wanted`` are added. An entry with NaN in ``wanted`` is not added. A dropped entry may be
    added again at once. Among equal values, the first are chosen.
    """
    if not any(counts):
        return held
    left = held & ~masks.smallest_of_each(torch.where(held, weight, torch.inf), sizes, counts)
    return left | masks.smallest_of_each(torch.where(left, torch.nan, -wanted), sizes, counts)


@lru_cache(maxsize=256)
def _first(masked: Masked, key: Key, client: int | None) -> Bits:
    """Return the initial mask of a client, or of all clients: the first entries of a random permutation."""
    found = {}
    for name, count, size in masked:
        at = fold(key, MASK, name, *([] if client is None else [client]))
        found[name] = bits(masks.smallest(words(at, size) ^ LOWEST, count))
    return found


def _drawn(key: Key, weights: Params, masked: Bits) -> Params:
    """Return random scores of the masked tensors, by which entries are added at random."""
    sizes = {name: (weights[name].numel(), weights[name].device) for name in masked}
    return {name: uniform(fold(key, name), n, dtype=torch.float64, device=at) for name, (n, at) in sizes.items()}
