"""Rotate, then round: a random rotation makes any vector look Gaussian, and Gaussian entries are cheap to round.

The rotation is the randomised Hadamard transform H D x / sqrt(d), twice: D flips signs as the key says, afresh each
time, and H is the Hadamard matrix (``.hadamard``). Once is not enough for vectors with few large entries: of
(5, 3, 1, 0, 0, ...) the 5 alone would decide all signs of the transform, and whatever is decoded from those would lack
the 3, whichever D is drawn. After a second time all entries have a say.

The transform wants d to be a power of two. A long vector is therefore rotated in blocks of d = 8192, each with a scale
of its own, and nothing is padded, whatever its length n. With ``head = n % d``,

    1. the first d entries are rotated, if there is a head;
    2. the last n - head entries, a multiple of d, are rotated block by block.

Each step is orthogonal, so both together are a rotation of n dimensions. The head keeps what the first step made of it;
the other entries of the first step are rotated once more in the second. The head and each block are the segments, one
scale each: a message has n codes and ceil(n / 8192) scales. A vector shorter than 8192 takes for d the largest power of
two that fits, and two scales unless it has that size.

All of it is additions, subtractions and products in one order, so bits agree on all devices.
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
TURNS = 2  # how often each step transforms


@dataclass(frozen=True)
class Rotation:
    """A rotation of vectors that both ends of a link can draw.

    Args:
        size: how many entries the vectors have
        key: what the signs are drawn from
    """

    size: int
    key: Key

    @property
    def block(self) -> int:
        """How many entries are mixed with one another: d."""
        return min(BLOCK, 1 << max(self.size, 1).bit_length() - 1)

    @property
    def head(self) -> int:
        """How many entries are left over by whole blocks."""
        return self.size % self.block

    @property
    def segments(self) -> int:
        """How many scales there are."""
        return -(-self.size // self.block)

    def forward(self, x: Tensor) -> Tensor:
        """The rotated vector."""
        first, rest = self._flips(x.device)
        if self.head:
            x = torch.cat((self._turned(x[: self.block], first), x[self.block :]))
        return torch.cat((x[: self.head], self._turned(x[self.head :], rest)))

    def inverse(self, y: Tensor) -> Tensor:
        """The vector whose rotation is ``y``."""
        first, rest = self._flips(y.device)
        x = torch.cat((y[: self.head], self._turned_back(y[self.head :], rest)))
        if self.head:
            x = torch.cat((self._turned_back(x[: self.block], first), x[self.block :]))
        return x

    def cut(self, y: Tensor) -> list[Tensor]:
        """The segments of a rotated vector as rows: the head alone, if there is one, and the blocks."""
        blocks = y[self.head :].view(-1, self.block)
        return [y[: self.head].view(1, -1), blocks] if self.head else [blocks]

    def each(self, scales: Tensor) -> Tensor:
        """For each entry of a rotated vector the scale of its segment."""
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
        """Which entries change their sign: in the first step and in the second, a row for each turn."""
        first, rest = self.block if self.head else 0, self.size - self.head
        count = TURNS * (first + rest)
        drawn = words(fold(self.key, "rotation"), -(-count // 64), device=device)
        places = torch.arange(0, 64, 8, device=device)
        packed = (drawn.view(-1, 1) >> places & 0xFF).to(torch.uint8).view(-1)
        flips = unbits(packed, count)
        return flips[: TURNS * first].view(TURNS, first), flips[TURNS * first :].view(TURNS, rest)


class Rotated(Codec):
    """Rotates, and sends for each entry the nearest of a few levels, and for each segment a scale.

    Levels are for entries of variance 1, so a segment is brought to that first. What is decoded is level times scale,
    rotated back. A change whose scale has no form as a float is sent with the largest that has.
    """

    @abstractmethod
    def levels(self) -> tuple[float, ...]:
        """The levels, ascending and symmetric; a power of two of them, and at most 256."""

    @abstractmethod
    def fit(self, y: Tensor, c: Tensor) -> Tensor:
        """The scale of each row of ``y``, given the levels ``c`` that its entries were rounded to."""

    def encode(self, x: Tensor, layout: Layout, key: Key) -> Payload:
        """The levels' numbers, packed, and a scale for each segment."""
        rotation = Rotation(layout.size, key)
        y, exponent = unit(finite(x, "change"))
        rounded = [self._rounded(rows) for rows in rotation.cut(rotation.forward(y))]
        scales = shift(torch.cat([scale for _, scale in rounded]), exponent)
        codes = torch.cat([code for code, _ in rounded])
        return {"codes": _packed(codes, self._width()), "scales": scales.clamp(max=torch.finfo(x.dtype).max)}

    def decode(self, payload: Payload, layout: Layout, key: Key) -> Tensor:
        """Level times scale, rotated back."""
        rotation = Rotation(layout.size, key)
        flags = expect_bits(payload, "codes", layout.size * self._width())
        scales, exponent = unit(_expect_scales(payload, layout, rotation))
        y = self._values(scales)[_unpacked(flags, self._width())] * rotation.each(scales)
        limit = torch.finfo(layout.dtype).max
        return shift(rotation.inverse(y), exponent).clamp(-limit, limit)

    def _rounded(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """The number of each entry's level, and the scale of each row."""
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
    """|y|^2 / <c, y>: what is decoded has the right length along ``y``, and so is right on average over rotations."""
    return _ratio(total(y * y), total(c * y))


def least_squares_scale(y: Tensor, c: Tensor) -> Tensor:
    """<c, y> / |c|^2: what is decoded is as close to ``y`` as a multiple of ``c`` can be."""
    return _ratio(total(c * y), total(c * c))


def _ratio(top: Tensor, bottom: Tensor) -> Tensor:
    """The quotient of what is positive, and zero where a row is zero."""
    positive = (top > 0) & (bottom > 0)
    return torch.where(positive, top / torch.where(positive, bottom, 1), 0)


def _packed(codes: Tensor, width: int) -> Tensor:
    """Numbers of ``width`` bits each, lowest bit first, one behind the other."""
    return bits((codes.view(-1, 1) >> _places(width, codes) & 1).view(-1))


def _unpacked(flags: Tensor, width: int) -> Tensor:
    return (flags.view(-1, width).int() << _places(width, flags)).sum(1, dtype=torch.int32)


def _places(width: int, like: Tensor) -> Tensor:
    return torch.arange(width, dtype=torch.int32, device=like.device)


def _expect_scales(payload: Payload, layout: Layout, rotation: Rotation) -> Tensor:
    scales = finite(expect(payload, "scales", layout.dtype, rotation.segments), "scales")
    if bool(torch.signbit(scales).any()):
        raise PayloadError("'scales' holds a negative value")
    return scales
