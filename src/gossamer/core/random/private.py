"""Random numbers for differential privacy, from a key or from the operating system's generator.

Philox is a generator for simulation, and its keys follow from the seed of a run: with the seed, the noise can be
subtracted. Real use needs ``secure=True``, which draws from ``os.urandom``.
"""

import math
import os

import torch
from torch import Tensor

from gossamer.core.random.streams import Key, words


def words_of(key: Key, n: int, secure: bool, *, start: int = 0, device: torch.device | str = "cpu") -> Tensor:
    """Return random words as int64: words ``start`` to ``start + n`` of a key, or ``n`` of the operating system."""
    if not secure:
        return words(key, n, start=start, device=device)
    drawn = torch.frombuffer(bytearray(os.urandom(8 * n)), dtype=torch.int64) if n else torch.empty(0).long()
    return drawn.to(device)


def gaussian(
    key: Key,
    n: int,
    *,
    secure: bool = False,
    dtype: torch.dtype = torch.float64,
    device: torch.device | str = "cpu",
) -> Tensor:
    """Return ``n`` standard normal draws of a key, or of the operating system's generator."""
    radius, angle = (words_of(key, 2 * n, secure, device=device) >> 11 & 2**53 - 1).view(2, n).double().unbind()
    length = ((radius + 0.5) * 0.5**53).log().mul(-2).sqrt()
    return (length * (angle * (2 * math.pi * 0.5**53)).cos()).to(dtype)
