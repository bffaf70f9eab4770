"""Quantization after a random rotation, the common part of DRIVE and EDEN.

A random rotation makes the entries of any vector almost Gaussian, and Gaussian entries can be quantized well. The
rotation is the randomized Hadamard transform H D x / sqrt(d), applied twice. D flips signs at random, with new signs
each time, and H is the Hadamard matrix (``gossamer.parts.codecs.hadamard``). A single transform is not enough for
vectors with few large entries: of (5, 3, 1, 0, 0, ...), the 5 alone would determine all signs, for any D. The decoded
vector would then not contain the 3. After the second transform, all entries have an influence.

The length d of the transform must be a power of two. A long vector is therefore rotated in blocks of d = 8192, each
with its own scale, without padding. With ``head = n % d`` for a vector of n entries,

    1. the first d entries are rotated, if there is a head;
    2. the last n - head entries, a multiple of d, are rotated block by block.

Each step is orthogonal, so both together are a rotation in n dimensions. The head is final after the first step. The
other entries of the first step are rotated again in the second. The head and each block are the segments, with one
scale each. So a message has n codes and ceil(n / 8192) scales. For a vector shorter than 8192, d is the largest power
of two that fits, with two scales unless the length is d.

All operations are additions, subtractions and products in a fixed order, so the bits are the same on all devices.
"""

import math
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from gossamer.core import entropy
from gossamer.core.bits import codes, expect_codes, unbits
from gossamer.core.codec import Codec, Coding
from gossamer.core.exact import CACHED, FORMATS, in_pieces, root, shift, total, unit
from gossamer.core.random import Key, Keys, fold, words
from gossamer.core.types import Payload
from gossamer.core.wire import finite
from gossamer.parts.codecs.hadamard import hadamard_
from gossamer.parts.codecs.scale import expect_scales

BLOCK = 2**13
TURNS = 2  # transforms per step


@dataclass(frozen=True)
class Rotation:
    """A random rotation that sender and receiver draw from a shared key.

    Vectors may be the rows of a matrix, ``[K, n]``: with ``Keys``, each row is rotated by its own key, else all by one.

    Args:
        size: the number of entries of the vectors
        key: the random key of the signs, or one of each row
    """

    size: int
    key: Key | Keys

    @property
    def block(self) -> int:
        """The length of the transform: d."""
        return min(BLOCK, 1 << max(self.size, 1).bit_length() - 1)

    @property
    def head(self) -> int:
        """The number of entries that do not fill a block."""
        return self.size % self.block

    @property
    def segments(self) -> int:
        """The number of segments, each with one scale."""
        return -(-self.size // self.block)

    def forward(self, x: Tensor) -> Tensor:
        """Return the rotated vector."""
        y = x.clone(memory_format=torch.contiguous_format)
        for part, flips in self._steps(y):
            self._mix_(_negate_(part, flips))
        return y

    def inverse(self, y: Tensor) -> Tensor:
        """Return the vector whose rotation is ``y``."""
        return self.inverse_(y.clone(memory_format=torch.contiguous_format))

    def inverse_(self, y: Tensor) -> Tensor:
        """Replace a contiguous vector by the vector whose rotation it is."""
        for part, flips in self._steps(y, backwards=True):
            _negate_(self._mix_(part), flips)
        return y

    def cut(self, y: Tensor) -> list[Tensor]:
        """Return the segments of a rotated vector as rows of matrices: the head, if there is one, and the blocks.

        On a CPU, there are several matrices of blocks, each of which fits its cache. Of the vectors of a group, there
        are matrices for each: ``[K, segments, entries]``.
        """
        entries = CACHED // max(1, y[..., :1].numel()) if y.device.type == "cpu" else self.size
        blocks = y[..., self.head :].unflatten(-1, (self.size // self.block, self.block))
        found = list(blocks.split(max(1, entries // self.block), -2))
        return [y[..., : self.head].unsqueeze(-2), *found] if self.head else found

    def _steps(self, y: Tensor, backwards: bool = False) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the part that each transform takes in place, in order, and which of its entries change their sign.

        A CPU takes as many rows at a time as fit its cache.
        """
        rows, key = y if y.dim() > 1 else y.unsqueeze(0), fold(self.key, "rotation")  # [K, n]
        together = max(1, CACHED // max(1, self.size) if y.device.type == "cpu" else len(rows))
        for start in range(0, len(rows), together):
            some = rows[start : start + together]
            if isinstance(key, Keys):
                first, rest = self._flips(key[start : start + together], y.device)
            elif start == 0:  # the rows share their signs
                first, rest = self._flips(key, y.device)
            steps = [(some[:, : self.block], flips) for flips in first.unbind(-2)] if self.head else []
            steps += [(some[:, self.head :], flips) for flips in rest.unbind(-2)]
            for part, flips in reversed(steps) if backwards else steps:
                whole = part.contiguous()  # a copy, where the rows of the part are apart
                yield whole, flips
                if whole is not part:
                    part.copy_(whole)

    def _mix_(self, x: Tensor) -> Tensor:
        hadamard_(x.view(-1, self.block)).mul_(1 / math.sqrt(self.block))
        return x

    def _flips(self, key: Key | Keys, device: torch.device) -> tuple[Tensor, Tensor]:
        """Return which entries change their sign in the first step and in the second, one row per transform."""
        first, rest = self.block if self.head else 0, self.size - self.head
        count = TURNS * (first + rest)
        drawn = words(key, -(-count // 64), device=device)
        flips = unbits(drawn.view(torch.uint8), count)  # a word is eight bytes, the lowest first
        return (
            flips[..., : TURNS * first].unflatten(-1, (TURNS, first)),
            flips[..., TURNS * first :].unflatten(-1, (TURNS, rest)),
        )


class Rotated(Codec):
    """Base of codecs that rotate a vector, and send the nearest level of each entry and a scale per segment.

    Levels are for entries of variance 1, so each segment is scaled to variance 1 first. The decoded vector is level
    times scale, rotated back. A scale that exceeds the floating-point type is replaced by the largest float.
    """

    coded: bool = False
    """Whether to send the entropy code of the indices where it is shorter."""

    @abstractmethod
    def levels(self) -> tuple[float, ...]:
        """Return the levels, ascending and symmetric. Their number is a power of two, at most 256."""

    @abstractmethod
    def fit(self, y: Tensor, c: Tensor) -> Tensor:
        """Return the scale of each row of ``y``, whose entries were rounded to the levels ``c``."""

    def encode(self, x: Tensor, ctx: Coding) -> Payload:
        """Return the packed indices of the levels, and a scale per segment."""
        rotation = Rotation(ctx.layout.size, ctx.key)
        y, exponent = unit(finite(x, "change"))
        rounded = [self._rounded(rows) for rows in rotation.cut(rotation.forward(y))]
        scales = shift(torch.cat([scale for _, scale in rounded]), exponent)
        indices = torch.cat([found for found, _ in rounded])
        packed = {"codes": codes(indices, self._width())}
        sent = entropy.shorter(packed, indices, len(self.levels())) if self.coded else packed
        return {**sent, "scales": scales.clamp(max=torch.finfo(x.dtype).max)}

    def decode(self, payload: Payload, ctx: Coding) -> Tensor:
        """Return level times scale, rotated back."""
        rotation = Rotation(ctx.layout.size, ctx.key)
        found = self._indices(payload, ctx.layout.size)
        scales, exponent = unit(expect_scales(payload, ctx.layout, rotation.segments))
        y = scales.new_empty(ctx.layout.size)
        pieces = rotation.cut(y)
        each = scales.split([len(rows) for rows in pieces])
        for rows, indices, scale in zip(pieces, rotation.cut(found), each, strict=True):
            torch.mul(self._values(indices, y), scale.view(-1, 1), out=rows)
        limit = torch.finfo(ctx.layout.dtype).max
        return rotation.inverse_(y).mul_(shift(y.new_ones(1), exponent)).clamp_(-limit, limit)

    def _rounded(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return the index of each entry's level, and the scale of each row."""
        y, exponent = unit(rows)
        length = root(total(y * y))
        z = y * (_ratio(torch.ones_like(length), length) * math.sqrt(y.shape[1])).view(-1, 1)
        found = nearest(z, self.levels())
        return found.view(-1), shift(self.fit(y, self._values(found, y)), exponent[:, 0])

    def _indices(self, payload: Payload, count: int) -> Tensor:
        """Return the indices of the levels, from either form."""
        if self.coded and entropy.NAME in payload:
            return entropy.expect_symbols(payload, len(self.levels()), count, -(-count * self._width() // 8))
        return expect_codes(payload, "codes", self._width(), count)

    def _values(self, indices: Tensor, like: Tensor) -> Tensor:
        """Return the levels with these indices, in the type of ``like``."""
        return like.new_tensor(self.levels()).index_select(0, indices.reshape(-1).int()).view(indices.shape)

    def _width(self) -> int:
        return len(self.levels()).bit_length() - 1


def nearest(z: Tensor, levels: Sequence[float]) -> Tensor:
    """Return the index of the nearest level for each entry, as uint8; halfway between two, the upper one.

    The line is cut into cells that hold at most one midpoint of neighbouring levels each. The cell of an entry gives
    its index up to a comparison with this midpoint. The result is that of ``torch.bucketize`` in a tenth of its time.
    """
    values = z.new_tensor(levels)
    middles = (values[1:] + values[:-1]) * 0.5
    per_unit = 2 / min(above - below for below, above in pairwise(levels))
    last = math.ceil((levels[-1] - levels[0]) * per_unit)

    def cell(x: Tensor) -> Tensor:  # never falls as x rises, whatever the rounding
        return ((x - middles[0]) * per_unit).clamp_(0, last).int()

    below = torch.bucketize(torch.arange(last + 1, dtype=torch.int32, device=z.device), cell(middles))
    own = values.new_full((last + 1,), math.inf).index_put_((cell(middles),), middles)
    below = below.to(torch.uint8)

    def index(z: Tensor) -> Tensor:
        cells = cell(z).reshape(-1)
        above = z >= own.index_select(0, cells).view_as(z)
        return below.index_select(0, cells).view_as(z) + above

    return in_pieces(index, z)


def _negate_(x: Tensor, flags: Tensor) -> Tensor:
    """Flip the sign bits of marked entries in place. This takes a tenth of the time of ``torch.where``."""
    whole = FORMATS[x.dtype].integer
    for bits, marks in zip(x.view(whole).split(CACHED, -1), flags.view(torch.uint8).split(CACHED, -1), strict=True):
        bits ^= marks.to(whole) << 8 * x.itemsize - 1
    return x


def unbiased_scale(y: Tensor, c: Tensor) -> Tensor:
    """Return |y|^2 / <c, y>. The decoded vector has the right length along ``y``, so it is unbiased over rotations."""
    return _ratio(total(y * y), total(c * y))


def least_squares_scale(y: Tensor, c: Tensor) -> Tensor:
    """Return <c, y> / |c|^2, the scale with the smallest squared error."""
    return _ratio(total(c * y), total(c * c))


def _ratio(top: Tensor, bottom: Tensor) -> Tensor:
    """Return the quotient where both are positive, and zero elsewhere: for rows of zeros."""
    positive = (top > 0) & (bottom > 0)
    return torch.where(positive, top / torch.where(positive, bottom, 1), 0)
