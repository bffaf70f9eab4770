"""Triton kernels for the word stream of ``gossamer.core.random``. Imported only for CUDA devices.

Triton has Philox4x64-10: for unsigned 64-bit counters, ``philox_impl`` uses the 64-bit constants. The kernels here
define the counters and the order of the words. Each program computes the four words of BLOCK counters of one key and
stores them next to each other. The first ``skip`` words, and words past the end, are masked out. All rows of a group
are one launch: programs are numbered row by row.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

ROUNDS = tl.constexpr(10)
BLOCK = 256


# Without annotations: Triton would compile them, and knows only its own.
def _stored(out, n, first, skip, program, a, b, second, third, fourth, block: tl.constexpr):  # type: ignore[no-untyped-def]
    """Store a block of the words of key (a, b); the counter's upper words are ``second``, ``third`` and ``fourth``."""
    counter = (first + program * block + tl.arange(0, block)).to(tl.uint64)
    zero = counter * 0
    # Keys are int64: the same bits as an unsigned Python integer would compile a second kernel.
    a, b, c1 = zero + a.to(tl.uint64), zero + b.to(tl.uint64), zero + second.to(tl.uint64)
    c2, c3 = zero + third.to(tl.uint64), zero + fourth.to(tl.uint64)
    w0, w1, w2, w3 = tl.philox_impl(counter, c1, c2, c3, a, b, ROUNDS)
    words = tl.interleave(tl.interleave(w0, w2), tl.interleave(w1, w3))
    index = program * (4 * block) + tl.arange(0, 4 * block) - skip
    tl.store(out + index, words.to(tl.int64, bitcast=True), mask=(index >= 0) & (index < n))


_store: Any = triton.jit(_stored)


def _of_key(out, n, first, skip, key_a, key_b, block: tl.constexpr):  # type: ignore[no-untyped-def]
    program = tl.program_id(0).to(tl.int64)
    none = program * 0
    _store(out, n, first, skip, program, key_a, key_b, none, none, none, block)


def _of_rows(  # type: ignore[no-untyped-def]
    out, n, first, skip, keys, steps, third, fourth, programs, block: tl.constexpr, stepped: tl.constexpr
):
    number = tl.program_id(0).to(tl.int64)
    row, program = number // programs, number % programs
    second = row * 0
    if stepped:
        second = tl.load(steps + row).to(tl.int64)
    a, b = tl.load(keys + 2 * row), tl.load(keys + 2 * row + 1)
    _store(out + row * n, n, first, skip, program, a, b, second, third, fourth, block)


# Not specialized: an argument of 1, or a multiple of 16, must not compile another kernel.
_kernel: Any = triton.jit(_of_key, do_not_specialize=["n", "first", "skip", "key_a", "key_b"])
_kernel_of_rows: Any = triton.jit(_of_rows, do_not_specialize=["n", "first", "skip", "third", "fourth", "programs"])


def words(key_a: int, key_b: int, first: int, skip: int, n: int, device: torch.device) -> Tensor:
    """Return ``n`` words, starting ``skip`` words into the block with counter ``first``. Key words are int64."""
    out = torch.empty(n, dtype=torch.int64, device=device)
    if n:
        with torch.cuda.device(out.device):
            _kernel[(triton.cdiv(skip + n, 4 * BLOCK),)](out, n, first, skip, key_a, key_b, block=BLOCK)
    return out


def words_of_rows(
    keys: Tensor, steps: Tensor | None, first: int, skip: int, n: int, third: int = 0, fourth: int = 0
) -> Tensor:
    """Return ``n`` words of each of ``[K, 2]`` keys, as ``[K, n]``.

    Keys and ``[K]`` steps (the counters' second words, 0 without) are read on the device, for CUDA graph capture.
    ``third`` and ``fourth`` are the counters' other words.
    """
    out = torch.empty(len(keys), n, dtype=torch.int64, device=keys.device)
    if out.numel():
        programs = triton.cdiv(skip + n, 4 * BLOCK)
        keys, stepped = keys.contiguous(), steps is not None
        steps = keys if steps is None else steps.contiguous()
        with torch.cuda.device(out.device):
            _kernel_of_rows[(len(keys) * programs,)](
                out, n, first, skip, keys, steps, third, fourth, programs, block=BLOCK, stepped=stepped
            )
    return out
