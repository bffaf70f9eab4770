"""Sums and norms with the same bits on every device.

``torch.sum`` and ``torch.linalg.norm`` add in whatever order suits the device, the number of threads and the shape, and
rounding depends on the order: a codec that sent such a sum would send other bytes from a GPU than from a CPU. Here all
is elementwise: additions, multiplications and square roots, which IEEE 754 rounds in one way only. Each is a tensor
operation of its own, as a compiler may fuse a product into the sum that follows it, and that is rounded otherwise. The
square root is NumPy's on a CPU: torch's comes from a library there that is off by a bit now and then.

>>> norm(torch.tensor([[3e30, 4e30], [0, 0]]))
tensor([5.0000e+30, 0.0000e+00])
"""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor


class FloatFormat(NamedTuple):
    """Of a float: how many bits its fraction has, the bias of its exponent, and the integer of the same width."""

    fraction: int
    bias: int
    integer: torch.dtype


FORMATS = {torch.float32: FloatFormat(23, 127, torch.int32), torch.float64: FloatFormat(52, 1023, torch.int64)}


def total(x: Tensor) -> Tensor:
    """The sum over the last dimension, pairwise: zero for none.

    The first half is added to the second, entry by entry, until one entry is left; the last entry of an odd number
    waits for the next pass. So no value passes through more than ceil(log2(n)) additions, and a row's sum does not
    depend on the rows beside it.
    """
    if x.shape[-1] == 0:
        return x.new_zeros(x.shape[:-1])
    while (n := x.shape[-1]) > 1:
        half = n // 2
        added = x[..., :half] + x[..., half : 2 * half]
        x = torch.cat((added, x[..., -1:]), -1) if n % 2 else added
    return x[..., 0]


def norm(x: Tensor) -> Tensor:
    """The Euclidean norm over the last dimension; it is infinite only where the true norm has no form as a float."""
    y, exponent = unit(x)
    return shift(root(total(y * y)), exponent[..., 0])


def root(x: Tensor) -> Tensor:
    """The square root, rounded as IEEE 754 says."""
    return torch.from_numpy(np.asarray(np.sqrt(x.numpy()))) if x.device.type == "cpu" else x.sqrt()


def unit(x: Tensor) -> tuple[Tensor, Tensor]:
    """``y`` and ``e`` with ``x = y * 2**e``, the largest magnitude of each row of ``y`` at least 1/2 and below 1.

    Squares of ``y`` can then be summed without overflow, and lose nothing that counts to underflow. Nothing is rounded
    but entries some 2**126 times smaller than the largest (2**1022 for float64). At the ends of the range, where 2**e
    itself has no form, the largest magnitude of ``y`` may be as small as 2**-23 (2**-52) or almost 4. ``e`` keeps the
    last dimension, as 1; it is 0 for a row of zeros.
    """
    if x.shape[-1] == 0:
        return x, torch.zeros(*x.shape[:-1], 1, dtype=torch.int32, device=x.device)
    low, high = torch.aminmax(x, dim=-1, keepdim=True)
    limit = FORMATS[x.dtype].bias - 1
    exponent = torch.frexp(torch.maximum(-low, high)).exponent.clamp(-limit, limit)
    return shift(x, -exponent), exponent


def shift(x: Tensor, exponent: Tensor) -> Tensor:
    """``x * 2**exponent`` for integers from -126 to 126 (-1022 to 1022 for float64).

    ``torch.ldexp`` raises 2 to a power in floating point, which need not be exact; here the power is made from its
    bits: no sign, the biased exponent, no fraction.
    """
    layout = FORMATS[x.dtype]
    return x * (exponent.to(layout.integer) + layout.bias << layout.fraction).view(x.dtype)
