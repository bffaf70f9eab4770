"""Checksums and copies on several threads are those of one thread."""

import doctest
import os
import subprocess
import sys
import zlib
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gossamer.core import chunks


@pytest.fixture(scope="module", autouse=True)
def short() -> Iterator[None]:
    """Chunks of a few bytes, so that short strings have many; on four threads."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chunks, "CHUNK", 7)
        patch.setattr(chunks, "cores", lambda: 4)
        chunks._pool.cache_clear()
        yield
    chunks._pool.cache_clear()


def test_examples_in_the_module_hold() -> None:
    assert doctest.testmod(chunks).failed == 0


@given(st.binary(max_size=200), st.integers(0, 2**32 - 1))
def test_the_checksum_is_that_of_zlib(data: bytes, before: int) -> None:
    assert chunks.crc32(data, before) == zlib.crc32(data, before)
    assert chunks.crc32(memoryview(data)) == zlib.crc32(data)


@given(st.binary(max_size=100), st.binary(max_size=100))
def test_checksums_continue(one: bytes, other: bytes) -> None:
    assert chunks.crc32(other, chunks.crc32(one)) == zlib.crc32(one + other)


@given(st.binary(max_size=200), st.data())
def test_every_changed_bit_changes_the_checksum(data: bytes, draw: st.DataObject) -> None:
    if data:
        at, bit = draw.draw(st.integers(0, len(data) - 1)), draw.draw(st.integers(0, 7))
        changed = bytearray(data)
        changed[at] ^= 1 << bit
        assert chunks.crc32(bytes(changed)) != chunks.crc32(data)


@given(st.binary(max_size=200))
def test_a_copy_has_the_same_bytes(data: bytes) -> None:
    target = np.zeros(len(data), np.uint8)
    chunks.copy(np.frombuffer(data, np.uint8), target)
    assert target.tobytes() == data


FORKED = """
import os, warnings, zlib
from gossamer.core import chunks
warnings.simplefilter("ignore")
chunks.cores = lambda: 2
data = bytes(5 * chunks.CHUNK)
assert chunks.crc32(data) == zlib.crc32(data)
if (child := os.fork()) == 0:
    os._exit(0 if chunks.crc32(data) == zlib.crc32(data) else 1)
assert os.waitpid(child, 0)[1] == 0
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_process_starts_its_own_threads() -> None:
    subprocess.run([sys.executable, "-c", FORKED], check=True, timeout=60)
