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
from dataclasses import dataclass

import torch
from torch import Tensor

from gossamer.core.bits import bits, expect_bits, unbits
from gossamer.core.codec import Codec
from gossamer.core.errors import PayloadError
from gossamer.core.exact import root, shift, total, unit
from gossamer.core.random import Key, fold, words
from gossamer.core.types import Layout, Payload
from gossamer.core.wire import expect, finite
from gossamer.parts.codecs.hadamard import hadamard_

BLOCK = 2**13
TURNS = 2  # transforms per step


@dataclass(frozen=True)
class Rotation:
    """A random rotation that sender and receiver draw from a shared key.

    Args:
        size: the number of entries of the vectors
        key: the random key of the signs
    """

    size: int
    key: Key

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
        first, rest = self._flips(x.device)
        if self.head:
            x = torch.cat((self._turned(x[: self.block], first), x[self.block :]))
        return torch.cat((x[: self.head], self._turned(x[self.head :], rest)))

    def inverse(self, y: Tensor) -> Tensor:
        """Return the vector whose rotation is ``y``."""
        first, rest = self._flips(y.device)
        x = torch.cat((y[: self.head], self._turned_back(y[self.head :], rest)))
        if self.head:
            x = torch.cat((self._turned_back(x[: self.block], first), x[self.block :]))
        return x

    def cut(self, y: Tensor) -> list[Tensor]:
        """Return the segments of a rotated vector as rows of matrices: the head, if there is one, and the blocks."""
        blocks = y[self.head :].view(-1, self.block)
        return [y[: self.head].view(1, -1), blocks] if self.head else [blocks]

    def each(self, scales: Tensor) -> Tensor:
        """Return the scale of each entry of a rotated vector, given the scales of the segments."""
        heads = min(self.head, 1)
        blocks = scales[heads:].view(-1, 1).expand(-1, self.block)
        return torch.cat((scales[:heads].expand(self.head), blocks.reshape(-1)))

    def _turned(self, x: Tensor, flips: Tensor) -> Tensor:
        for flip in flips:
            x = self._mixed_(torch.where(flip, -x, x))
        return x

    def _turned_back(self, x: Tensor, flips: Tensor) -> Tensor:
        x = x.clone()
        for flip in reversed(flips):
            x = self._mixed_(x)
            x = torch.where(flip, -x, x)
        return x

    def _mixed_(self, x: Tensor) -> Tensor:
        return hadamard_(x.view(-1, self.block)).mul_(1 / math.sqrt(self.block)).view(-1)

    def _flips(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """Return which entries change their sign in the first step and in the second, one row per transform."""
        first, rest = self.block if self.head else 0, self.size - self.head
        count = TURNS * (first + rest)
        drawn = words(fold(self.key, "rotation"), -(-count // 64), device=device)
        shifts = torch.arange(0, 64, 8, device=device)
        packed = (drawn.view(-1, 1) >> shifts & 0xFF).to(torch.uint8).view(-1)
        flips = unbits(packed, count)
        return flips[: TURNS * first].view(TURNS, first), flips[TURNS * first :].view(TURNS, rest)


class Rotated(Codec):
    """Base of codecs that rotate a vector, and send the nearest level of each entry and a scale per segment.

    Levels are for entries of variance 1, so each segment is scaled to variance 1 first. The decoded vector is level
    times scale, rotated back. A scale that exceeds the floating-point type is replaced by the largest float.
    """

    @abstractmethod
    def levels(self) -> tuple[float, ...]:
        """Return the levels, ascending and symmetric. Their number is a power of two, at most 256."""

    @abstractmethod
    def fit(self, y: Tensor, c: Tensor) -> Tensor:
        """Return the scale of each row of ``y``, whose entries were rounded to the levels ``c``."""

    def encode(self, x: Tensor, layout: Layout, key: Key) -> Payload:
        """Return the packed indices of the levels, and a scale per segment."""
        rotation = Rotation(layout.size, key)
        y, exponent = unit(finite(x, "change"))
        rounded = [self._rounded(rows) for rows in rotation.cut(rotation.forward(y))]
        scales = shift(torch.cat([scale for _, scale in rounded]), exponent)
        codes = torch.cat([code for code, _ in rounded])
        return {"codes": _packed(codes, self._width()), "scales": scales.clamp(max=torch.finfo(x.dtype).max)}

    def decode(self, payload: Payload, layout: Layout, key: Key) -> Tensor:
        """Return level times scale, rotated back."""
        rotation = Rotation(layout.size, key)
        flags = expect_bits(payload, "codes", layout.size * self._width())
        scales, exponent = unit(_expect_scales(payload, layout, rotation))
        y = self._values(scales)[_unpacked(flags, self._width())] * rotation.each(scales)
        limit = torch.finfo(layout.dtype).max
        return shift(rotation.inverse(y), exponent).clamp(-limit, limit)

    def _rounded(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return the index of each entry's level, and the scale of each row."""
        y, exponent = unit(rows)
        length = root(total(y * y))
        z = y * (_ratio(torch.ones_like(length), length) * math.sqrt(y.shape[1])).view(-1, 1)
        values = self._values(y)
        codes = torch.bucketize(z, (values[1:] + values[:-1]) * 0.5, out_int32=True, right=True)
        return codes.view(-1), shift(self.fit(y, values[codes]), exponent[:, 0])

    def _values(self, like: Tensor) -> Tensor:
        return like.new_tensor(self.levels())

    def _width(self) -> int:
        return len(self.levels()).bit_length() - 1


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


def _packed(codes: Tensor, width: int) -> Tensor:
    """Pack numbers of ``width`` bits one after the other, lowest bit first."""
    return bits((codes.view(-1, 1) >> _shifts(width, codes) & 1).view(-1))


def _unpacked(flags: Tensor, width: int) -> Tensor:
    return (flags.view(-1, width).int() << _shifts(width, flags)).sum(1, dtype=torch.int32)


def _shifts(width: int, like: Tensor) -> Tensor:
    return torch.arange(width, dtype=torch.int32, device=like.device)


def _expect_scales(payload: Payload, layout: Layout, rotation: Rotation) -> Tensor:
    scales = finite(expect(payload, "scales", layout.dtype, rotation.segments), "scales")
    if bool(torch.signbit(scales).any()):
        raise PayloadError("'scales' holds a negative value")
    return scales
