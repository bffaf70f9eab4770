"""Triton kernels for the word stream of ``gossamer.core.random``. Imported only for CUDA devices.

Triton has Philox4x64-10: for unsigned 64-bit counters, ``philox_impl`` uses the 64-bit constants. The kernels here
define the counters and the order of the words. Each program computes the four words of BLOCK counters and stores them
next to each other. The first ``skip`` words, and words past the end, are masked out.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

ROUNDS = tl.constexpr(10)
BLOCK = 256


# Without annotations: Triton would compile them, and knows only its own.
def _philox(out, n, first, skip, key_a, key_b, block: tl.constexpr):  # type: ignore[no-untyped-def]
    program = tl.program_id(0).to(tl.int64)
    lane = program * block + tl.arange(0, block)
    counter = (first + lane).to(tl.uint64)
    zero = counter * 0
    # The key is passed as int64: the same bits as an unsigned Python integer would compile a second kernel.
    a, b = zero + key_a.to(tl.uint64), zero + key_b.to(tl.uint64)
    c0, c1, c2, c3 = tl.philox_impl(counter, zero, zero, zero, a, b, ROUNDS)
    words = tl.interleave(tl.interleave(c0, c2), tl.interleave(c1, c3))
    index = program * (4 * block) + tl.arange(0, 4 * block) - skip
    tl.store(out + index, words.to(tl.int64, bitcast=True), mask=(index >= 0) & (index < n))


def _philox_at(out, n, key, step, third, fourth, block: tl.constexpr):  # type: ignore[no-untyped-def]
    program = tl.program_id(0).to(tl.int64)
    lane = program * block + tl.arange(0, block)
    counter = (1 + lane).to(tl.uint64)
    zero = counter * 0
    a, b = zero + tl.load(key).to(tl.uint64), zero + tl.load(key + 1).to(tl.uint64)
    second = zero + tl.load(step).to(tl.uint64)
    c, d = zero + third.to(tl.uint64), zero + fourth.to(tl.uint64)
    c0, c1, c2, c3 = tl.philox_impl(counter, second, c, d, a, b, ROUNDS)
    words = tl.interleave(tl.interleave(c0, c2), tl.interleave(c1, c3))
    index = program * (4 * block) + tl.arange(0, 4 * block)
    tl.store(out + index, words.to(tl.int64, bitcast=True), mask=index < n)


# Not specialized: an argument of 1, or a multiple of 16, must not compile another kernel.
_kernel: Any = triton.jit(_philox, do_not_specialize=["n", "first", "skip", "key_a", "key_b"])
_kernel_at: Any = triton.jit(_philox_at, do_not_specialize=["n", "third", "fourth"])


def words_at(key: Tensor, step: Tensor, n: int, third: int = 0, fourth: int = 0) -> Tensor:
    """Return ``n`` words. Key and step (the counter's second word) are read on the device, for CUDA graph capture.

    ``third`` and ``fourth`` are the counter's other words.
    """
    out = torch.empty(n, dtype=torch.int64, device=key.device)
    if n:
        with torch.cuda.device(out.device):
            programs = triton.cdiv(n, 4 * BLOCK)
            _kernel_at[(programs,)](out, n, key.contiguous(), step.contiguous(), third, fourth, block=BLOCK)
    return out


def words(key_a: int, key_b: int, first: int, skip: int, n: int, device: torch.device) -> Tensor:
    """Return ``n`` words, starting ``skip`` words into the block with counter ``first``. Key words are int64."""
    out = torch.empty(n, dtype=torch.int64, device=device)
    if n:
        programs = triton.cdiv(skip + n, 4 * BLOCK)
        with torch.cuda.device(out.device):
            _kernel[(programs,)](out, n, first, skip, key_a, key_b, block=BLOCK)
    return out
