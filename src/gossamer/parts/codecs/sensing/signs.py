"""Signs as bits, the signs of a lost message beside those of a new one, and sums of both without unpacking.

A device whose last message was lost may send its signs again beside the new ones: y + rho r, with y and r of +1 and -1
and a coefficient rho that both ends know. These are four levels, -1 - rho, 1 - rho, -1 + rho and 1 + rho, so two bits a
measurement: first that of y, then that of r, set for a plus. Both must have been taken with the same matrix.

The server needs the sum over devices alone. A byte holds eight signs or four levels, so it is looked up in a table of
256 rows and added as a row.
"""

import torch
from torch import Tensor

from gossamer.core.bits import bits
from gossamer.core.errors import PayloadError


def pack_signs(signs: Tensor, retained: Tensor | None = None) -> Tensor:
    """Booleans as bytes: one bit each, or two where there are those of a lost message as well.

    >>> pack_signs(torch.tensor([True, False, True]))
    tensor([5], dtype=torch.uint8)
    """
    return bits(signs if retained is None else torch.stack((signs, retained), 1).view(-1))


def unpack_signs(packed: Tensor, count: int, rho: float | None = None) -> Tensor:
    """The values behind ``count`` packed signs: 1 and -1, or, with a coefficient, those of signs and retained signs.

    >>> unpack_signs(torch.tensor([5], dtype=torch.uint8), 3)
    tensor([ 1., -1.,  1.])
    """
    total = torch.zeros(count, device=packed.device)
    add_signs(total, packed, 1.0, rho)
    return total


def add_signs(total: Tensor, packed: Tensor, weight: float, rho: float | None = None) -> None:
    """Add packed signs, or signs and retained signs, times a weight, to a sum of as many entries."""
    levels = _levels(rho)
    width = len(levels) // 2
    _check(packed, len(total) * width)
    each = 8 // width
    rows = _table(levels, weight, total)[packed.int()]
    whole = len(total) // each
    total[: whole * each].view(-1, each).add_(rows[:whole])
    if len(total) % each:
        total[whole * each :].add_(rows[-1, : len(total) % each])


def _levels(rho: float | None) -> tuple[float, ...]:
    """The values of one bit, or of two; the first bit is the lower."""
    return (-1.0, 1.0) if rho is None else (-1 - rho, 1 - rho, rho - 1, 1 + rho)


def _table(levels: tuple[float, ...], weight: float, like: Tensor) -> Tensor:
    """For each byte the values it stands for, times the weight."""
    width = len(levels) // 2
    codes = torch.arange(256, device=like.device).view(-1, 1) >> torch.arange(0, 8, width, device=like.device)
    return (like.new_tensor(levels) * weight)[codes & (1 << width) - 1]


def _check(packed: Tensor, count: int) -> None:
    if packed.dtype != torch.uint8 or packed.shape != (-(-count // 8),):
        raise PayloadError(f"{count:,} bits of signs take {-(-count // 8):,} bytes, got {tuple(packed.shape)}")
    if count % 8 and bool(packed[-1] >> (count % 8)):
        raise PayloadError(f"the signs have ones behind their {count:,} bits")
