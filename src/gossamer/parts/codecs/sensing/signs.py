"""Signs as bits, with or without the retained signs of a lost message, and their sum without unpacking.

A client whose last message was lost can send its signs again together with the new ones: y + rho r. The entries of y
and r are +1 and -1, and both sides know the coefficient rho. There are four levels, -1 - rho, 1 - rho, -1 + rho and
1 + rho. They take two bits per measurement: first that of y, then that of r, set for plus. Both must be measured with
the same matrix.

The server needs only the sum over clients. A byte contains eight signs or four levels, so each byte is looked up in a
table of 256 rows, and the row is added.
"""

import torch
from torch import Tensor

from gossamer.core.bits import bits
from gossamer.core.errors import PayloadError


def pack_signs(signs: Tensor, retained: Tensor | None = None) -> Tensor:
    """Pack signs: one bit per sign, or two together with the retained signs of a lost message.

    >>> pack_signs(torch.tensor([True, False, True]))
    tensor([5], dtype=torch.uint8)
    """
    return bits(signs if retained is None else torch.stack((signs, retained), 1).view(-1))


def unpack_signs(packed: Tensor, count: int, rho: float | None = None) -> Tensor:
    """Return the values of ``count`` packed signs: 1 and -1, or with a coefficient the levels y + rho r.

    >>> unpack_signs(torch.tensor([5], dtype=torch.uint8), 3)
    tensor([ 1., -1.,  1.])
    """
    total = torch.zeros(count, device=packed.device)
    add_signs(total, packed, 1.0, rho)
    return total


def add_signs(total: Tensor, packed: Tensor, weight: float, rho: float | None = None) -> None:
    """Add ``weight`` times packed signs, or with a coefficient the levels y + rho r, to ``total``, in place."""
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
    """Return the values of one bit, or of two bits. The first bit is the lower one."""
    return (-1.0, 1.0) if rho is None else (-1 - rho, 1 - rho, rho - 1, 1 + rho)


def _table(levels: tuple[float, ...], weight: float, like: Tensor) -> Tensor:
    """Return the values of each byte, times the weight."""
    width = len(levels) // 2
    codes = torch.arange(256, device=like.device).view(-1, 1) >> torch.arange(0, 8, width, device=like.device)
    return (like.new_tensor(levels) * weight)[codes & (1 << width) - 1]


def _check(packed: Tensor, count: int) -> None:
    if packed.dtype != torch.uint8 or packed.shape != (-(-count // 8),):
        raise PayloadError(f"{count:,} bits of signs take {-(-count // 8):,} bytes, got {tuple(packed.shape)}")
    if count % 8 and bool(packed[-1] >> (count % 8)):
        raise PayloadError(f"the signs have ones after their {count:,} bits")
