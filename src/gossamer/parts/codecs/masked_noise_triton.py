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
_kernel: Any = triton.jit(_fold, do_not_specialize=["first", "start", "per_scale", "n", "key_a", "key_b"])


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
            _kernel[(programs,)](
                acc, packed, scale.values, *numbers, alpha, least, weight, signed=signed, bernoulli=bernoulli,
                block=BLOCK, enable_fp_fusion=False,
            )  # fmt: skip
