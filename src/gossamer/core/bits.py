"""Pack bits, codes of a few bits, and trits into bytes, and unpack them, on any device. The first is the lowest."""

import numpy as np
import torch
from torch import Tensor

from gossamer.core.errors import PayloadError
from gossamer.core.types import Payload
from gossamer.core.wire import expect

TRITS = 5  # per byte: 3**5 = 243 of 256 values are used, 1.6 bits per trit


def bits(flags: Tensor) -> Tensor:
    """Pack booleans, eight per byte. The last byte is padded with zeros.

    >>> bits(torch.tensor([True, False, True]))
    tensor([5], dtype=torch.uint8)
    """
    if flags.device.type == "cpu":  # NumPy is ten times faster than torch here
        return torch.from_numpy(np.packbits(flags.numpy(), bitorder="little"))
    full = torch.zeros(-(-len(flags) // 8) * 8, dtype=torch.uint8, device=flags.device)
    full[: len(flags)] = flags
    return (full.view(-1, 8) << _shifts(flags.device)).sum(1, dtype=torch.uint8)


def unbits(packed: Tensor, count: int) -> Tensor:
    """Unpack ``count`` booleans from ``bits``. ``packed`` must have exactly the bytes that they take."""
    if packed.device.type == "cpu":
        return torch.from_numpy(np.unpackbits(packed.numpy(), count=count, bitorder="little")).view(torch.bool)
    flags = ((packed.view(-1, 1) >> _shifts(packed.device)) & 1).view(-1).bool()
    return flags[:count]


def numbers(flags: Tensor, dtype: torch.dtype) -> Tensor:
    """Return booleans as 0 and 1. The conversion from uint8 is several times faster than from bool."""
    return flags.view(torch.uint8).to(dtype)


def plus_minus(flags: Tensor, dtype: torch.dtype) -> Tensor:
    """Return booleans as -1 and 1."""
    return numbers(flags, dtype).mul_(2).sub_(1)


def expect_bits(payload: Payload, name: str, count: int) -> Tensor:
    """Return ``count`` booleans from a payload. Refuse a wrong number of bytes, and ones in the padding."""
    return unbits(expect_packed(payload, name, count), count)


def expect_packed(payload: Payload, name: str, count: int) -> Tensor:
    """Return the same, still packed."""
    packed = expect(payload, name, torch.uint8, -(-count // 8))
    if count % 8 and bool(packed[-1] >> (count % 8)):
        raise PayloadError(f"{name!r} has ones after its {count:,} bits")
    return packed


def _shifts(device: torch.device) -> Tensor:
    return torch.arange(8, dtype=torch.uint8, device=device)


def codes(values: Tensor, width: int) -> Tensor:
    """Pack numbers of ``width`` bits, at most 8, one after the other. The last byte is padded with zeros.

    Eight numbers are one 64-bit word, in which neighbours are moved together: first numbers, then pairs, then fours.

    >>> codes(torch.tensor([1, 2, 7]), 3)
    tensor([209,   1], dtype=torch.uint8)
    """
    full = torch.zeros(-(-len(values) // 8) * 8, dtype=torch.uint8, device=values.device)
    full[: len(values)] = values
    words = full.view(torch.int64)  # torch runs on little-endian machines
    for low, high, gap in _moves(width):
        words = words & low | words >> gap & high
    return words.view(torch.uint8).view(-1, 8)[:, :width].reshape(-1)[: code_bytes(len(values), width)]


def uncodes(packed: Tensor, width: int, count: int) -> Tensor:
    """Unpack ``count`` numbers from ``codes``, as uint8. ``packed`` must have exactly the bytes that they take."""
    words = torch.zeros(-(-count // 8), 8, dtype=torch.uint8, device=packed.device)
    full = torch.zeros(len(words) * width, dtype=torch.uint8, device=packed.device)
    full[: len(packed)] = packed
    words[:, :width] = full.view(-1, width)
    spread = words.view(torch.int64).view(-1)
    for low, high, gap in reversed(_moves(width)):
        spread = spread & low | (spread & high) << gap
    return spread.view(torch.uint8)[:count]


def expect_codes(payload: Payload, name: str, width: int, count: int) -> Tensor:
    """Return ``count`` numbers of ``width`` bits from a payload. Refuse a wrong number of bytes, and padding."""
    packed = expect(payload, name, torch.uint8, code_bytes(count, width))
    if (used := count * width % 8) and bool(packed[-1] >> used):
        raise PayloadError(f"{name!r} has ones after its {count * width:,} bits")
    return uncodes(packed, width, count)


def code_bytes(count: int, width: int) -> int:
    """Return the number of bytes of ``count`` numbers of ``width`` bits."""
    return -(-count * width // 8)


def _moves(width: int) -> list[tuple[int, int, int]]:
    """Return the steps that pack a word of eight numbers: bits that stay, bits that arrive, and the distance."""
    if width == 8:
        return []
    found = []
    for group in (1, 2, 4):
        low = sum((1 << group * width) - 1 << at for at in range(0, 64, 16 * group))
        found.append((low, low << group * width, group * (8 - width)))
    return found


def trits(signs: Tensor) -> Tensor:
    """Pack integers -1, 0 and 1, five per byte, as base-3 digits. -1 is the digit 2; padding is 0.

    >>> trits(torch.tensor([1, 0, -1]))
    tensor([19], dtype=torch.uint8)
    """
    full = torch.zeros(-(-len(signs) // TRITS) * TRITS, dtype=torch.uint8, device=signs.device)
    full[: len(signs)] = signs % 3
    return (full.view(-1, TRITS) * _powers(signs.device)).sum(1, dtype=torch.uint8)


def untrits(packed: Tensor, count: int) -> Tensor:
    """Unpack ``count`` integers from ``trits``, as int8. ``packed`` must have exactly the bytes that they take."""
    digits = packed.view(-1, 1) // _powers(packed.device) % 3
    signs = torch.where(digits == 2, -1, digits.to(torch.int8))
    return signs.view(-1)[:count]


def expect_trits(payload: Payload, name: str, count: int) -> Tensor:
    """Return ``count`` integers from a payload. Refuse a wrong number of bytes, and bytes not from ``trits``."""
    packed = expect(payload, name, torch.uint8, -(-count // TRITS))
    if bool((packed >= 3**TRITS).any()):
        raise PayloadError(f"{name!r} has a byte above {3**TRITS - 1}, which is not {TRITS} trits")
    if count % TRITS and int(packed[-1]) >= 3 ** (count % TRITS):
        raise PayloadError(f"{name!r} has nonzero padding after its {count:,} trits")
    return untrits(packed, count)


def _powers(device: torch.device) -> Tensor:
    return torch.tensor([3**digit for digit in range(TRITS)], dtype=torch.uint8, device=device)
