"""Standard normal numbers for the noise of a local step: from a client's key, or from the operating system.

Both come from uniform numbers by Box and Muller: of a radius ``u`` with 48 bits and an angle ``v`` with 24 bits,

    z = sqrt(-2 ln u) cos(2 pi v)    and    sqrt(-2 ln u) sin(2 pi v)

The largest |z| is 8.3. Logarithms and cosines differ between devices in the last bit, so do these numbers; where a
sender and a receiver must agree, use ``core.random.noise``. Philox is no cryptographic generator: who knows the key, or
can guess it from a seed, knows the noise. Numbers of the operating system protect against that. Neither protects
against attacks on the rounding of floating-point numbers, https://doi.org/10.1145/2382196.2382264.
"""

import math
import os
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from gossamer.core.random.streams import draws

FINE = 2.0**-24


def normal_like(key: Tensor, step: Tensor, like: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return standard normal numbers for all entries of some tensors, from ``draws``: they can be stacked."""
    return _shaped(draws(key, step, _count(like)), like)


def system_normal_like(like: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return standard normal numbers for all entries of some tensors, from the operating system's generator."""
    halves = np.frombuffer(os.urandom(4 * _count(like)), dtype=np.uint32)
    values = torch.from_numpy((halves >> 8).astype(np.float32) * np.float32(FINE))
    device = next(iter(like.values())).device
    return _shaped(values.to(device), like)


def _count(like: Mapping[str, Tensor]) -> int:
    """Return the number of uniform values: two for a radius and one for an angle, for every two entries."""
    return 3 * -(-sum(tensor.numel() for tensor in like.values()) // 2)


def _shaped(uniform: Tensor, like: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the normal numbers of uniform values, cut in name order."""
    dtype = next(iter(like.values())).dtype
    high, low, angle = uniform.to(dtype).view(3, -1)
    # Half a step more than 0, so that the logarithm is finite.
    radius = (-2 * torch.log(high + (low + FINE / 2) * FINE)).clamp(min=0).sqrt()
    turn = 2 * math.pi * angle
    values, found, start = torch.cat((radius * turn.cos(), radius * turn.sin())), dict[str, Tensor](), 0
    for name in sorted(like):
        shape = like[name].shape
        found[name] = values[start : start + shape.numel()].view(shape)
        start += shape.numel()
    return found
