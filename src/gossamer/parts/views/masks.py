"""Masks as packed bits, and how a change of them travels: the bits that turned over, in the shorter of two forms."""

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from gossamer.core import indices as positions
from gossamer.core.bits import bits, numbers, unbits
from gossamer.core.errors import PayloadError
from gossamer.core.types import Params, Part, Payload, State, true_at
from gossamer.core.view import ViewMemory
from gossamer.parts.views import mask_statistics as overlap

Bits = dict[str, Tensor]
"""Packed bits by the name of a tensor, each filled up to whole bytes; a tensor without is held whole."""


class MaskMemory(ViewMemory):
    """A view that remembers a mask of each client as ``mask``."""

    section: ClassVar[str] = "mask"

    def measure(self, before: Mapping[int, State], after: Mapping[int, State], like: Params) -> dict[str, Any]:
        """How the masks moved, and what they have in common."""
        return {"masks": overlap.figures(before, after, like)}


def part(masks: Bits, like: Params) -> Part:
    """The part of a model that masks cover."""
    return Part(keep={name: _laid(packed, like[name]) for name, packed in masks.items()})


def _laid(packed: Tensor, like: Tensor) -> Tensor:
    return numbers(unbits(packed.to(like.device), like.numel()), like.dtype).view(like.shape)


def difference(old: Bits, new: Bits) -> Payload:
    """What tells somebody who has the old masks of the new ones; in name order, as stored masks lose any other.

    It is worked out where the new masks are.
    """
    turned = torch.cat([old[name].to(new[name].device) ^ new[name] for name in sorted(old)])
    return positions.pack(unbits(turned, 8 * len(turned)))


def turned(old: Bits, said: Payload, like: Params) -> Bits:
    """The new masks, from the old ones and what was told."""
    sizes = [8 * len(old[name]) for name in sorted(old)]
    changed = positions.unpack(said, sum(sizes)).cpu()
    turns = zip(sorted(old), torch.split(changed, sizes), strict=True)
    new = {name: old[name].cpu() ^ bits(turn) for name, turn in turns}
    for name, packed in new.items():
        count = like[name].numel()
        filled = not count % 8 or not int(packed[-1]) >> (count % 8)
        refuse_unless(filled, f"holds entries of {name} that are not there")
    return new


def smallest(values: Tensor, many: int) -> Tensor:
    """Marks the smallest of a vector's values, so many; of equals the first ones. Faster than sorting them."""
    if many == 0:
        return torch.zeros_like(values, dtype=torch.bool)
    if values.is_cuda:  # where sorting is the faster way, and looking at a number makes the GPU wait
        least = values.sort().values[many - 1]
        chosen, equal = values < least, values == least
        return chosen | (equal & (equal.cumsum(0) <= many - chosen.sum()))
    least = values.kthvalue(many).values
    chosen = values < least
    equal = true_at(values == least)
    chosen[equal[: many - int(chosen.sum())]] = True
    return chosen


def count(packed: Tensor) -> int:
    """How many entries a mask covers."""
    return int(np.bitwise_count(packed.cpu().numpy()).sum(dtype=np.int64))


def refuse_unless(holds: bool, reason: str) -> None:
    """Refuse what a client says of its mask."""
    if not holds:
        raise PayloadError(f"the client {reason}")
