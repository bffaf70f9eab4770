"""Gaussian noise for differential privacy, from a key or from the operating system's generator.

The noise of ``gossamer.core.random.noise`` is for codecs: it has 31 bits per draw, no draw beyond 6.3 standard
deviations, and a piecewise linear inverse. That is not fit for privacy, whose delta is a statement about tails. Here a
pair of draws comes from two words of 64 bits by the method of Box and Muller, in float64:

    v      the top 63 bits of the first word:       u = (v + 1/2) / 2**63,  r = sqrt(-2 log u)
    f      the top 53 bits of the second word:      a = f pi / 2**55, an angle in [0, pi/4)
    pair   r cos a and r sin a, exchanged if bit 0 of the second word is 1, with signs from bits 1 and 2

The largest magnitude is 9.42; a normal variable exceeds it with probability 5e-21. Logarithm, sine and cosine are
series of single IEEE operations, so the bits are the same on every device.

Philox is a generator for simulation, and its keys follow from the seed of a run: with the seed, the noise can be
subtracted. ``secure=True`` draws from ``os.urandom``: every deployment does, and simulations that ask for it.

Floating-point numbers leak too (Mironov, On Significance of the Least Significant Bits for Differential Privacy, CCS
2012): not every number is the sum of a value and a possible draw, so the low bits of a noisy value can reveal the
value. ``secure=True`` therefore returns half of the sum of four independent draws (Holohan and Braghin, Secure Random
Sampling in Differential Privacy, ESORICS 2021, https://arxiv.org/abs/2107.10138): to find which draws lead to a number
is then infeasible. Add the noise in float64, and round afterwards. The discrete distributions of
``gossamer.parts.codecs.private`` have no such leak.
"""

import math
import os

import numpy as np
import torch
from torch import Tensor

from gossamer.core.exact import CACHED, log, root
from gossamer.core.random.keys import Key, Keys
from gossamer.core.random.streams import words

BLOCK = CACHED
"""Draws that are computed at once."""

TERMS = 9
"""Terms of the series of sine and cosine: up to pi/4, the next ones are below 2e-18."""

DRAWS = 4
"""Independent draws in one secure draw. Half of their sum is a standard normal variable."""


def words_of(key: Key | Keys, n: int, secure: bool, *, start: int = 0, device: torch.device | str = "cpu") -> Tensor:
    """Return random words as int64: words ``start`` to ``start + n`` of a key, or ``n`` of the operating system.

    They are ``[n]``, or ``[K, n]`` for the keys of rows.
    """
    if not secure:
        return words(key, n, start=start, device=device)
    shape = (len(key), n) if isinstance(key, Keys) else (n,)
    drawn = np.frombuffer(os.urandom(8 * math.prod(shape)), dtype=np.int64).reshape(shape)
    return torch.tensor(drawn, device=device)


def gaussian(
    key: Key | Keys,
    n: int,
    *,
    secure: bool = False,
    dtype: torch.dtype = torch.float64,
    device: torch.device | str = "cpu",
) -> Tensor:
    """Return ``n`` standard normal draws: those of a key, or secure ones of the operating system's generator.

    They are ``[n]``, or ``[K, n]`` for the keys of rows.

    >>> from gossamer.core.random import key
    >>> gaussian(key(7), 3, dtype=torch.float32)
    tensor([1.1395, 1.3136, 0.4958])
    """
    if isinstance(key, Keys) and len(key) > 1 and len(key) * n > BLOCK:
        together = max(1, BLOCK // n)
        groups = (key[first : first + together] for first in range(0, len(key), together))
        return torch.cat([gaussian(group, n, secure=secure, dtype=dtype, device=device) for group in groups])
    drawn = [_block(key, start, min(BLOCK, n - start), secure, device) for start in range(0, max(1, n), BLOCK)]
    return torch.cat(drawn, -1).to(dtype)


def _block(key: Key | Keys, start: int, count: int, secure: bool, device: torch.device | str) -> Tensor:
    even = count + count % 2  # so that no two draws of a secure sum come from the same pair
    if not secure:
        return _normal(words(key, even, start=start, device=device))[..., :count]
    each = _normal(words_of(key, DRAWS * even, True, device=device))
    a, b, c, d = each.view(*each.shape[:-1], DRAWS, even).unbind(-2)
    half: Tensor = (a + b + c + d) * 0.5
    return half[..., :count]


def _normal(drawn: Tensor) -> Tensor:
    """Return as many draws as words: two of each pair of words."""
    first, second = drawn.view(*drawn.shape[:-1], drawn.shape[-1] // 2, 2).unbind(-1)
    u = (((first >> 1) & (2**63 - 1)).to(torch.float64) + 0.5) * 0.5**63
    radius = root(log(u) * -2)
    cosine, sine = _point(((second >> 11) & (2**53 - 1)).to(torch.float64) * (math.pi * 0.5**55))
    swap = (second & 1) == 1
    x, y = torch.where(swap, sine, cosine), torch.where(swap, cosine, sine)
    pair = (torch.where((second & sign) == 0, one, -one) * radius for one, sign in ((x, 2), (y, 4)))
    return torch.stack(tuple(pair), -1).flatten(-2)


def _point(angle: Tensor) -> tuple[Tensor, Tensor]:
    """Return cosine and sine of angles up to pi/4, by their series."""
    square = angle * angle
    cosine, sine = torch.zeros_like(angle), torch.zeros_like(angle)
    for term in range(TERMS - 1, -1, -1):
        sign = (-1) ** term
        cosine = cosine * square + sign / math.factorial(2 * term)
        sine = sine * square + sign / math.factorial(2 * term + 1)
    return cosine, sine * angle
