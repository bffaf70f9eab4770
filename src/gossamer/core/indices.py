"""Which entries of a vector are meant: a bitmap, or coded gaps where these are shorter. The names tell which it is.

    bitmap        one bit an entry
    quotients     how far it is from one marked entry to the next, as multiples of 2**shift: so many zeros, then a one
    remainders    a byte whose lower seven bits are ``shift``, then the rest of each gap in ``shift`` bits

Gaps are coded if there are few marked entries, and if nearly all are marked, then the gaps between those that are not:
the top bit of the first byte of the remainders says so. This is the code of Golomb and Rice with its two halves kept
apart, so that all gaps are written and read at once. The shift is the best one for the gaps at hand. Entries marked at
random take at most 5 % and three bytes more than they must: the logarithm of the number of ways to mark as many.
"""

import torch
from torch import Tensor

from gossamer.core.bits import bits, expect_bits, numbers, unbits
from gossamer.core.errors import PayloadError
from gossamer.core.types import Payload, true_at
from gossamer.core.wire import expect

INVERTED = 0x80  # added to the shift when the gaps are those between entries that are not marked


def pack(mask: Tensor) -> Payload:
    """The marks of a vector, in the shorter form.

    >>> {name: len(packed) for name, packed in pack(torch.arange(800) == 500).items()}
    {'quotients': 1, 'remainders': 2}
    """
    inverted = 2 * marked(mask) > len(mask)
    rare = true_at(~mask if inverted else mask)
    gaps = torch.diff(rare, prepend=rare.new_full((1,), -1)) - 1
    shift = _shift(gaps)
    quotients = (gaps >> shift) + 1
    if _bytes(int(quotients.sum())) + 1 + _bytes(len(gaps) * shift) >= _bytes(len(mask)):
        return {"bitmap": bits(mask)}
    first = torch.tensor([shift + INVERTED * inverted], dtype=torch.uint8, device=mask.device)
    return {"quotients": bits(_unary(quotients)), "remainders": torch.cat([first, bits(_digits(gaps, shift))])}


def unpack(payload: Payload, count: int) -> Tensor:
    """The marks of a vector of ``count`` entries."""
    if "bitmap" in payload:
        return expect_bits(payload, "bitmap", count)
    quotients, remainders = (_any_bytes(payload, name) for name in ("quotients", "remainders"))
    if not 0 < len(remainders) < _bytes(count) - len(quotients):
        raise PayloadError(f"'remainders' has {len(remainders):,} bytes, which is none or no less than a bitmap takes")
    inverted, shift = divmod(int(remainders[0]), INVERTED)
    gaps = _quotients(quotients, count) << _checked(shift, count)
    digits = expect_bits({"remainders": remainders[1:]}, "remainders", len(gaps) * shift)
    for place, column in enumerate(digits.view(len(gaps), shift).unbind(1)):
        gaps += numbers(column, torch.int64) << place
    mask = torch.zeros(count, dtype=torch.bool, device=gaps.device)
    mask[_places(gaps, count)] = True
    return ~mask if inverted else mask


def spread(values: Tensor, mask: Tensor) -> Tensor:
    """A vector with the values at the marked entries, in order, and zero elsewhere."""
    return values.new_zeros(len(mask)).masked_scatter_(mask, values)


def marked(mask: Tensor) -> int:
    """How many entries are marked."""
    return int(torch.count_nonzero(mask))


def _bytes(bits: int) -> int:
    return -(-bits // 8)


def _shift(gaps: Tensor) -> int:
    """The shift with which the gaps take the fewest bits."""

    def cost(shift: int) -> int:
        return len(gaps) * shift + int((gaps >> shift).sum())

    # Once 2**shift is above the mean gap, the quotients sum to less than one a gap: one bit more cannot save as much.
    best = (cost(0) // max(1, len(gaps))).bit_length()
    while best > 0 and cost(best - 1) <= cost(best):
        best -= 1
    return best


def _unary(lengths: Tensor) -> Tensor:
    """For each length a one with zeros before it, that long in all."""
    ends = lengths.cumsum(0)
    flags = torch.zeros(int(ends[-1]) if len(ends) else 0, dtype=torch.bool, device=lengths.device)
    flags[ends - 1] = True
    return flags


def _digits(numbers: Tensor, width: int) -> Tensor:
    """The lowest binary digits of each number, lowest first."""
    places = torch.arange(width, device=numbers.device)
    return (numbers.view(-1, 1) >> places & 1).view(-1).bool()


def _any_bytes(payload: Payload, name: str) -> Tensor:
    if name not in payload:
        found = ", ".join(map(repr, sorted(payload))) or "an empty payload"
        raise PayloadError(f"expected positions, 'bitmap' or 'quotients' and 'remainders', got {found}")
    return expect(payload, name, torch.uint8, payload[name].numel())


def _quotients(packed: Tensor, count: int) -> Tensor:
    if len(packed) and int(packed[-1]) == 0:
        raise PayloadError("'quotients' ends in a byte without a one")
    ends = true_at(unbits(packed, 8 * len(packed)))
    if 2 * len(ends) > count:
        raise PayloadError(f"'quotients' has {len(ends):,} gaps, more than half of {count:,} entries")
    return torch.diff(ends, prepend=ends.new_full((1,), -1)) - 1


def _checked(shift: int, count: int) -> int:
    if shift > count.bit_length():
        raise PayloadError(f"'remainders' has {shift} bits a gap, more than {count:,} entries take")
    return shift


def _places(gaps: Tensor, count: int) -> Tensor:
    """Where the gaps lead; each is looked at before they are summed, lest the sum overflow."""
    within = not len(gaps) or int(gaps.max()) < count
    places = (gaps + 1).cumsum(0) - 1
    if not within or (len(gaps) and int(places[-1]) >= count):
        raise PayloadError(f"the gaps lead past the last of {count:,} entries")
    return places
