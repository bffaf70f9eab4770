"""A masked-noise message added to a running sum in one pass on a GPU. Imported only where Triton and a GPU are.

One counter of Philox4x64-10 gives four words, which are eight uniform numbers, for which one byte of the mask has the
bits. So each lane takes a counter and a byte, and makes eight entries: nothing but the sum and the mask is read, and
nothing but the sum is written. The arithmetic is that of ``gossamer.core.random.noise``, operation for operation.

The sum may be a piece of the message's vector. It then begins at any entry, not only at the first of eight: the first
lane makes all eight, and adds those that are in the piece.

A compiler would turn ``sum + weight * value`` into one fused operation, rounded once where the CPU rounds twice. The
kernel is therefore compiled with ``enable_fp_fusion=False``, by which Triton keeps products and sums apart in LLVM and
in ptxas alike.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from gossamer.core import random
from gossamer.core.random import Key

ROUNDS = tl.constexpr(10)
STEP = tl.constexpr(0.5**23)
BLOCK = 256
EIGHT = 8


# Triton compiles annotations too, and knows none but its own.
def _value(half, byte, bit: tl.constexpr, alpha, least, signed: tl.constexpr):  # type: ignore[no-untyped-def]
    """The masked noise that comes of half a word and one bit of a byte."""
    noise = ((half >> 8).to(tl.int32).to(tl.float32) * STEP - 1) * alpha
    noise = tl.where(tl.abs(noise) < least, least, noise)
    mask = ((byte >> bit) & 1).to(tl.float32)
    if signed:
        mask = 2 * mask - 1
    return noise * mask


_one: Any = triton.jit(_value)


def _fold(acc, packed, first, n, key_a, key_b, alpha, least, weight, signed: tl.constexpr, block: tl.constexpr):  # type: ignore[no-untyped-def]
    begin = first // 8 + tl.program_id(0).to(tl.int64) * block
    lane = begin + tl.arange(0, block)
    byte = tl.load(packed + lane, mask=lane * 8 - first < n, other=0).to(tl.int32)
    counter = (lane + 1).to(tl.uint64)
    zero = counter * 0
    # The key comes as int64, since the same bits in Python's unsigned form would compile a second kernel.
    a, b = zero + key_a.to(tl.uint64), zero + key_b.to(tl.uint64)
    c0, c1, c2, c3 = tl.philox_impl(counter, zero, zero, zero, a, b, ROUNDS)
    v0 = _one(c0.to(tl.uint32), byte, 0, alpha, least, signed)
    v1 = _one((c0 >> 32).to(tl.uint32), byte, 1, alpha, least, signed)
    v2 = _one(c1.to(tl.uint32), byte, 2, alpha, least, signed)
    v3 = _one((c1 >> 32).to(tl.uint32), byte, 3, alpha, least, signed)
    v4 = _one(c2.to(tl.uint32), byte, 4, alpha, least, signed)
    v5 = _one((c2 >> 32).to(tl.uint32), byte, 5, alpha, least, signed)
    v6 = _one(c3.to(tl.uint32), byte, 6, alpha, least, signed)
    v7 = _one((c3 >> 32).to(tl.uint32), byte, 7, alpha, least, signed)
    even = tl.interleave(tl.interleave(v0, v4), tl.interleave(v2, v6))
    odd = tl.interleave(tl.interleave(v1, v5), tl.interleave(v3, v7))
    values = tl.interleave(even, odd)
    place = begin * 8 + tl.arange(0, 8 * block) - first
    inside = (place >= 0) & (place < n)
    before = tl.load(acc + place, mask=inside, other=0.0)
    tl.store(acc + place, before + weight * values, mask=inside)


# Not specialised: an argument that happens to be 1, or a multiple of 16, must not compile another kernel.
_kernel: Any = triton.jit(_fold, do_not_specialize=["first", "n", "key_a", "key_b"])


def fold(
    acc: Tensor, packed: Tensor, key: Key, alpha: float, least: float, weight: float, signed: bool, first: int = 0
) -> None:
    """Add ``weight`` times uniform noise of magnitude ``alpha`` under a mask to ``acc``, contiguous float32.

    ``packed`` is the mask, one bit an entry, on the same device; the three floats must be float32 values already. The
    sum's entries are those of the message from ``first`` on.
    """
    n = acc.numel()
    if n:
        programs = triton.cdiv(first % EIGHT + n, EIGHT * BLOCK)
        words = (random.signed(key.a), random.signed(key.b))
        with torch.cuda.device(acc.device):
            _kernel[(programs,)](
                acc, packed, first, n, *words, alpha, least, weight, signed=signed, block=BLOCK, enable_fp_fusion=False
            )
