"""Masks as packed bits, and the encoding of a mask update: the indices of the changed bits."""

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from gossamer.core import indices
from gossamer.core.bits import numbers, unbits
from gossamer.core.errors import PayloadError
from gossamer.core.types import Params, Part, Payload, State, true_at
from gossamer.core.view import CHANGE, View
from gossamer.parts.views import mask_statistics

Bits = dict[str, Tensor]
"""Packed bits by tensor name, each padded to whole bytes. A tensor without bits is held whole."""


class MaskView(View):
    """Base of views whose client state is a personal mask, stored as ``mask``."""

    section: ClassVar[Literal["mask"]] = CHANGE

    def measure(self, before: Mapping[int, State], after: Mapping[int, State], like: Params) -> dict[str, Any]:
        """Return change, density and overlap of the masks."""
        return {"masks": mask_statistics.figures(before, after, like)}


def part(masks: Bits, like: Params) -> Part:
    """Return the part of a model that masks cover."""
    if not masks:
        return Part()
    first = next(iter(like.values()))
    packed = joined(masks, first.device)
    pieces = numbers(unbits(packed, 8 * len(packed)), first.dtype).split([8 * len(masks[n]) for n in sorted(masks)])
    found = dict(zip(sorted(masks), pieces, strict=True))
    return Part(keep={name: found[name][: like[name].numel()].view(like[name].shape) for name in masks})


def joined(masks: Bits, device: torch.device) -> Tensor:
    """Return all masks as one vector of bytes on a device, tensors in name order."""
    return torch.cat([masks[name] for name in sorted(masks)]).to(device)


def cut(packed: Tensor, like: Bits) -> Bits:
    """Return the masks in a vector of ``joined``, given masks of the same sizes."""
    pieces = packed.split([len(like[name]) for name in sorted(like)])
    found = dict(zip(sorted(like), pieces, strict=True))
    return {name: found[name].clone() for name in like}  # each with its own memory, because masks are stored


def padded(tensors: Params, like: Bits, fill: float = 0.0) -> Tensor:
    """Return tensors as one vector in the order of ``joined``, each filled up to whole bytes of its mask."""
    pieces = []
    for name in sorted(like):
        flat = tensors[name].reshape(-1)
        missing = 8 * len(like[name]) - len(flat)
        pieces += [flat, flat.new_full((missing,), fill)] if missing else [flat]
    return torch.cat(pieces)


def difference(old: Bits, new: Bits) -> Payload:
    """Encode the bits that differ between old and new masks, on the device of the new masks.

    Tensors are in name order, the order in which stored masks are read back.
    """
    device = next(iter(new.values())).device
    return changes(joined(old, device), joined(new, device))


def changes(old: Tensor, new: Tensor) -> Payload:
    """Encode the same for vectors of ``joined``."""
    return indices.pack(unbits(old ^ new, 8 * len(new)))


def turned(old: Bits, payload: Payload, like: Params) -> Bits:
    """Return the new masks from the old masks and a payload of ``difference``."""
    before = joined(old, torch.device("cpu"))
    changed = indices.unpack_bits(payload, 8 * len(before)).cpu()  # packed before it leaves a GPU
    new = cut(before ^ changed, dict(sorted(old.items())))
    for name, packed in new.items():
        count = like[name].numel()
        padded = not count % 8 or not int(packed[-1]) >> (count % 8)
        refuse_unless(padded, f"sets mask bits after the last entry of {name}")
    return new


def smallest(values: Tensor, count: int) -> Tensor:
    """Return a boolean mask of the ``count`` smallest values of a vector. Among equal values, the first are chosen."""
    if values.is_cuda:
        return by_sorting(values, [len(values)], [count])
    if count == 0:
        return torch.zeros_like(values, dtype=torch.bool)
    least = values.kthvalue(count).values
    chosen = values < least
    equal = true_at(values == least)
    chosen[equal[: count - int(chosen.sum())]] = True
    return chosen


def smallest_of_each(values: Tensor, sizes: Sequence[int], counts: Sequence[int]) -> Tensor:
    """Return the same for consecutive pieces of a vector, each with its own count."""
    if values.is_cuda:
        return by_sorting(values, sizes, counts)
    return torch.cat([smallest(*each) for each in zip(values.split(list(sizes)), counts, strict=True)])


def by_sorting(values: Tensor, sizes: Sequence[int], counts: Sequence[int]) -> Tensor:
    """Return the same by two stable sorts of the whole vector: by value, then by piece.

    On a GPU this is faster than a selection per piece. The host waits for nothing, because no size depends on a value.
    """
    starts = [end - size for end, size in zip(accumulate(sizes), sizes, strict=True)]
    edges = [edge for start, count in zip(starts, counts, strict=True) for edge in (start, start + count)]
    # Pieces keep their places in the sorted vector. So a position between the two edges of its piece, which has an odd
    # number of edges before it, has one of the smallest values.
    place = torch.arange(len(values), device=values.device, dtype=torch.int32)
    passed = torch.bucketize(place, torch.tensor(edges, dtype=torch.int32).to(place.device), right=True, out_int32=True)
    piece = (passed - 1 >> 1).to(_small(len(sizes)))
    order = values.argsort(stable=True)
    order = order[piece[order].argsort(stable=True)]
    return torch.empty_like(values, dtype=torch.bool).scatter_(0, order, (passed & 1).bool())


def _small(pieces: int) -> torch.dtype:
    """Return the type of piece numbers; sorting takes one pass per byte."""
    return torch.uint8 if pieces <= 256 else torch.int32


def count(packed: Tensor) -> int:
    """Return the number of entries that a mask covers. Words of eight bytes are counted at once."""
    held = packed.cpu().numpy()
    whole = len(held) // 8 * 8
    pieces = np.ascontiguousarray(held[:whole]).view(np.uint64), held[whole:]
    return sum(int(np.bitwise_count(piece).sum(dtype=np.int64)) for piece in pieces)


def refuse_unless(holds: bool, reason: str) -> None:
    """Raise ``PayloadError`` for an invalid mask update unless ``holds``."""
    if not holds:
        raise PayloadError(f"the client {reason}")
