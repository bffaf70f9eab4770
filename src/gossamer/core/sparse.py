"""Tensors without their zeros: a bitmap, and the entries that are not zero.

A file of such tensors stores the tensor ``NAME`` as ``NAME.values``, ``NAME.bitmap`` (one bit per entry, low bits
first) and ``NAME.shape`` wherever this takes fewer bytes. Entries of -0.0 come back as 0.0; all others are exact.

A file is untrusted. ``expand`` refuses missing pieces, wrong types and lengths, ones in the padding of a bitmap, a
number of values that is not the number of ones, and values that are not finite. A shape cannot ask for more than eight
entries per byte of the bitmap, so a small file never fills the memory.
"""

import math
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from gossamer.core import files
from gossamer.core.bits import bits, expect_bits
from gossamer.core.errors import PayloadError
from gossamer.core.untrusted import check_single
from gossamer.core.wire import expect, finite

VALUES, BITMAP, SHAPE = ".values", ".bitmap", ".shape"

HEADER = 192
"""Bytes that two more entries take in the header of a safetensors file, without the tensor's name, and the shape."""


def pays(tensor: Tensor, overhead: int = 0) -> bool:
    """Return whether bitmap, values and ``overhead`` bytes are smaller than the dense tensor.

    >>> pays(torch.ones(64)), pays(torch.tensor([0.0, 0.0, 1.0, 1.0] * 16)), pays(torch.tensor([0.0] + [1.0] * 63))
    (False, True, False)
    """
    if not tensor.is_floating_point():
        return False
    size = -(-tensor.numel() // 8) + int(tensor.count_nonzero()) * tensor.element_size()
    return size + overhead < tensor.nbytes


def split(tensor: Tensor) -> tuple[Tensor, Tensor]:
    """Return the nonzero entries in order, and the bitmap of their positions."""
    flat = tensor.detach().reshape(-1)
    return flat[flat != 0], bits(flat != 0)


def compact(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Replace every tensor for which a bitmap pays by ``.values``, ``.bitmap`` and ``.shape``.

    A network that has tensors called ``.bitmap`` is returned as it is, because a reader could not tell them apart.

    >>> {name: tensor.shape[0] for name, tensor in compact({"w": torch.eye(32)}).items()}
    {'w.values': 32, 'w.bitmap': 128, 'w.shape': 2}
    """
    found: dict[str, Tensor] = {}
    if any(name.endswith(BITMAP) for name in state):
        return dict(state)
    for name, tensor in state.items():
        if pays(tensor, HEADER + 2 * len(name)):
            values, bitmap = split(tensor)
            shape = torch.tensor(tensor.shape, dtype=torch.int64)
            found |= {name + VALUES: values, name + BITMAP: bitmap, name + SHAPE: shape}
        else:
            found[name] = tensor
    return found


def read(path: Path) -> dict[str, Tensor]:
    """Read a safetensors file, and fill in the zeros of compact tensors. Raise ``ValueError`` if it is damaged."""
    return expand(files.from_tensors(path))


def expand(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors that were passed to ``compact``. Raise ``PayloadError`` for what it cannot have made."""
    found = dict(tensors)
    for name in [name.removesuffix(BITMAP) for name in tensors if name.endswith(BITMAP)]:
        if name in tensors:
            raise PayloadError(f"{name!r} is there twice: as it is, and as a bitmap")
        pieces = {name + end: found.pop(name + end) for end in (VALUES, BITMAP, SHAPE) if name + end in found}
        found[name] = _dense(pieces, name)
    return found


def _dense(pieces: dict[str, Tensor], name: str) -> Tensor:
    """Return one tensor with its zeros."""
    shape = _shape(pieces.get(name + SHAPE), name)
    check_single(pieces)
    held = expect_bits(pieces, name + BITMAP, math.prod(shape))
    kind = pieces[name + VALUES].dtype if name + VALUES in pieces else torch.float32
    values = finite(expect(pieces, name + VALUES, kind, int(held.count_nonzero())), name + VALUES)
    if not kind.is_floating_point:
        raise PayloadError(f"{name + VALUES!r} must be floating-point numbers, got {kind}")
    dense = torch.zeros(held.numel(), dtype=kind)
    dense[held] = values
    return dense.view(shape)


def _shape(shape: Tensor | None, name: str) -> list[int]:
    """Return the shape of a compact tensor: whole numbers that are not negative."""
    if shape is None or shape.dtype != torch.int64 or shape.dim() != 1 or bool((shape < 0).any()):
        raise PayloadError(f"{name + SHAPE!r} must be a list of sizes")
    return [int(size) for size in shape]
