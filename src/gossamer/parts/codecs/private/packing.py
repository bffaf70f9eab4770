"""Pack whole numbers of more than 8 bits: all lowest bytes, then all next bytes, then the remaining bits."""

import torch
from torch import Tensor

from gossamer.core.bits import code_bytes, codes, expect_codes
from gossamer.core.errors import PayloadError
from gossamer.core.types import Payload
from gossamer.core.wire import expect

NAME = "values"


def pack(values: Tensor, width: int) -> Payload:
    """Return numbers of ``width`` bits as a payload.

    >>> pack(torch.tensor([1, 258]), 10)
    {'values': tensor([1, 2, 4], dtype=torch.uint8)}
    """
    planes = [codes(values >> shift & 0xFF, bits) for shift, bits in _planes(width)]
    return {NAME: torch.cat(planes)}


def unpack(payload: Payload, width: int, count: int, limit: int) -> Tensor:
    """Return ``count`` numbers as int64. Raises ``PayloadError`` for wrong bytes, and for a number above ``limit``."""
    sizes = [code_bytes(count, bits) for _, bits in _planes(width)]
    pieces = expect(payload, NAME, torch.uint8, sum(sizes)).split(sizes)
    found = torch.zeros(count, dtype=torch.int64, device=pieces[0].device)
    for (shift, bits), piece in zip(_planes(width), pieces, strict=True):
        found |= expect_codes({NAME: piece}, NAME, bits, count).long() << shift
    if count and int(found.max()) > limit:
        raise PayloadError(f"{NAME!r} has the number {int(found.max()):,}, above the largest one, {limit:,}")
    return found


def _planes(width: int) -> list[tuple[int, int]]:
    """Return the position and the number of bits of each byte of a number."""
    return [(shift, min(8, width - shift)) for shift in range(0, width, 8)]
