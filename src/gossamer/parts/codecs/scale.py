"""The scale that many codecs send in addition to their bits, of a whole vector or of each of its blocks.

Vectors may be the rows of a matrix: a scale keeps the last dimension, ``[1]`` or ``[K, 1]``, and so divides its row.
"""

import torch
from torch import Tensor
from torch.nn.functional import pad

from gossamer.core.errors import PayloadError
from gossamer.core.types import Layout, Payload
from gossamer.core.wire import expect, finite


def largest(x: Tensor) -> Tensor:
    """Return the largest magnitude of each row, with size 1 in the last dimension. It is 0 for an empty vector.

    >>> largest(torch.tensor([1.0, -3.0]))
    tensor([3.])
    """
    return x.abs().amax(-1, keepdim=True) if x.shape[-1] else x.new_zeros(*x.shape[:-1], 1)


def ratio(x: Tensor, scale: Tensor) -> Tensor:
    """Return ``x / scale``, or 0 if the scale is 0, because then ``x`` is 0 too.

    The scale is a tensor on the device of ``x``, not a Python number: a GPU divides by a number by multiplying with its
    inverse, which is rounded differently.
    """
    return x / torch.where(scale > 0, scale, 1)


def block_length(entries: int, block: int | None) -> int:
    """Return the number of entries per block of a tensor; without ``block`` it is one block."""
    return max(1, entries if block is None else block)


def blocks(x: Tensor, length: int, fill: float = 0.0) -> Tensor:
    """Return the last dimension as one row per block of ``length`` entries. The last row is padded with ``fill``.

    >>> blocks(torch.tensor([1.0, 2.0, 3.0]), 2)
    tensor([[1., 2.],
            [3., 0.]])
    """
    count = -(-x.shape[-1] // length)
    missing = count * length - x.shape[-1]
    whole = pad(x, (0, missing), value=fill) if missing else x
    return whole.reshape(*x.shape[:-1], count, length)


def expect_scale(payload: Payload, layout: Layout) -> Tensor:
    """Return the number "scale" of a payload. Raise ``PayloadError`` if it is not finite or negative."""
    scale = finite(expect(payload, "scale", layout.dtype, 1), "scale")
    if (least := scale.min().item()) < 0:
        raise PayloadError(f"'scale' must be at least 0, got {least:g}")
    return scale


def expect_scales(payload: Payload, layout: Layout, count: int) -> Tensor:
    """Return the array "scales" of a payload. Raise ``PayloadError`` if a scale is not finite or negative."""
    scales = finite(expect(payload, "scales", layout.dtype, count), "scales")
    if bool(torch.signbit(scales).any()):
        raise PayloadError("'scales' holds a negative value")
    return scales
