"""Checksums and copies of long byte strings, in chunks on several threads.

One thread takes milliseconds for the checksum of a message of a large network, as long as a GPU takes to aggregate it.
The results do not depend on the number of threads. zlib and NumPy release Python's lock, so that training goes on.
"""

import os
import zlib
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

T = TypeVar("T")
Bytes = npt.NDArray[np.uint8]

CHUNK = 2**20
"""Bytes that one thread works on at a time."""
THREADS = 8
"""Maximum number of threads; more are limited by the memory."""
POLYNOMIAL = 0xEDB88320
"""The polynomial of CRC-32; the coefficient of x**31 is the lowest bit."""


def crc32(data: bytes | memoryview, before: int = 0) -> int:
    """Return ``zlib.crc32(data, before)``.

    >>> crc32(b"ab", crc32(b"c")) == crc32(b"cab") == zlib.crc32(b"cab")
    True
    """
    if len(data) < 2 * CHUNK:
        return zlib.crc32(data, before)
    pieces = [memoryview(data)[at : at + CHUNK] for at in range(0, len(data), CHUNK)]
    for piece, found in zip(pieces, _each(zlib.crc32, pieces), strict=True):
        before = _product(_shifted(len(piece)), before) ^ found
    return before


def copy(source: Bytes, target: Bytes) -> None:
    """Copy bytes into an array of the same length."""
    if len(source) < 2 * CHUNK:
        target[:] = source
        return
    parts = [slice(at, at + CHUNK) for at in range(0, len(source), CHUNK)]
    _each(lambda part: np.copyto(target[part], source[part]), parts)


def _each(work: Callable[[Any], T], pieces: Iterable[Any]) -> list[T]:
    """Return the results of some work on each piece, in order."""
    return list(map(work, pieces) if _cores() == 1 else _pool().map(work, pieces))


@lru_cache(maxsize=1)
def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@lru_cache(maxsize=1)
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(min(THREADS, _cores()), "gossamer-chunks")


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pool.cache_clear)  # a forked process has none of the threads


@lru_cache(maxsize=64)
def _shifted(length: int) -> int:
    """Return x**(8 * length): the product with it is the checksum before ``length`` more bytes of zeros."""
    power, square = 1 << 31, 1 << 23  # x**0 and x**8
    while length:
        power = _product(square, power) if length & 1 else power
        square, length = _product(square, square), length >> 1
    return power


def _product(a: int, b: int) -> int:
    """Return the product of two polynomials over GF(2), modulo that of CRC-32."""
    total = 0
    for bit in range(31, -1, -1):
        total ^= b if a >> bit & 1 else 0
        b = b >> 1 ^ (POLYNOMIAL if b & 1 else 0)
    return total
