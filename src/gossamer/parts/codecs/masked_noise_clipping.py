"""What clipping does to an update that is masked: which entries it touches, and what it takes from their length.

For an entry u and noise n, clipping touches the entry if |u| > |n|. Of the update's length along itself, ``sum(u^2)``,
it leaves ``sum(|u| min(|u|, |n|))``. With v = |u| / alpha, the expectations over the noise are:

    noise        P(|n| < |u|)     E[min(|u|, |n|)] / alpha
    uniform      min(v, 1)        v - v^2 / 2, and 1/2 for v > 1
    bernoulli    1 for v > 1      min(v, 1)
    gauss        erf(v / r2)      v erfc(v / r2) + (1 - exp(-v^2 / 2)) r2 / rpi, with r2 and rpi the roots of 2 and pi
"""

import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from gossamer.core.random.noise import Kind
from gossamer.parts.codecs.masked_noise_scale import length, magnitude
from gossamer.parts.codecs.scale import blocks

ENTRIES = 1 << 16
"""Entries that suffice for a share with two digits."""


def clipping(
    tensors: Sequence[Tensor], noise: Kind, alpha: float | None, spread: float, block: int | None
) -> dict[str, float]:
    """Return the shares of an update's entries and of its length that clipping takes; ``alpha`` of none is auto.

    Of a long update, some blocks are measured, or some entries of the only block.
    """
    step = max(1, sum(map(len, tensors)) // ENTRIES)
    sums = [_sums(*sample, noise) for sample in _samples(tensors, step, alpha, spread, block)]
    touched, changed, left, whole = torch.stack(sums).sum(0).tolist() if sums else (0, 0, 0, 0)
    return {
        "clipped": touched / changed if changed else 0.0,
        "clipped_length": 1 - left / whole if whole else 0.0,
    }


def _sums(rows: Tensor, size: Tensor, noise: Kind) -> Tensor:
    """Return the number of entries that clipping touches, that of changed entries, what is left of length, and length.

    They stay on their device, so that a GPU is waited for once.
    """
    v = rows.double().abs() / size
    some, rest = expected(v, noise)
    along = size**2 * v
    return torch.stack([some.sum(), (v > 0).sum(), (along * rest).sum(), (along * v).sum()])


def _samples(
    tensors: Sequence[Tensor], step: int, alpha: float | None, spread: float, block: int | None
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield every ``step``-th block of all tensors, or entry of an only block, with the magnitudes of the noise.

    Blocks of the same length are measured together.
    """
    several: dict[int, list[Tensor]] = {}
    for u in tensors:
        rows = blocks(u, length(len(u), block if alpha is None else None))
        if len(rows) > 1:
            several.setdefault(rows.shape[1], []).append(rows[::step])
        else:
            yield rows[:, ::step], _magnitude(rows, alpha, spread)
    for alike in several.values():
        yield (rows := torch.cat(alike)), _magnitude(rows, alpha, spread)


def _magnitude(rows: Tensor, alpha: float | None, spread: float) -> Tensor:
    """Return the magnitude of the noise of each row, in float64."""
    return (magnitude(rows, spread) if alpha is None else torch.full_like(rows[:, :1], alpha)).double()


def expected(v: Tensor, noise: Kind) -> tuple[Tensor, Tensor]:
    """Return for each magnitude the probability that it exceeds the noise, and the expectation of what is left."""
    if noise == "uniform":
        inside = v.clamp(max=1)
        return inside, inside - inside.square() / 2
    if noise == "bernoulli":
        return (v > 1).to(v.dtype), v.clamp(max=1)
    root = math.sqrt(2)
    tail = torch.special.erfc(v / root)
    return 1 - tail, v * tail + math.sqrt(2 / math.pi) * (1 - torch.exp(-v.square() / 2))
