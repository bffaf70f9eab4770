"""Triton kernel that adds a masked-noise message to a running sum in one pass. Imported only with Triton and a GPU.

One counter of Philox4x64-10 gives four words, which are eight uniform numbers. Their mask bits are one byte. So each
lane takes a counter and a byte, and computes eight entries. Only the sum and the mask are read, and only the sum is
written. The arithmetic is that of ``gossamer.core.random.noise``, operation by operation.

The sum may be a piece of the message's vector, which starts at any entry. The first lane then computes all eight of its
entries, and adds those in the piece.

A compiler would turn ``sum + weight * value`` into one fused operation, rounded once where the CPU rounds twice. The
kernel is therefore compiled with ``enable_fp_fusion=False``, which keeps products and sums separate in LLVM and ptxas.
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


# Without annotations: Triton would compile them, and knows only its own.
def _value(half, byte, bit: tl.constexpr, alpha, least, scale, signed: tl.constexpr):  # type: ignore[no-untyped-def]
    """Return the masked noise from half a word and one bit of a byte."""
    noise = ((half >> 8).to(tl.int32).to(tl.float32) * STEP - 1) * alpha
    noise = tl.where(tl.abs(noise) < least, least, noise) * scale
    mask = ((byte >> bit) & 1).to(tl.float32)
    if signed:
        mask = 2 * mask - 1
    return noise * mask


_one: Any = triton.jit(_value)


def _fold(acc, packed, first, n, key_a, key_b, alpha, least, scale, weight, signed: tl.constexpr, block: tl.constexpr):  # type: ignore[no-untyped-def]
    begin = first // 8 + tl.program_id(0).to(tl.int64) * block
    lane = begin + tl.arange(0, block)
    byte = tl.load(packed + lane, mask=lane * 8 - first < n, other=0).to(tl.int32)
    counter = (lane + 1).to(tl.uint64)
    zero = counter * 0
    # The key is passed as int64: the same bits as an unsigned Python integer would compile a second kernel.
    a, b = zero + key_a.to(tl.uint64), zero + key_b.to(tl.uint64)
    c0, c1, c2, c3 = tl.philox_impl(counter, zero, zero, zero, a, b, ROUNDS)
    v0 = _one(c0.to(tl.uint32), byte, 0, alpha, least, scale, signed)
    v1 = _one((c0 >> 32).to(tl.uint32), byte, 1, alpha, least, scale, signed)
    v2 = _one(c1.to(tl.uint32), byte, 2, alpha, least, scale, signed)
    v3 = _one((c1 >> 32).to(tl.uint32), byte, 3, alpha, least, scale, signed)
    v4 = _one(c2.to(tl.uint32), byte, 4, alpha, least, scale, signed)
    v5 = _one((c2 >> 32).to(tl.uint32), byte, 5, alpha, least, scale, signed)
    v6 = _one(c3.to(tl.uint32), byte, 6, alpha, least, scale, signed)
    v7 = _one((c3 >> 32).to(tl.uint32), byte, 7, alpha, least, scale, signed)
    even = tl.interleave(tl.interleave(v0, v4), tl.interleave(v2, v6))
    odd = tl.interleave(tl.interleave(v1, v5), tl.interleave(v3, v7))
    values = tl.interleave(even, odd)
    index = begin * 8 + tl.arange(0, 8 * block) - first
    inside = (index >= 0) & (index < n)
    before = tl.load(acc + index, mask=inside, other=0.0)
    tl.store(acc + index, before + weight * values, mask=inside)


# Not specialized: an argument of 1, or a multiple of 16, must not compile another kernel.
_kernel: Any = triton.jit(_fold, do_not_specialize=["first", "n", "key_a", "key_b"])


def fold(
    acc: Tensor,
    packed: Tensor,
    key: Key,
    alpha: float,
    least: float,
    scale: float,
    weight: float,
    signed: bool,
    first: int = 0,
) -> None:
    """Add ``weight`` times masked uniform noise to ``acc``, a contiguous float32 vector.

    The noise has magnitude ``alpha``, is at least ``least``, and is then multiplied with ``scale``. These and
    ``weight`` must be float32 values already. ``packed`` is the mask on the same device, one bit per entry. The sum
    starts at entry ``first`` of the message.
    """
    n = acc.numel()
    if n:
        programs = triton.cdiv(first % EIGHT + n, EIGHT * BLOCK)
        words = (random.signed(key.a), random.signed(key.b))
        factors = (alpha, least, scale, weight)
        with torch.cuda.device(acc.device):
            _kernel[(programs,)](
                acc, packed, first, n, *words, *factors, signed=signed, block=BLOCK, enable_fp_fusion=False
            )
