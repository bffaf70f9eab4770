"""Pack bits, codes of a few bits, and trits into bytes, and unpack them, on any device. The first is the lowest.

All functions work along the last dimension: the entries of one message are a vector, those of a group a matrix with a
row per message. A row of bytes is what its message alone would be.
"""

import functools

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
        return torch.from_numpy(np.packbits(flags.numpy(), axis=-1, bitorder="little"))
    return (_filled(flags, 8) << _shifts(flags.device)).sum(-1, dtype=torch.uint8)


def unbits(packed: Tensor, count: int) -> Tensor:
    """Unpack ``count`` booleans from ``bits``. ``packed`` must have exactly the bytes that they take."""
    if packed.device.type == "cpu":
        found = np.unpackbits(packed.numpy(), axis=-1, count=count, bitorder="little")
        return torch.from_numpy(found).view(torch.bool)
    return ((packed.unsqueeze(-1) >> _shifts(packed.device)) & 1).flatten(-2)[..., :count].bool()


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
    if count % 8 and _last(packed) >= 1 << count % 8:
        raise PayloadError(f"{name!r} has ones after its {count:,} bits")
    return packed


def _last(packed: Tensor) -> int:
    """Return the largest last byte of a row."""
    return int(packed[..., -1].max())


def _filled(values: Tensor, each: int) -> Tensor:
    """Return numbers as uint8, as many rows of ``each`` as they take, with zeros after the last."""
    rows = -(-values.shape[-1] // each)
    full = torch.zeros(*values.shape[:-1], rows * each, dtype=torch.uint8, device=values.device)
    full[..., : values.shape[-1]] = values
    return full.view(*values.shape[:-1], rows, each)


def _shifts(device: torch.device) -> Tensor:
    return torch.arange(8, dtype=torch.uint8, device=device)


def codes(values: Tensor, width: int) -> Tensor:
    """Pack numbers of ``width`` bits, at most 8, one after the other. The last byte is padded with zeros.

    Eight numbers are one 64-bit word, in which neighbours are moved together: first numbers, then pairs, then fours.

    >>> codes(torch.tensor([1, 2, 7]), 3)
    tensor([209,   1], dtype=torch.uint8)
    """
    words = _filled(values, 8).view(torch.int64)  # [..., words, 1]; torch runs on little-endian machines
    for low, high, gap in _moves(width):
        words = words & low | words >> gap & high
    packed = words.view(torch.uint8)[..., :width].flatten(-2)
    return packed[..., : code_bytes(values.shape[-1], width)].contiguous()


def uncodes(packed: Tensor, width: int, count: int) -> Tensor:
    """Unpack ``count`` numbers from ``codes``, as uint8. ``packed`` must have exactly the bytes that they take."""
    words = torch.zeros(*packed.shape[:-1], -(-count // 8), 8, dtype=torch.uint8, device=packed.device)
    words[..., :width] = _filled(packed, width)
    spread = words.view(torch.int64)
    for low, high, gap in reversed(_moves(width)):
        spread = spread & low | (spread & high) << gap
    return spread.view(torch.uint8).flatten(-2)[..., :count].contiguous()


def expect_codes(payload: Payload, name: str, width: int, count: int) -> Tensor:
    """Return ``count`` numbers of ``width`` bits from a payload. Refuse a wrong number of bytes, and padding."""
    packed = expect(payload, name, torch.uint8, code_bytes(count, width))
    if (used := count * width % 8) and _last(packed) >= 1 << used:
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
    digits = _filled(signs.to(torch.int8), TRITS)  # -1 is 255, and 255 + 3 is 2
    digits = digits + (digits >> 7) * 3
    return (digits.to(torch.float32) @ _powers(signs.device)).to(torch.uint8)  # exact: whole numbers up to 242


def untrits(packed: Tensor, count: int) -> Tensor:
    """Unpack ``count`` integers from ``trits``, as int8. ``packed`` must have exactly the bytes that they take."""
    found = _signs(packed.device).index_select(0, packed.reshape(-1).int())
    return found.view(*packed.shape[:-1], TRITS * packed.shape[-1])[..., :count].contiguous()


def expect_trits(payload: Payload, name: str, count: int) -> Tensor:
    """Return ``count`` integers from a payload. Refuse a wrong number of bytes, and bytes not from ``trits``."""
    packed = expect(payload, name, torch.uint8, -(-count // TRITS))
    if bool((packed >= 3**TRITS).any()):
        raise PayloadError(f"{name!r} has a byte above {3**TRITS - 1}, which is not {TRITS} trits")
    if count % TRITS and _last(packed) >= 3 ** (count % TRITS):
        raise PayloadError(f"{name!r} has nonzero padding after its {count:,} trits")
    return untrits(packed, count)


@functools.cache
def _powers(device: torch.device) -> Tensor:
    return torch.tensor([3.0**digit for digit in range(TRITS)], device=device)


@functools.cache
def _signs(device: torch.device) -> Tensor:
    """Return the integers of each byte."""
    digits = [[byte // 3**digit % 3 for digit in range(TRITS)] for byte in range(256)]
    return torch.tensor(
        [[-1 if digit == 2 else digit for digit in row] for row in digits], dtype=torch.int8, device=device
    )
