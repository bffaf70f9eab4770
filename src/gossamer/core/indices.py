"""Encode a mask over a vector: as a bitmap, or as Golomb-Rice coded gaps where they are shorter.

The names of the arrays determine the form:

    bitmap        one bit per entry
    quotients     each gap between marked entries divided by 2**shift, in unary: that number of zeros, then a one
    remainders    one byte whose lower seven bits are ``shift``, then the remainder of each gap in ``shift`` bits

For sparse masks, the gaps between marked entries are coded. For dense masks, the gaps between unmarked entries are
coded, and the top bit of the first byte of the remainders is set. Quotients and remainders are separate arrays, so all
gaps are encoded and decoded at once. The encoder chooses the shift with the shortest code. For a random mask, the code
is at most 5 % and three bytes longer than the entropy, the logarithm of the number of masks of that density.
"""

import torch
from torch import Tensor

from gossamer.core.bits import bits, expect_bits, expect_packed, numbers, unbits
from gossamer.core.errors import PayloadError
from gossamer.core.types import Payload, true_at
from gossamer.core.wire import expect

INVERTED = 0x80  # added to the shift if the gaps are those between unmarked entries
TRIED = 3  # shifts that are compared at once


def pack(mask: Tensor) -> Payload:
    """Encode a mask in the shorter form.

    >>> {name: len(packed) for name, packed in pack(torch.arange(800) == 500).items()}
    {'quotients': 1, 'remainders': 2}
    """
    rare = true_at(mask)
    if inverted := 2 * len(rare) > len(mask):
        rare = true_at(~mask)
    gaps = torch.diff(rare, prepend=rare.new_full((1,), -1)) - 1
    shift, zeros = _shift(gaps, int(rare[-1]) + 1 - len(rare) if len(rare) else 0)
    if _bytes(zeros + len(gaps)) + 1 + _bytes(len(gaps) * shift) >= _bytes(len(mask)):
        return {"bitmap": bits(mask)}
    first = torch.tensor([shift + INVERTED * inverted], dtype=torch.uint8, device=mask.device)
    quotients = _unary((gaps >> shift) + 1, zeros + len(gaps))
    return {"quotients": bits(quotients), "remainders": torch.cat([first, bits(_digits(gaps, shift))])}


def unpack(payload: Payload, count: int) -> Tensor:
    """Decode a mask over ``count`` entries. Raise ``PayloadError`` for a payload that ``pack`` never makes."""
    if "bitmap" in payload:
        return expect_bits(payload, "bitmap", count)
    quotients, remainders = (_any_bytes(payload, name) for name in ("quotients", "remainders"))
    if not 0 < len(remainders) < _bytes(count) - len(quotients):
        raise PayloadError(f"'remainders' has {len(remainders):,} bytes: expected at least 1, and fewer than a bitmap")
    inverted, shift = divmod(int(remainders[0]), INVERTED)
    gaps = _quotients(quotients, count) << _checked(shift, count)
    digits = expect_bits({"remainders": remainders[1:]}, "remainders", len(gaps) * shift)
    for bit, column in enumerate(digits.view(len(gaps), shift).unbind(1)):
        gaps += numbers(column, torch.int64) << bit
    mask = torch.zeros(count, dtype=torch.bool, device=gaps.device)
    mask.index_fill_(0, _indices(gaps, count), True)
    return ~mask if inverted else mask


def unpack_bits(payload: Payload, count: int) -> Tensor:
    """Decode the same as packed bits. Raise ``PayloadError`` as ``unpack`` does."""
    return expect_packed(payload, "bitmap", count) if "bitmap" in payload else bits(unpack(payload, count))


def spread(values: Tensor, mask: Tensor) -> Tensor:
    """Return a vector with the values at the marked entries, in order, and zeros elsewhere.

    Masks of a group may be rows, ``[K, n]``, if each marks the same number of entries: values are then ``[K, m]``.
    """
    return values.new_zeros(mask.shape).masked_scatter_(mask, values)


def marked(mask: Tensor) -> int:
    """Return the number of marked entries."""
    return int(torch.count_nonzero(mask))


def _bytes(bits: int) -> int:
    return -(-bits // 8)


def _shift(gaps: Tensor, total: int) -> tuple[int, int]:
    """Return the shift with the shortest code, and the sum of the quotients. The gaps sum to ``total``.

    If 2**shift exceeds the mean gap, the quotients sum to less than one per gap: a larger shift cannot save more.
    """
    return _descend(gaps, (total // max(1, len(gaps))).bit_length())


def _descend(gaps: Tensor, most: int) -> tuple[int, int]:
    """Return the same, starting from a shift. Few shifts are tried at once, so that a GPU is seldom waited for."""
    tried = range(most, max(-1, most - TRIED), -1)
    sums = torch.stack([(gaps >> shift).sum() for shift in tried]).tolist()
    for shift, zeros, below in zip(tried, sums, sums[1:], strict=False):
        if below - zeros > len(gaps):  # one bit less per remainder, but more than that for the quotients
            return shift, zeros
    return _descend(gaps, tried[-1]) if tried[-1] else (0, sums[-1])


def _unary(lengths: Tensor, total: int) -> Tensor:
    """Return a unary code word for each length: zeros, then a one, ``length`` bits each and ``total`` together."""
    flags = torch.zeros(total, dtype=torch.bool, device=lengths.device)
    return flags.index_fill_(0, lengths.cumsum(0) - 1, True)


def _digits(numbers: Tensor, width: int) -> Tensor:
    """Return the lowest ``width`` bits of each number, lowest first."""
    shifts = torch.arange(width, device=numbers.device)
    return (numbers.view(-1, 1) >> shifts & 1).view(-1).bool()


def _any_bytes(payload: Payload, name: str) -> Tensor:
    if name not in payload:
        found = ", ".join(map(repr, sorted(payload))) or "an empty payload"
        raise PayloadError(f"expected a mask as 'bitmap', or as 'quotients' and 'remainders', got {found}")
    return expect(payload, name, torch.uint8, None)


def _quotients(packed: Tensor, count: int) -> Tensor:
    if len(packed) and int(packed[-1]) == 0:
        raise PayloadError("'quotients' must not end in a zero byte")
    ends = true_at(unbits(packed, 8 * len(packed)))
    if 2 * len(ends) > count:
        raise PayloadError(f"'quotients' has {len(ends):,} gaps, more than half of {count:,} entries")
    return torch.diff(ends, prepend=ends.new_full((1,), -1)) - 1


def _checked(shift: int, count: int) -> int:
    if shift > count.bit_length():
        raise PayloadError(f"'remainders' has {shift} bits per gap, more than {count:,} entries need")
    return shift


def _indices(gaps: Tensor, count: int) -> Tensor:
    """Return the indices of the marked entries. Each gap is checked before the sum, which could overflow."""
    within = not len(gaps) or int(gaps.max()) < count
    indices = (gaps + 1).cumsum(0) - 1
    if not within or (len(gaps) and int(indices[-1]) >= count):
        raise PayloadError(f"the gaps exceed the {count:,} entries")
    return indices
