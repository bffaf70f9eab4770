"""Standard normal numbers for the noise of a local step, from a client's key or from the operating system.

Those of a key are computed within a step, which may be stacked, compiled or captured. They come from uniform numbers by
Box and Muller: with a radius ``u`` of 48 bits and an angle ``v`` of 24 bits,

    z = sqrt(-2 ln u) cos(2 pi v)    and    sqrt(-2 ln u) sin(2 pi v)

The largest |z| is 8.3. Logarithms and cosines differ between devices in the last bit, so do these numbers; where a
sender and a receiver must agree, use ``core.random.noise``. They are for simulation: with the seed of a run, the noise
can be subtracted. Deployments use ``system_normal``, whose numbers come from the operating system.
"""

import math

import torch
from torch import Tensor

from gossamer.core.random.keys import Key
from gossamer.core.random.private import gaussian
from gossamer.core.random.streams import draws

FINE = 2.0**-24


def normal(key: Tensor, step: Tensor, n: int, dtype: torch.dtype) -> Tensor:
    """Return ``n`` standard normal numbers from ``draws``, or ``[K, n]`` for ``[K, 2]`` keys."""
    pairs = -(-n // 2)
    high, low, angle = draws(key, step, 3 * pairs).to(dtype).unflatten(-1, (3, pairs)).unbind(-2)
    # Half a step more than 0, so that the logarithm is finite.
    radius = (-2 * torch.log(high + (low + FINE / 2) * FINE)).clamp(min=0).sqrt()
    turn = 2 * math.pi * angle
    return torch.cat((radius * turn.cos(), radius * turn.sin()), -1)[..., :n].contiguous()


def system_normal(n: int, device: torch.device) -> Tensor:
    """Return the same from the operating system's generator, as float64: add them in float64, and round afterwards."""
    return gaussian(Key(0, 0), n, secure=True, device=device)
