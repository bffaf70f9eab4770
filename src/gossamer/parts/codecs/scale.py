"""The scale that many codecs send in addition to their bits."""

import torch
from torch import Tensor

from gossamer.core.errors import PayloadError
from gossamer.core.types import Layout, Payload
from gossamer.core.wire import expect, finite


def largest(x: Tensor) -> Tensor:
    """Return the largest magnitude as a vector of one entry. It is 0 for an empty vector.

    >>> largest(torch.tensor([1.0, -3.0]))
    tensor([3.])
    """
    return x.abs().max().view(1) if len(x) else x.new_zeros(1)


def ratio(x: Tensor, scale: Tensor) -> Tensor:
    """Return ``x / scale``, or 0 if the scale is 0, because then ``x`` is 0 too.

    The scale is a tensor on the device of ``x``, not a Python number: a GPU divides by a number by multiplying with its
    inverse, which is rounded differently.
    """
    return x / torch.where(scale > 0, scale, 1)


def expect_scale(payload: Payload, layout: Layout) -> Tensor:
    """Return the number "scale" of a payload. Raise ``PayloadError`` if it is not finite or negative."""
    scale = finite(expect(payload, "scale", layout.dtype, 1), "scale")
    if scale.item() < 0:
        raise PayloadError(f"'scale' must be at least 0, got {scale.item():g}")
    return scale


def expect_scales(payload: Payload, layout: Layout, count: int) -> Tensor:
    """Return the array "scales" of a payload. Raise ``PayloadError`` if a scale is not finite or negative."""
    scales = finite(expect(payload, "scales", layout.dtype, count), "scales")
    if bool(torch.signbit(scales).any()):
        raise PayloadError("'scales' holds a negative value")
    return scales
