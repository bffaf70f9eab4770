"""Checksums and copies of long byte strings, in chunks on several threads; and how many cores there are.

One thread takes milliseconds for the checksum of a message of a large network, as long as a GPU takes to aggregate it.
The results do not depend on the number of threads. zlib and NumPy release Python's lock, so that training goes on.
"""

import os
import zlib
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from multiprocessing import current_process
from pathlib import Path

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]

CHUNK = 2**19
"""Bytes that are worth a thread; the bytes of a thread are a multiple of it."""
THREADS = 8
"""Maximum number of threads; more are limited by the memory."""
POLYNOMIAL = 0xEDB88320
"""The polynomial of CRC-32; the coefficient of x**31 is the lowest bit."""


def crc32(data: bytes | memoryview, before: int = 0) -> int:
    """Return ``zlib.crc32(data, before)``.

    >>> crc32(b"ab", crc32(b"c")) == crc32(b"cab") == zlib.crc32(b"cab")
    True
    """
    pieces = [memoryview(data)[part] for part in _parts(len(data))]
    if len(pieces) < 2:
        return zlib.crc32(data, before)
    first, *others = _pool().map(zlib.crc32, pieces, (before, *[0] * (len(pieces) - 1)))
    for piece, found in zip(pieces[1:], others, strict=True):
        first = _product(_shifted(len(piece)), first) ^ found
    return first


def copy(source: Bytes, target: Bytes) -> None:
    """Copy bytes into an array of the same length."""
    parts = _parts(len(source))
    if len(parts) < 2:
        target[:] = source
    else:
        deque(_pool().map(lambda part: np.copyto(target[part], source[part]), parts), maxlen=0)


def _parts(length: int) -> list[slice]:
    """Return a part for each thread. All but the first have the same length, a multiple of ``CHUNK``."""
    if length < 2 * CHUNK or cores() == 1 or current_process().daemon:  # workers have a core each
        return [slice(0, length)]
    step = -(-length // (CHUNK * min(THREADS, cores()))) * CHUNK
    ends = range(length % step or step, length + 1, step)
    return [slice(max(0, end - step), end) for end in ends]


@lru_cache(maxsize=1)
def cores(limits: Path = Path("/sys/fs/cgroup/cpu.max")) -> int:
    """Return the number of cores that this process may use, also within the limits of its container."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = map(int, limits.read_text().split())
    except (OSError, ValueError):  # no control group, or no quota
        return allowed
    return max(1, min(allowed, round(quota / period)))


@lru_cache(maxsize=1)
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(min(THREADS, cores()), "gossamer-chunks")


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
