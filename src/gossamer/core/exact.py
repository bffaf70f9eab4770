"""Sums, norms and logarithms with the same bits on every device.

``torch.sum`` and ``torch.linalg.norm`` add in an order that depends on the device, the number of threads and the shape.
Rounding depends on the order, so a codec that sends such a sum would send different bytes from a GPU and a CPU. The
functions here are elementwise additions, multiplications and square roots, whose rounding IEEE 754 defines. Each is a
separate tensor operation, because a compiler may fuse a product with a sum, which is rounded differently. The square
root on a CPU is NumPy's, because torch's is sometimes off by one bit.

>>> norm(torch.tensor([[3e30, 4e30], [0, 0]]))
tensor([5.0000e+30, 0.0000e+00])
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor


class FloatFormat(NamedTuple):
    """The format of a floating-point type.

    Args:
        fraction: the number of bits of the fraction
        bias: the bias of the exponent
        integer: the integer type of the same width
    """

    fraction: int
    bias: int
    integer: torch.dtype


TERMS = 12
"""The number of terms of the series of the logarithm: the next is at most 0.172**24 / 25, below 2e-20."""

CACHED = 2**17
"""Number of entries that a CPU computes at a time: the temporary values of more would not fit its cache."""

FEW = 2**14
"""Number of entries up to which NumPy is faster than torch on a CPU."""

FORMATS = {torch.float32: FloatFormat(23, 127, torch.int32), torch.float64: FloatFormat(52, 1023, torch.int64)}


def total(x: Tensor) -> Tensor:
    """Return the sum over the last dimension, by pairwise summation. The sum of no entries is zero.

    The first half is added to the second, entry by entry, until one entry is left. The last entry of an odd number
    waits for the next pass. So no value goes through more than ceil(log2(n)) additions, and the sum of a row does not
    depend on other rows.
    """
    if x.shape[-1] == 0:
        return x.new_zeros(x.shape[:-1])
    if x.device.type == "cpu" and x.numel() <= FEW and x.dtype in FORMATS and not x.requires_grad:
        return torch.from_numpy(np.asarray(_halved(x.numpy(), np.concatenate))[..., 0].copy())
    found: Tensor = _halved(x, torch.cat)[..., 0]
    return found


def _halved(x: Any, join: Callable[..., Any]) -> Any:
    """Return the sum over the last dimension, with size 1, of a tensor or an array, whose pieces ``join`` joins.

    NumPy's operations on a few entries take a fraction of torch's time.
    """
    while (n := x.shape[-1]) > 1:
        half = n // 2
        added = x[..., :half] + x[..., half : 2 * half]
        x = join((added, x[..., -1:]), -1) if n % 2 else added
    return x


def in_pieces(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """Return an elementwise function of a tensor. On a CPU, it is computed in pieces that fit the cache.

    The temporary values of a long vector, or of a large group's rows, can take four times as long otherwise.
    """
    if x.device.type != "cpu" or x.numel() <= CACHED:
        return function(x)
    return torch.cat([function(piece) for piece in x.reshape(-1).split(CACHED)]).view(x.shape)


def norm(x: Tensor) -> Tensor:
    """Return the Euclidean norm over the last dimension. It is infinite only if the true norm exceeds the type."""
    y, exponent = unit(x)
    return shift(root(total(y * y)), exponent[..., 0])


def root(x: Tensor) -> Tensor:
    """Return the square root, rounded as IEEE 754 requires."""
    return torch.from_numpy(np.asarray(np.sqrt(x.numpy()))) if x.device.type == "cpu" else x.sqrt()


def log(x: Tensor) -> Tensor:
    """Return the natural logarithm of positive numbers, computed in float64.

    With x = m 2**e and m in [1/sqrt(2), sqrt(2)), it is e log(2) + 2 artanh((m - 1) / (m + 1)). The terms of the series
    after the last are below the precision of float64.

    >>> log(torch.tensor([1.0, 2.0, 1e-30]))
    tensor([  0.0000,   0.6931, -69.0776])
    """
    return in_pieces(_log, x)


def _log(x: Tensor) -> Tensor:
    mantissa, exponent = torch.frexp(x.double())
    low = mantissa < math.sqrt(0.5)
    m, e = torch.where(low, mantissa * 2, mantissa), (exponent - low.int()).double()
    s = (m - 1) / (m + 1)
    square, series = s * s, torch.zeros_like(s)
    for odd in range(2 * TERMS - 1, 0, -2):
        series = series * square + 1 / odd
    return (e * math.log(2) + s * series * 2).to(x.dtype)


def unit(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return ``y`` and ``e`` with ``x = y * 2**e``. The largest magnitude of each row of ``y`` is in [1/2, 1).

    The squares of ``y`` can then be summed without overflow, and without relevant underflow. Only entries about 2**126
    times smaller than the largest are rounded (2**1022 for float64). At the ends of the range, where 2**e is not a
    float, the largest magnitude of ``y`` can be as small as 2**-23 (2**-52) or almost 4. ``e`` keeps the last
    dimension, with size 1. It is 0 for a row of zeros.
    """
    if x.shape[-1] == 0:
        return x, torch.zeros(*x.shape[:-1], 1, dtype=torch.int32, device=x.device)
    low, high = x.amin(-1, keepdim=True), x.amax(-1, keepdim=True)  # aminmax takes ten times as long
    limit = FORMATS[x.dtype].bias - 1
    exponent = torch.frexp(torch.maximum(-low, high)).exponent.clamp(-limit, limit)
    return shift(x, -exponent), exponent


def shift(x: Tensor, exponent: Tensor) -> Tensor:
    """Return ``x * 2**exponent`` for integers from -126 to 126 (-1022 to 1022 for float64).

    ``torch.ldexp`` computes the power of 2 in floating point, which need not be exact. Here the power is built from
    its bits: no sign, the biased exponent, no fraction.
    """
    layout = FORMATS[x.dtype]
    return x * (exponent.to(layout.integer) + layout.bias << layout.fraction).view(x.dtype)
