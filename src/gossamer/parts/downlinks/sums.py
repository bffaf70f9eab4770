"""Sums of whole numbers as a payload, close to the entropy of their histogram (``gossamer.core.entropy``).

A sum below 256 is one symbol. A larger one is two: its low byte, and the rest.
"""

import torch
from torch import Tensor

from gossamer.core import entropy
from gossamer.core.errors import PayloadError
from gossamer.core.types import Payload
from gossamer.core.wire import expect

LARGEST = (1 << 16) - 1
"""The largest sum."""
LOW, HIGH = "low", "high"


def pack(total: Tensor, limit: int) -> Payload:
    """Return sums from 0 to ``limit`` as a payload.

    >>> pack(torch.full((1000,), 3), 10)["low"].numel() * 8 / 1000
    0.192
    """
    return {name: entropy.encode(total >> shift & 0xFF, base) for name, (shift, base) in _symbols(limit).items()}


def unpack(payload: Payload, size: int, limit: int) -> Tensor:
    """Return ``size`` sums as int64. Raise ``PayloadError`` for a payload that ``pack`` cannot have produced."""
    total = torch.zeros(size, dtype=torch.int64)
    for name, (shift, base) in _symbols(limit).items():
        if name not in payload:
            raise PayloadError(f"expected an array named {name!r}")
        coded = expect(payload, name, torch.uint8, payload[name].numel())
        total += entropy.decode(coded, base, size).cpu().long() << shift
    if len(payload) > len(_symbols(limit)) or bool((total > limit).any()):
        raise PayloadError(f"expected sums up to {limit:,} alone, got {', '.join(sorted(payload))}")
    return total


def _symbols(limit: int) -> dict[str, tuple[int, int]]:
    """Return the lowest bit and the number of values of each symbol of a sum, by array name."""
    return {LOW: (0, min(limit, 0xFF) + 1)} | ({HIGH: (8, (limit >> 8) + 1)} if limit > 0xFF else {})
