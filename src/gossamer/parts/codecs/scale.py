"""The one number that many codecs send beside their bits: how large an entry is."""

import torch
from torch import Tensor

from gossamer.core.errors import PayloadError
from gossamer.core.types import Layout, Payload
from gossamer.core.wire import expect, finite


def largest(x: Tensor) -> Tensor:
    """The largest magnitude as a vector of one entry, 0 for an empty vector.

    >>> largest(torch.tensor([1.0, -3.0]))
    tensor([3.])
    """
    return x.abs().max().view(1) if len(x) else x.new_zeros(1)


def ratio(x: Tensor, scale: Tensor) -> Tensor:
    """``x / scale``, and 0 where the scale is 0, as then ``x`` is too.

    The scale is a tensor where ``x`` is, never a number: a GPU divides by a number as it multiplies by its inverse,
    which is rounded otherwise.
    """
    return x / torch.where(scale > 0, scale, 1)


def expect_scale(payload: Payload, layout: Layout) -> Tensor:
    """The number named "scale" in a payload, if it is finite and not negative."""
    scale = finite(expect(payload, "scale", layout.dtype, 1), "scale")
    if scale.item() < 0:
        raise PayloadError(f"'scale' must be at least 0, got {scale.item():g}")
    return scale
