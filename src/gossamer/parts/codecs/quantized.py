"""Levels of a scale per block: integers of 8 or 4 bits, and QSGD.

A vector is cut into blocks. Each block has a scale s of at least its largest magnitude. An entry u is sent as an
integer level l near top u / s, from -top to top, and decoded as s l / top. Stochastic rounding goes up with probability
equal to the fraction, so that the level is unbiased. Rounding compares the fraction with noise instead of adding noise
to the level: the sum would be rounded itself. All operations are exact or rounded as IEEE 754 defines, so the bits are
the same on all devices.

**Integers** (absmax quantization). The scale is the largest magnitude of a block. Entries are rounded to multiples of
the scale divided by 127 (8 bits) or 7 (4 bits). Levels are symmetric, so that a zero stays a zero. Rounding to the
nearest level has half the squared error in a single message, but repeats the error in each round: an update that is
small compared with the step is always rounded to zero. Blocks of 256 entries limit the influence of a large entry.
``OnWeights(Int8(block=None), per_tensor=True)`` has one scale per tensor.

**QSGD** (Alistarh et al., NeurIPS 2017, https://arxiv.org/abs/1610.02132). An entry v of a bucket with norm |v| is sent
as its sign and a random level l from 0 to s. With a = s |v_i| / |v|, l is floor(a) or floor(a) + 1, such that its mean
is a (Section 3.1). The server decodes |v| sign(v_i) l / s. It is unbiased. With the Euclidean norm and buckets of d
entries, the squared error is at most min(d / s^2, sqrt(d) / s) of |v|^2 (Lemma 3.1). The paper's experiments use the
largest magnitude as norm, with buckets of 512 entries: ``norm="max"``.

Most levels are 0 or 1, so the paper codes them with fewer bits than a fixed width: the distance to the next nonzero
level, its sign, and its magnitude in Elias code (Section 3.2). Here these are arrays of their own, so that all entries
are decoded at once:

    positions of nonzero levels    a bitmap, or distances in Golomb-Rice code (``gossamer.core.indices``)
    signs                          one bit per nonzero level, 1 for minus
    lengths, digits                magnitudes in Elias gamma code: the number of digits in unary, and the digits below
                                   the highest, low digits first; not sent for s = 1

The paper has Elias omega code for distances and magnitudes. Golomb-Rice code is shorter for distances between random
positions, and gamma code for magnitudes up to 63. Where a fixed width takes fewer bytes, as with the largest magnitude
as norm, the array ``levels`` has levels plus s of a fixed width.
"""

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from gossamer.core import indices
from gossamer.core.bits import bits, code_bytes, codes, expect_bits, expect_codes, numbers, unbits
from gossamer.core.codec import Codec, Coding, each_row
from gossamer.core.errors import PayloadError, require, wrong
from gossamer.core.exact import norm
from gossamer.core.random import Key, Keys, fold, uniform
from gossamer.core.types import Payload, true_at
from gossamer.core.wire import expect, finite
from gossamer.parts.codecs.scale import block_length, blocks, expect_scales, ratio

Rounding = Literal["stochastic", "nearest"]


def levels_of(
    x: Tensor, block: int | None, top: int, scales_of: Callable[[Tensor], Tensor], key: Key | Keys | None
) -> tuple[Tensor, Tensor]:
    """Return the level of each entry, and the scale of each block. Without a key, levels are the nearest."""
    rows = blocks(finite(x, "change"), block_length(x.shape[-1], block))  # [..., blocks, length]
    scales = scales_of(rows)
    exact = ratio(rows, scales.unsqueeze(-1)) * top
    if key is None:
        return exact.round().flatten(-2)[..., : x.shape[-1]], scales
    low, (count, length) = exact.floor(), rows.shape[-2:]
    noise = uniform(key, count * length, dtype=x.dtype, device=x.device).unflatten(-1, (count, length))
    return (low + (noise < exact - low)).flatten(-2)[..., : x.shape[-1]], scales


def largest_of(rows: Tensor) -> Tensor:
    """Return the largest magnitude of each block."""
    return rows.abs().amax(-1)


def valued(levels: Tensor, payload: Payload, block: int | None, top: int, ctx: Coding) -> Tensor:
    """Return level divided by ``top``, times the scale in the payload. Raise ``PayloadError`` for a level above it."""
    layout, length = ctx.layout, block_length(ctx.layout.size, block)
    scales = expect_scales(payload, layout, -(-layout.size // length))
    if bool((levels.abs() > top).any()):
        raise PayloadError(f"a level is above {top}")
    # A tensor as divisor: a GPU rounds a division by a Python number differently.
    divisor = torch.tensor(top, dtype=layout.dtype, device=levels.device)
    # The quotient comes first: it is at most 1, so that the product with the largest scale is finite.
    rows = blocks(levels.to(layout.dtype) / divisor, length) * scales.unsqueeze(-1)
    return rows.flatten(-2)[..., : layout.size]


@dataclass(frozen=True)
class Integers(Codec):
    """Base of codecs that send an integer of a few bits per entry, and one scale per block.

    Args:
        rounding: stochastic (unbiased) or nearest
        block: the number of entries with one scale; none is the whole vector
    """

    rounding: Rounding = "stochastic"
    block: int | None = 256

    def __post_init__(self) -> None:
        require(
            (self.rounding in ("stochastic", "nearest"), wrong(self, "rounding", "must be stochastic or nearest")),
            (self.block is None or self.block > 0, wrong(self, "block", "must be at least 1, or none")),
        )

    @property
    @abstractmethod
    def top(self) -> int:
        """The largest level."""

    @abstractmethod
    def packed(self, levels: Tensor) -> Tensor:
        """Return the array of the levels."""

    @abstractmethod
    def unpacked(self, payload: Payload, count: int) -> Tensor:
        """Return the levels in a payload. The caller checks that none is above ``top``."""

    @property
    def unbiased(self) -> bool:
        """Whether rounding is stochastic."""
        return self.rounding == "stochastic"

    def encode(self, x: Tensor, ctx: Coding) -> Payload:
        """Return the levels, and a scale per block."""
        key = None if self.rounding == "nearest" else fold(ctx.key, "integers")
        levels, scales = levels_of(x, self.block, self.top, largest_of, key)
        return {"levels": self.packed(levels), "scales": scales}

    def decode(self, payload: Payload, ctx: Coding) -> Tensor:
        """Return level divided by ``top``, times scale."""
        return valued(self.unpacked(payload, ctx.layout.size), payload, self.block, self.top, ctx)


@dataclass(frozen=True)
class Int8(Integers):
    """Sends one byte per entry, and one scale per block.

    Args:
        rounding: stochastic (unbiased) or nearest
        block: the number of entries with one scale; none is the whole vector
    """

    @property
    def top(self) -> int:
        """The largest level."""
        return 127

    def packed(self, levels: Tensor) -> Tensor:
        """Return one signed byte per level."""
        return levels.to(torch.int8)

    def unpacked(self, payload: Payload, count: int) -> Tensor:
        """Return the levels as int16, in which the magnitude of -128 is a number too."""
        return expect(payload, "levels", torch.int8, count).to(torch.int16)


@dataclass(frozen=True)
class Int4(Integers):
    """Sends half a byte per entry, and one scale per block.

    Args:
        rounding: stochastic (unbiased) or nearest
        block: the number of entries with one scale; none is the whole vector
    """

    @property
    def top(self) -> int:
        """The largest level."""
        return 7

    def packed(self, levels: Tensor) -> Tensor:
        """Return two levels per byte, each plus 7."""
        return codes(levels.to(torch.int64) + self.top, 4)

    def unpacked(self, payload: Payload, count: int) -> Tensor:
        """Return the levels."""
        return expect_codes(payload, "levels", 4, count).long() - self.top


@dataclass(frozen=True)
class QSGD(Codec):
    """Sends a random level per entry in Elias code, and one norm per bucket.

    See https://arxiv.org/abs/1610.02132.

    Args:
        levels: the number of positive levels s, from 1 to 127
        bucket: the number of entries with one norm; none is the whole vector
        norm: l2 (Euclidean, as in the theory) or max (largest magnitude, as in the experiments of the paper)
    """

    levels: int = 7
    bucket: int | None = 512
    norm: Literal["l2", "max"] = "l2"

    def __post_init__(self) -> None:
        require(
            (1 <= self.levels <= 127, wrong(self, "levels", "must be a whole number from 1 to 127")),
            (self.bucket is None or self.bucket > 0, wrong(self, "bucket", "must be at least 1, or none")),
            (self.norm in ("l2", "max"), wrong(self, "norm", "must be l2 or max")),
        )

    @property
    def unbiased(self) -> bool:
        """True: the mean of a random level is the exact one."""
        return True

    @each_row
    def encode(self, x: Tensor, ctx: Coding) -> Payload:
        """Return the levels, and a norm per bucket."""
        levels, scales = levels_of(x, self.bucket, self.levels, self._norms, fold(ctx.key, "qsgd"))
        return {**self._packed(levels.to(torch.int64)), "scales": scales}

    @each_row
    def decode(self, payload: Payload, ctx: Coding) -> Tensor:
        """Return level divided by the number of levels, times norm."""
        return valued(self._unpacked(payload, ctx.layout.size), payload, self.bucket, self.levels, ctx)

    def _norms(self, rows: Tensor) -> Tensor:
        """Return the norm of each bucket."""
        most = largest_of(rows)
        # Rounding can make the Euclidean norm slightly smaller than the largest entry.
        return most if self.norm == "max" else finite(torch.maximum(norm(rows), most), "norm of the change")

    def _packed(self, levels: Tensor) -> Payload:
        """Return the levels in Elias code, or with a fixed width where that is shorter."""
        fixed = code_bytes(len(levels), self._width)
        coded = self._coded(levels) if self._least(levels) <= 8 * fixed else {}
        if coded and sum(array.nbytes for array in coded.values()) <= fixed:
            return coded
        return {"levels": codes(levels + self.levels, self._width)}

    def _unpacked(self, payload: Payload, count: int) -> Tensor:
        if "levels" in payload:
            return expect_codes(payload, "levels", self._width, count).long() - self.levels
        mask = indices.unpack(payload, count)
        number = indices.marked(mask)
        signs = 1 - 2 * numbers(expect_bits(payload, "signs", number), torch.int64)
        sizes = _from_gamma(payload, number, self.levels) if self.levels > 1 else 1
        return indices.spread(signs * sizes, mask)

    @property
    def _width(self) -> int:
        return (2 * self.levels).bit_length()

    def _least(self, levels: Tensor) -> int:
        """Return a lower bound on the bits of Elias code: signs, magnitudes, and one bit per position in short code."""
        sizes = range(1, self.levels + 1)
        bits_of = [0, *(2 * size.bit_length() if self.levels > 1 else 1 for size in sizes)]
        nonzero = int(torch.count_nonzero(levels))
        return int(levels.new_tensor(bits_of)[levels.abs()].sum()) + min(nonzero, len(levels) - nonzero)

    def _coded(self, levels: Tensor) -> Payload:
        mask = levels != 0
        found = levels[mask]
        sizes = _gamma(found.abs()) if self.levels > 1 else {}
        return {**indices.pack(mask), "signs": bits(found < 0), **sizes}


def _gamma(values: Tensor) -> Payload:
    """Return positive integers in Elias gamma code, with the digits of all values after their lengths."""
    digits = torch.frexp(values.to(torch.float64)).exponent.to(torch.int64) - 1  # below the highest
    ends = (digits + 1).cumsum(0)
    lengths = torch.zeros(int(ends[-1]) if len(ends) else 0, dtype=torch.bool, device=values.device)
    lengths[ends - 1] = True
    owner, place = _places(digits)
    return {"lengths": bits(lengths), "digits": bits(values[owner] >> place & 1 != 0)}


def _from_gamma(payload: Payload, count: int, largest: int) -> Tensor:
    digits = _digits(payload, count, largest)
    owner, place = _places(digits)
    found = numbers(expect_bits(payload, "digits", len(owner)), torch.int64) << place
    values = torch.ones_like(digits) << digits
    return values.index_add_(0, owner, found)


def _digits(payload: Payload, count: int, largest: int) -> Tensor:
    """Return the number of digits below the highest of each value."""
    if "lengths" not in payload:
        raise PayloadError("the payload has no array 'lengths'")
    array = expect(payload, "lengths", torch.uint8, payload["lengths"].numel())
    ends = true_at(unbits(array, 8 * len(array)))
    used = int(ends[-1]) + 1 if len(ends) else 0
    if len(ends) != count or -(-used // 8) != len(array):
        raise PayloadError(f"'lengths' must have {count:,} ones, the last in its last byte")
    digits = torch.diff(ends, prepend=ends.new_full((1,), -1)) - 1
    if count and int(digits.max()) >= largest.bit_length():
        raise PayloadError(f"'lengths' has a value above {largest}")
    return digits


def _places(digits: Tensor) -> tuple[Tensor, Tensor]:
    """Return, for each digit in order, the index of its value and its place, lowest first."""
    owner = torch.repeat_interleave(torch.arange(len(digits), device=digits.device), digits)
    first = digits.cumsum(0) - digits
    return owner, torch.arange(len(owner), device=digits.device) - first[owner]
