"""Shared noise that sender and receiver draw from the same key: uniform, Gaussian or Bernoulli.

The bits are the same on every device. Entry i of a key's noise comes from half i of its words
(``gossamer.core.random``), so any range can be drawn without the entries before it. All three kinds are float32,
symmetric about zero and of magnitude ``alpha``:

    uniform      alpha (2 u - 1) for the key's uniform u in [0, 1)
    bernoulli    -alpha for u < 1/2, else alpha
    gauss        alpha z: the top bit of the half is the sign of z, the other 31 are its tail probability

Logarithms and cosines differ between devices in the last bit, so z comes from a table. With v the 31 bits as a number,
``t = (v + 1/2) / 2**31`` is the probability of a magnitude above |z|. |z| is interpolated linearly in a table of the
inverse. The nodes of the table divide each octave of t into 256, so it is as fine in the tails as in the middle. The
index into the table is read from the bits of ``v + 1/2`` as a float64. The interpolation error is below 1e-6, and the
largest |z| is 6.3. All operations are integer arithmetic, or single IEEE products and sums.

Masks are computed by division by the noise, so magnitudes below 1e-8 are replaced by 1e-8.
"""

import functools
from statistics import NormalDist
from typing import Literal, get_args

import numpy as np
import torch
from torch import Tensor

from gossamer.core.exact import in_pieces
from gossamer.core.random.keys import Key, Keys
from gossamer.core.random.streams import halves, uniform, words

Kind = Literal["uniform", "gauss", "bernoulli"]
KINDS: tuple[Kind, ...] = get_args(Kind)


def single(number: float) -> float:
    """Return the float32 nearest to a number, as a float32 tensor rounds it on any device."""
    return float(np.float32(number))


LEAST = single(1e-8)
SPLITS = 8  # binary logarithm of the number of nodes per octave
FRACTION = 52 - SPLITS  # bits of a float64's mantissa below the node
FIRST = 1022 << SPLITS  # exponent and node of 1/2, the smallest v + 1/2
OCTAVES = 32
GRID = 2.0**24  # nodes are rounded to multiples of 1 / GRID, so that they do not depend on the math library


def draw(
    kind: Kind, alpha: float, key: Key | Keys, n: int, *, start: int = 0, device: torch.device | str = "cpu"
) -> Tensor:
    """Return entries ``start`` to ``start + n`` of a key's noise, as float32: ``[n]``, or ``[K, n]``."""
    size = single(alpha)
    if kind == "gauss":
        return _off_zero(_normal(key, n, start, device).mul_(size))
    noise = uniform(key, n, start=start, device=device)
    if kind == "uniform":
        return _off_zero(noise.mul_(2).sub_(1).mul_(size))
    return noise.ge(0.5).to(torch.float32).mul_(2 * size).sub_(size)


def _off_zero(noise: Tensor) -> Tensor:
    size = noise.abs()
    # Such entries are rare, and on a CPU the test is faster than the fill.
    if noise.device.type != "cpu" or (noise.numel() and float(size.amin()) < LEAST):
        noise.masked_fill_(size < LEAST, LEAST)
    return noise


def _normal(key: Key | Keys, n: int, start: int, device: torch.device | str) -> Tensor:
    first, last = start // 2, -(-(start + n) // 2)
    drawn = halves(words(key, last - first, start=first, device=device))[..., start % 2 :][..., :n]
    return in_pieces(normal_of, drawn)


def normal_of(drawn: Tensor) -> Tensor:
    """Return a float32 normal number for each 32-bit number, given as int64 from 0 to 2**32 - 1."""
    float_bits = ((drawn & 0x7FFFFFFF).to(torch.float64) + 0.5).view(torch.int64)
    node = (float_bits >> FRACTION) - FIRST
    table = _table(drawn.device)
    low, high = table[node], table[node + 1]
    part = (float_bits & ((1 << FRACTION) - 1)).to(torch.float64).mul_(0.5**FRACTION)
    size = low + (high - low).mul_(part)
    return torch.where(drawn < 2**31, size, -size).to(torch.float32)


@functools.cache
def _table(device: torch.device) -> Tensor:
    """Return the magnitude that a normal variable exceeds with probability t, at the nodes from t = 2**-32 to 1."""
    nodes = range((OCTAVES << SPLITS) + 1)
    tails = (2.0 ** ((i >> SPLITS) - OCTAVES) * (1 + (i % (1 << SPLITS)) / (1 << SPLITS)) for i in nodes)
    inverse = NormalDist().inv_cdf
    return torch.tensor([round(-inverse(t / 2) * GRID) / GRID for t in tails], dtype=torch.float64, device=device)
