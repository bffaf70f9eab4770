"""Masks as packed bits, and the encoding of a mask update: the indices of the changed bits."""

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from gossamer.core import indices
from gossamer.core.bits import bits, numbers, unbits
from gossamer.core.errors import PayloadError
from gossamer.core.types import Params, Part, Payload, State, true_at
from gossamer.core.view import ViewMemory
from gossamer.parts.views import mask_statistics

Bits = dict[str, Tensor]
"""Packed bits by tensor name, each padded to whole bytes. A tensor without bits is held whole."""


class MaskMemory(ViewMemory):
    """A view whose client state is a personal mask, stored as ``mask``."""

    section: ClassVar[str] = "mask"

    def measure(self, before: Mapping[int, State], after: Mapping[int, State], like: Params) -> dict[str, Any]:
        """Return change, density and overlap of the masks."""
        return {"masks": mask_statistics.figures(before, after, like)}


def part(masks: Bits, like: Params) -> Part:
    """Return the part of a model that masks cover."""
    return Part(keep={name: _unpacked(packed, like[name]) for name, packed in masks.items()})


def _unpacked(packed: Tensor, like: Tensor) -> Tensor:
    return numbers(unbits(packed.to(like.device), like.numel()), like.dtype).view(like.shape)


def difference(old: Bits, new: Bits) -> Payload:
    """Encode the bits that differ between old and new masks, on the device of the new masks.

    Tensors are in name order, the order in which stored masks are read back.
    """
    changed = torch.cat([old[name].to(new[name].device) ^ new[name] for name in sorted(old)])
    return indices.pack(unbits(changed, 8 * len(changed)))


def turned(old: Bits, payload: Payload, like: Params) -> Bits:
    """Return the new masks from the old masks and a payload of ``difference``."""
    sizes = [8 * len(old[name]) for name in sorted(old)]
    changed = indices.unpack(payload, sum(sizes)).cpu()
    changes = zip(sorted(old), torch.split(changed, sizes), strict=True)
    new = {name: old[name].cpu() ^ bits(change) for name, change in changes}
    for name, packed in new.items():
        count = like[name].numel()
        padded = not count % 8 or not int(packed[-1]) >> (count % 8)
        refuse_unless(padded, f"sets mask bits after the last entry of {name}")
    return new


def smallest(values: Tensor, count: int) -> Tensor:
    """Return a boolean mask of the ``count`` smallest values of a vector. Among equal values, the first are chosen."""
    if count == 0:
        return torch.zeros_like(values, dtype=torch.bool)
    if values.is_cuda:  # On a GPU sorting is faster, and reading a number on the host would synchronize.
        least = values.sort().values[count - 1]
        chosen, equal = values < least, values == least
        return chosen | (equal & (equal.cumsum(0) <= count - chosen.sum()))
    least = values.kthvalue(count).values
    chosen = values < least
    equal = true_at(values == least)
    chosen[equal[: count - int(chosen.sum())]] = True
    return chosen


def count(packed: Tensor) -> int:
    """Return the number of entries that a mask covers."""
    return int(np.bitwise_count(packed.cpu().numpy()).sum(dtype=np.int64))


def refuse_unless(holds: bool, reason: str) -> None:
    """Raise ``PayloadError`` for an invalid mask update unless ``holds``."""
    if not holds:
        raise PayloadError(f"the client {reason}")
