"""Triton kernels for masked noise, imported only with Triton and a GPU.

**Adding a message to a sum** in one pass (``fold``). One counter of Philox4x64-10 gives four words, which are eight
uniform numbers. Their mask bits are one byte. So each lane takes a counter and a byte, and computes eight entries. Only
the sum and the mask are read, and only the sum is written. The arithmetic is that of ``gossamer.core.random.noise``,
operation by operation.

The sum may be a piece of the message's vector, which starts at any entry. The first lane then computes all eight of its
entries, and adds those in the piece.

A compiler would turn ``sum + weight * value`` into one fused operation, rounded once where the CPU rounds twice. The
kernel is therefore compiled with ``enable_fp_fusion=False``, which keeps products and sums separate in LLVM and ptxas.

**Masking an update** in one pass (``encode``, for ``MaskedNoise(alpha="auto")``). One program takes one block of a
tensor: it measures the block's magnitude, draws the noise and the mask, and sums what the scale of the block needs.
Operation by operation, the arithmetic is that of ``masked_noise_scale`` and ``MaskedNoise``, so the bits are those of a
CPU. Sums are pairwise, as in ``gossamer.core.exact``: the first half of a block is added to the second. A shorter last
block is filled with zeros, which change no sum. So the length of a block must be a power of two. Divisions are rounded
as IEEE 754 requires.
"""

import struct
from functools import lru_cache
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from gossamer.core import random
from gossamer.core.random import Key
from gossamer.parts.codecs.masked_noise_scale import Slice

ROUNDS = tl.constexpr(10)
STEP = tl.constexpr(0.5**23)
BLOCK = 256
EIGHT = 8


# Without annotations: Triton would compile them, and knows only its own.
def _value(half, byte, bit: tl.constexpr, alpha, least, signed: tl.constexpr, bernoulli: tl.constexpr):  # type: ignore[no-untyped-def]
    """Return the masked noise, without its scale, from half a word and one bit of a byte."""
    if bernoulli:
        noise = ((half >> 31).to(tl.int32).to(tl.float32) * 2 - 1) * alpha
    else:
        noise = ((half >> 8).to(tl.int32).to(tl.float32) * STEP - 1) * alpha
    noise = tl.where(tl.abs(noise) < least, least, noise)
    mask = ((byte >> bit) & 1).to(tl.float32)
    if signed:
        mask = 2 * mask - 1
    return noise * mask


_one: Any = triton.jit(_value)


def _fold(  # type: ignore[no-untyped-def]
    acc, packed, scales, first, start, per_scale, n, key_a, key_b, alpha, least, weight,
    signed: tl.constexpr, bernoulli: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    begin = first // 8 + tl.program_id(0).to(tl.int64) * block
    lane = begin + tl.arange(0, block)
    byte = tl.load(packed + lane, mask=lane * 8 - first < n, other=0).to(tl.int32)
    counter = (lane + 1).to(tl.uint64)
    zero = counter * 0
    # The key is passed as int64: the same bits as an unsigned Python integer would compile a second kernel.
    a, b = zero + key_a.to(tl.uint64), zero + key_b.to(tl.uint64)
    c0, c1, c2, c3 = tl.philox_impl(counter, zero, zero, zero, a, b, ROUNDS)
    v0 = _one(c0.to(tl.uint32), byte, 0, alpha, least, signed, bernoulli)
    v1 = _one((c0 >> 32).to(tl.uint32), byte, 1, alpha, least, signed, bernoulli)
    v2 = _one(c1.to(tl.uint32), byte, 2, alpha, least, signed, bernoulli)
    v3 = _one((c1 >> 32).to(tl.uint32), byte, 3, alpha, least, signed, bernoulli)
    v4 = _one(c2.to(tl.uint32), byte, 4, alpha, least, signed, bernoulli)
    v5 = _one((c2 >> 32).to(tl.uint32), byte, 5, alpha, least, signed, bernoulli)
    v6 = _one(c3.to(tl.uint32), byte, 6, alpha, least, signed, bernoulli)
    v7 = _one((c3 >> 32).to(tl.uint32), byte, 7, alpha, least, signed, bernoulli)
    even = tl.interleave(tl.interleave(v0, v4), tl.interleave(v2, v6))
    odd = tl.interleave(tl.interleave(v1, v5), tl.interleave(v3, v7))
    values = tl.interleave(even, odd)
    index = begin * 8 + tl.arange(0, 8 * block) - first
    inside = (index >= 0) & (index < n)
    values = values * tl.load(scales + (index + start) // per_scale, mask=inside, other=0.0)
    before = tl.load(acc + index, mask=inside, other=0.0)
    tl.store(acc + index, before + weight * values, mask=inside)


# Not specialized: an argument of 1, or a multiple of 16, must not compile another kernel.
_folding: Any = triton.jit(_fold, do_not_specialize=["first", "start", "per_scale", "n", "key_a", "key_b"])


def fold(
    piece: Slice, packed: Tensor, key: Key, alpha: float, least: float, weight: float, signed: bool, bernoulli: bool
) -> None:
    """Add ``weight`` times masked noise, uniform or Bernoulli, to a piece of a sum: a contiguous float32 vector.

    The noise has magnitude ``alpha``, is at least ``least``, and is then multiplied with the scale of its block. These
    and ``weight`` must be float32 values already. ``packed`` is the mask on the same device, one bit per entry.
    """
    acc, scale = piece.values, piece.scale
    if n := acc.numel():
        programs = triton.cdiv(piece.first % EIGHT + n, EIGHT * BLOCK)
        numbers = (piece.first, piece.start, scale.block, n, random.signed(key.a), random.signed(key.b))
        with torch.cuda.device(acc.device):
            _folding[(programs,)](
                acc, packed, scale.values, *numbers, alpha, least, weight, signed=signed, bernoulli=bernoulli,
                block=BLOCK, enable_fp_fusion=False,
            )  # fmt: skip


# Masking an update.

BIAS, FRACTION = tl.constexpr(127), tl.constexpr(23)
BIAS_64, FRACTION_64 = tl.constexpr(1023), tl.constexpr(52)
LIMIT = tl.constexpr(126)


class Draws(NamedTuple):
    """What a mask is drawn from.

    Args:
        noise: the key of the noise
        mask: the key of the mask's random numbers
        signed: whether masks are -1 and 1
        bernoulli: whether the noise is Bernoulli, else uniform
        stochastic: whether masks are drawn at random, else by sign
        least: the smallest magnitude of uniform noise, a float32 value
    """

    noise: Key
    mask: Key
    signed: bool
    bernoulli: bool
    stochastic: bool
    least: float


# Without annotations: Triton would compile them, and knows only its own.
def _drawn(index, key_a, key_b):  # type: ignore[no-untyped-def]
    """Return the 32-bit halves of a key's words that belong to these entries."""
    counter = (index // 8 + 1).to(tl.uint64)
    zero = counter * 0
    c0, c1, c2, c3 = tl.philox_impl(
        counter, zero, zero, zero, zero + key_a.to(tl.uint64), zero + key_b.to(tl.uint64), ROUNDS
    )
    place = index % 8
    word = tl.where(place < 4, tl.where(place < 2, c0, c1), tl.where(place < 6, c2, c3))
    return tl.where(place % 2 == 1, word >> 32, word).to(tl.uint32)


def _paired(x, length: tl.constexpr, levels: tl.constexpr):  # type: ignore[no-untyped-def]
    """Return the sum of a block of ``2**levels`` entries, by pairwise summation, as a vector of one entry."""
    for level in tl.static_range(levels):
        x = tl.sum(tl.reshape(x, (2, length >> (level + 1))), 0)
        x = tl.reshape(x, (length >> (level + 1),))
    return x


_halves: Any = triton.jit(_drawn)
_sum: Any = triton.jit(_paired)


def _encode(  # type: ignore[no-untyped-def]
    update, mask, columns, starts, counts, blocks, noise_a, noise_b, mask_a, mask_b, spread, least,
    signed: tl.constexpr, bernoulli: tl.constexpr, stochastic: tl.constexpr, length: tl.constexpr,
    levels: tl.constexpr,
):  # fmt: skip
    block = tl.program_id(0)
    lane = tl.arange(0, length)
    index = tl.load(starts + block) + lane
    inside = lane < tl.load(counts + block)
    u = tl.load(update + index, mask=inside, other=0.0)

    # The magnitude: y = u / 2**exponent, sum(y^2) / sum(|y|), and back.
    top = tl.max(tl.abs(u), 0)
    field = (top.to(tl.int32, bitcast=True) >> FRACTION) - (BIAS - 1)
    exponent = tl.where(top == 0, 0, tl.minimum(tl.maximum(field, -LIMIT), LIMIT))
    y = u * ((-exponent + BIAS) << FRACTION).to(tl.float32, bitcast=True)
    whole = tl.max(_sum(tl.abs(y), length, levels), 0).to(tl.float64)
    squares = tl.max(_sum(y * y, length, levels), 0).to(tl.float64)
    power = ((exponent.to(tl.int64) + BIAS_64) << FRACTION_64).to(tl.float64, bitcast=True)
    factor = spread.to(tl.float64, bitcast=True)
    size = (squares / tl.where(whole > 0, whole, 1.0) * power * factor).to(tl.float32)

    # The noise, and the update in units of it.
    v = tl.div_rn(u, tl.where(size > 0, size, 1.0) + tl.zeros_like(u))
    half = _halves(index, noise_a, noise_b)
    if bernoulli:
        n = (half >> 31).to(tl.int32).to(tl.float32) * 2 - 1
    else:
        n = (half >> 8).to(tl.int32).to(tl.float32) * (0.5**23) - 1
        n = tl.where(tl.abs(n) < least, least, n)
    n = tl.where(inside, n, 1.0)
    share = tl.div_rn(v, n)

    if stochastic:
        low = -1.0 if signed else 0.0
        expected = tl.minimum(tl.maximum(share, low), 1.0) * n
        chance = (share + 1) * 0.5 if signed else share
        drawn = (_halves(index, mask_a, mask_b) >> 8).to(tl.int32).to(tl.float32) * (0.5**24)
        one = drawn < tl.minimum(tl.maximum(chance, 0.0), 1.0)
    else:
        one = share > 0
        expected = tl.where(one, n, -n if signed else 0.0)
    tl.store(mask + index, one.to(tl.uint8), mask=inside)

    first = columns + block + tl.arange(0, 1)
    tl.store(first, size + tl.zeros((1,), tl.float32))
    tl.store(first + blocks, _sum(v * v, length, levels))
    tl.store(first + 2 * blocks, _sum(v * expected, length, levels))


# Not specialized: an argument of 1, or a multiple of 16, must not compile another kernel.
_encoding: Any = triton.jit(_encode, do_not_specialize=["blocks", "noise_a", "noise_b", "mask_a", "mask_b", "spread"])


@lru_cache(maxsize=64)
def _table(entries: tuple[int, ...], length: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return the first entry and the number of entries of each block of some tensors, one after the other."""
    places, first = [], 0
    for size in entries:
        places += [(first + at, min(length, size - at)) for at in range(0, size, length)]
        first += size
    starts, counts = zip(*places, strict=True)
    return torch.tensor(starts, device=device), torch.tensor(counts, device=device)


def encode(x: Tensor, entries: tuple[int, ...], length: int, spread: float, by: Draws) -> tuple[Tensor, Tensor]:
    """Return the mask of an update as booleans, and three columns with a value per block, as float32.

    The columns are the magnitude, the sum of the squares in units of it, and the inner product with the expectation of
    the masked noise. ``x`` is a contiguous float32 vector on a GPU. ``entries`` are the sizes of its tensors, at least
    one, and none is empty.
    """
    starts, counts = _table(entries, length, x.device)
    mask = torch.empty(x.numel(), dtype=torch.uint8, device=x.device)
    columns = torch.empty(3, len(starts), dtype=torch.float32, device=x.device)
    keys = map(random.signed, (by.noise.a, by.noise.b, by.mask.a, by.mask.b))
    (bits,) = struct.unpack("<q", struct.pack("<d", spread))  # Triton would round a number to float32
    with torch.cuda.device(x.device):
        _encoding[(len(starts),)](
            x, mask, columns, starts, counts, len(starts), *keys, bits, by.least, signed=by.signed,
            bernoulli=by.bernoulli, stochastic=by.stochastic, length=length, levels=length.bit_length() - 1,
            enable_fp_fusion=False,
        )  # fmt: skip
    return mask.view(torch.bool), columns
