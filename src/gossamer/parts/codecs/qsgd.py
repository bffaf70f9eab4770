"""QSGD (Alistarh et al., NeurIPS 2017, https://arxiv.org/abs/1610.02132): stochastic levels of a norm, Elias coded.

An entry v of a bucket with norm |v| is sent as its sign and a random level l from 0 to s. With a = s |v_i| / |v|, l is
floor(a) or floor(a) + 1, such that its mean is a (Section 3.1). The server decodes |v| sign(v_i) l / s. It is unbiased.
With the Euclidean norm and buckets of d entries, the squared error is at most min(d / s^2, sqrt(d) / s) of |v|^2 (Lemma
3.1). The paper's experiments use the largest magnitude as norm, with buckets of 512 entries: ``norm="max"``.

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

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from gossamer.core import indices
from gossamer.core.bits import bits, code_bytes, codes, expect_bits, expect_codes, numbers, unbits
from gossamer.core.errors import PayloadError, require, wrong
from gossamer.core.exact import norm
from gossamer.core.random import Key, fold
from gossamer.core.types import Payload, true_at
from gossamer.core.wire import expect, finite
from gossamer.parts.codecs.block_scaled import BlockScaled, rounded


@dataclass(frozen=True)
class QSGD(BlockScaled):
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

    @property
    def top(self) -> int:
        """The largest level."""
        return self.levels

    @property
    def length(self) -> int | None:
        """The number of entries per bucket."""
        return self.bucket

    def scales(self, rows: Tensor) -> Tensor:
        """Return the norm of each bucket."""
        most = rows.abs().amax(1)
        # Rounding can make the Euclidean norm slightly smaller than the largest entry.
        return most if self.norm == "max" else finite(torch.maximum(norm(rows), most), "norm of the change")

    def rounded(self, exact: Tensor, key: Key) -> Tensor:
        """Return random whole numbers near ``exact``."""
        return rounded(exact, fold(key, "qsgd"))

    def pack(self, levels: Tensor) -> Payload:
        """Return the levels in Elias code, or with a fixed width where that is shorter."""
        levels, fixed = levels.to(torch.int64), code_bytes(len(levels), self._width)
        coded = self._coded(levels) if self._least(levels) <= 8 * fixed else {}
        if coded and sum(array.nbytes for array in coded.values()) <= fixed:
            return coded
        return {"levels": codes(levels + self.levels, self._width)}

    def unpack(self, payload: Payload, count: int) -> Tensor:
        """Return the levels."""
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
