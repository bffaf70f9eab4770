"""Pack numbers of 1 to 8 bits one after the other, lowest bit first, on any device.

Eight numbers of w bits take w bytes. They are collected in one 64-bit word, of which the lowest w bytes are sent.
"""

import sys

import torch
from torch import Tensor

from gossamer.core.errors import PayloadError
from gossamer.core.types import Payload
from gossamer.core.wire import expect

GROUP = 8  # numbers per word


def packed_bytes(count: int, width: int) -> int:
    """Return the number of bytes of ``count`` numbers."""
    return -(-count * width // 8)


def packed(numbers: Tensor, width: int) -> Tensor:
    """Pack integers from 0 to 2**width - 1. The last byte is padded with zeros.

    >>> packed(torch.tensor([1, 2, 3]), 4)
    tensor([33,   3], dtype=torch.uint8)
    """
    full = numbers.new_zeros(-(-len(numbers) // GROUP) * GROUP, dtype=torch.int64)
    full[: len(numbers)] = numbers
    words = (full.view(-1, GROUP) << _shifts(width, full)).sum(1)
    return _as_bytes(words)[:, :width].reshape(-1)[: packed_bytes(len(numbers), width)].contiguous()


def expect_packed(payload: Payload, name: str, count: int, width: int) -> Tensor:
    """Return ``count`` integers from a payload. Refuse a wrong number of bytes, and ones in the padding."""
    array = expect(payload, name, torch.uint8, packed_bytes(count, width))
    used = count * width % 8
    if used and bool(array[-1] >> used):
        raise PayloadError(f"{name!r} has ones after its {count:,} numbers of {width} bits")
    full = array.new_zeros(-(-count // GROUP), GROUP)
    rows = array.new_zeros(len(full) * width)
    rows[: len(array)] = array
    full[:, :width] = rows.view(-1, width)
    words = _as_words(full).view(-1, 1)
    return (words >> _shifts(width, words) & (1 << width) - 1).view(-1)[:count]


def _shifts(width: int, like: Tensor) -> Tensor:
    return torch.arange(0, GROUP * width, width, device=like.device)


def _as_bytes(words: Tensor) -> Tensor:
    """Return the bytes of each word, lowest first."""
    rows = words.view(-1, 1).view(torch.uint8)
    return rows if sys.byteorder == "little" else rows.flip(1)


def _as_words(rows: Tensor) -> Tensor:
    return (rows if sys.byteorder == "little" else rows.flip(1)).contiguous().view(torch.int64).view(-1)
