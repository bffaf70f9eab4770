"""Quantization after a random rotation: DRIVE and EDEN.

A random rotation (``gossamer.parts.codecs.rotation``) makes the entries of any vector almost Gaussian, and Gaussian
entries can be quantized well. Each segment of the rotation has its own scale, so that blocks of different magnitude do
not affect each other. So a message has n codes and ceil(n / 8192) scales. With R x a rotated segment of d entries:

**DRIVE** (Vargaftik et al., NeurIPS 2021, https://arxiv.org/abs/2105.08339) sends the signs: one bit per entry. The
paper has one scale for the whole vector. There are two scales:

    unbiased         |x|_2^2 / |R x|_1     unbiased; the squared error is about pi/2 - 1 = 0.571 of |x|^2
    least-squares    |R x|_1 / d           smallest squared error, about 1 - 2/pi = 0.363, but biased towards zero

Both errors are those of Gaussian entries, which the rotation approximates for any vector. The unbiased scale is exactly
unbiased for uniformly random rotations. With this rotation, the bias is negligible for vectors of 16 or more entries.
Shorter vectors are decoded with a bias.

**EDEN** (Vargaftik et al., ICML 2022, https://arxiv.org/abs/2108.08842) sends 1 to 8 bits per entry: the optimal levels
of the normal distribution (Lloyd and Max), of which each is the mean of the values that are rounded to it. With z = R x
sqrt(d) / |x|, scaled to variance 1, and c(z) its levels, the scale of the segment is

    S = |x|^2 / <c(z), R x>

S c(z), rotated back, is decoded. The result is unbiased, with the same restriction as above. With one bit, it is DRIVE
with the unbiased scale. With D the squared error of the levels for the normal distribution, the squared error of the
decoded vector is about 1 / (1 - D) - 1 of |x|^2:

    bits             1        2        3         4         5         6          7          8
    squared error    0.571    0.133    0.0358    0.00959   0.00251   0.000645   0.000164   0.0000412

All operations are additions, subtractions and products in a fixed order, so the bits are the same on all devices.
"""

import functools
import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import torch
from torch import Tensor

from gossamer.core import entropy
from gossamer.core.bits import codes, expect_codes
from gossamer.core.codec import Codec, Coding, row_by_row, rows_of
from gossamer.core.errors import listed, require, wrong
from gossamer.core.exact import in_pieces, root, shift, total, unit
from gossamer.core.types import Payload
from gossamer.core.wire import finite
from gossamer.parts.codecs.rotation import Rotation
from gossamer.parts.codecs.scale import expect_scales

# The positive levels for 1 to 8 bits, one paragraph each. Constants, so that sender and receiver have the same bits.
LEVELS = """
0.7978845608

0.4527800346 1.5104176085

0.2450941789 0.7560052812 1.3439092785 2.1519457045

0.1283950299 0.3880482995 0.6567591185 0.9423404565 1.2562311973 1.6180463860 2.0690172265 2.7325895710

0.0658896598 0.1980518297 0.3313783058 0.4666995230 0.6049336240 0.7471357037 0.8945651174 1.0487833199 1.2118043806
1.3863403396 1.5762280786 1.7872332177 2.0287283994 2.3177394042 2.6911195774 3.2607324934

0.0334095064 0.1002782893 0.1672969034 0.2345669853 0.3021928464 0.3702826453 0.4389496717 0.5083137809 0.5785030305
0.6496555811 0.7219219406 0.7954676558 0.8704765865 0.9471549447 1.0257363491 1.1064882395 1.1897201419 1.2757944864
1.3651410198 1.4582763747 1.5558312247 1.6585889004 1.7675418830 1.8839772405 2.0096110426 2.1468102171 2.2989812098
2.4713047976 2.6722738353 2.9174067907 3.2404370550 3.7441012709

0.0168281695 0.0504908640 0.0841726421 0.1178862823 0.1516446479 0.1854607214 0.2193476402 0.2533187332 0.2873875584
0.3215679432 0.3558740251 0.3903202964 0.4249216498 0.4596934288 0.4946514803 0.5298122120 0.5651926541 0.6008105263
0.6366843110 0.6728333330 0.7092778475 0.7460391366 0.7831396163 0.8206029554 0.8584542071 0.8967199573 0.9354284901
0.9746099739 1.0142966729 1.0545231853 1.0953267158 1.1367473865 1.1788285935 1.2216174190 1.2651651073 1.3095276202
1.3547662852 1.4009485592 1.4481489314 1.4964499978 1.5459437494 1.5967331258 1.6489339056 1.7026770235 1.7581114377
1.8154077135 1.8747625485 1.9364045587 2.0006017717 2.0676714756 2.1379933780 2.2120275175 2.2903391620 2.3736342698
2.4628114331 2.5590405215 2.6638865386 2.7795142580 2.9090470736 3.0572461506 3.2319332043 3.4474302711 3.7349366444
4.1896941567

0.0084461932 0.0253393831 0.0422349838 0.0591346043 0.0760398564 0.0929523554 0.1098737217 0.1268055814 0.1437495678
0.1607073224 0.1776804958 0.1946707493 0.2116797555 0.2287091999 0.2457607821 0.2628362168 0.2799372353 0.2970655865
0.3142230386 0.3314113801 0.3486324215 0.3658879965 0.3831799637 0.4005102078 0.4178806415 0.4352932072 0.4527498783
0.4702526612 0.4878035973 0.5054047644 0.5230582793 0.5407662992 0.5585310246 0.5763547006 0.5942396202 0.6121881261
0.6302026133 0.6482855322 0.6664393910 0.6846667587 0.7029702684 0.7213526204 0.7398165857 0.7583650094 0.7770008149
0.7957270074 0.8145466788 0.8334630114 0.8524792833 0.8715988732 0.8908252655 0.9101620563 0.9296129590 0.9491818112
0.9688725810 0.9886893743 1.0086364427 1.0287181916 1.0489391890 1.0693041744 1.0898180698 1.1104859896 1.1313132522
1.1523053928 1.1734681764 1.1948076120 1.2163299682 1.2380417897 1.2599499153 1.2820614972 1.3043840223 1.3269253346
1.3496936599 1.3726976334 1.3959463280 1.4194492870 1.4432165588 1.4672587348 1.4915869919 1.5162131377 1.5411496620
1.5664097918 1.5920075535 1.6179578407 1.6442764901 1.6709803659 1.6980874530 1.7256169623 1.7535894479 1.7820269389
1.8109530884 1.8403933408 1.8703751224 1.9009280581 1.9320842177 1.9638783994 1.9963484549 2.0295356654 2.0634851771
2.0982465091 2.1338741482 2.1704282494 2.2079754643 2.2465899297 2.2863544514 2.3273619347 2.3697171253 2.4135387444
2.4589621336 2.5061425604 2.5552593974 2.6065214665 2.6601739657 2.7165075786 2.7758706527 2.8386857868 2.9054729037
2.9768821337 3.0537420162 3.1371325317 3.2285002106 3.3298484700 3.4440716782 3.5755879724 3.7316662622 3.9256377839
4.1865954428 4.6035356124
"""


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
        if self.coded and x.dim() > 1:  # codes differ in length
            return row_by_row(self.encode, x, ctx)
        rotation = Rotation(ctx.layout.size, ctx.key)
        y, exponent = unit(finite(x, "change"))
        rounded = [self._rounded(rows) for rows in rotation.cut(rotation.forward(y))]
        scales = shift(torch.cat([scale for _, scale in rounded], -1), exponent)
        indices = torch.cat([found for found, _ in rounded], -1)
        packed = {"codes": codes(indices, self._width())}
        sent = entropy.shorter(packed, indices, len(self.levels())) if self.coded else packed
        return {**sent, "scales": scales.clamp(max=torch.finfo(x.dtype).max)}

    def decode(self, payload: Payload, ctx: Coding) -> Tensor:
        """Return level times scale, rotated back."""
        if self.coded and rows_of(payload) is not None:
            return row_by_row(self.decode, payload, ctx)
        rotation = Rotation(ctx.layout.size, ctx.key)
        found = self._indices(payload, ctx.layout.size)
        scales, exponent = unit(expect_scales(payload, ctx.layout, rotation.segments))  # [..., segments]
        y = scales.new_empty(*scales.shape[:-1], ctx.layout.size)
        pieces = rotation.cut(y)
        each = scales.split([rows.shape[-2] for rows in pieces], -1)
        for rows, indices, scale in zip(pieces, rotation.cut(found), each, strict=True):
            torch.mul(self._values(indices, y), scale.unsqueeze(-1), out=rows)
        limit = torch.finfo(ctx.layout.dtype).max
        return rotation.inverse_(y).mul_(shift(y.new_ones(1), exponent)).clamp_(-limit, limit)

    def _rounded(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return the index of each entry's level, and the scale of each segment."""
        y, exponent = unit(rows)  # [..., segments, entries]
        length = root(total(y * y))
        z = y * (_ratio(torch.ones_like(length), length) * math.sqrt(y.shape[-1])).unsqueeze(-1)
        found = nearest(z, self.levels())
        return found.flatten(-2), shift(self.fit(y, self._values(found, y)), exponent[..., 0])

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


Scale = Literal["unbiased", "least-squares"]
SCALES = {"unbiased": unbiased_scale, "least-squares": least_squares_scale}


@dataclass(frozen=True)
class Drive(Rotated):
    """Sends the signs of the rotated vector, and one scale per 8192 entries.

    See https://arxiv.org/abs/2105.08339.

    Args:
        scale: "unbiased", or "least-squares" for the smallest error of a single message
    """

    scale: Scale = "unbiased"

    def __post_init__(self) -> None:
        require((self.scale in SCALES, wrong(self, "scale", f"must be one of {listed(SCALES)}")))

    @property
    def unbiased(self) -> bool:
        """Whether the scale is the unbiased one."""
        return self.scale == "unbiased"

    def levels(self) -> tuple[float, ...]:
        """Return the two signs."""
        return -1.0, 1.0

    def fit(self, y: Tensor, c: Tensor) -> Tensor:
        """Return the scale of each row of ``y`` with the signs ``c``."""
        return SCALES[self.scale](y, c)


@dataclass(frozen=True)
class Eden(Rotated):
    """Sends the rotated vector in Lloyd-Max levels of the normal distribution, and one scale per 8192 entries.

    See https://arxiv.org/abs/2108.08842.

    Args:
        bits: the number of bits per entry, from 1 to 8
        coded: send the entropy code of the levels where it is shorter: 4 to 6 % less for 2 bits or more
    """

    bits: int = 1
    coded: bool = False

    def __post_init__(self) -> None:
        require(
            (
                isinstance(self.bits, int) and 1 <= self.bits <= 8,
                wrong(self, "bits", "must be a whole number from 1 to 8"),
            )
        )

    @property
    def unbiased(self) -> bool:
        """True: the scales make the decoded vector unbiased."""
        return True

    def levels(self) -> tuple[float, ...]:
        """Return the Lloyd-Max levels of the normal distribution."""
        return _levels()[self.bits - 1]

    def fit(self, y: Tensor, c: Tensor) -> Tensor:
        """Return the unbiased scale of each row of ``y`` with the levels ``c``."""
        return unbiased_scale(y, c)


@functools.cache
def _levels() -> tuple[tuple[float, ...], ...]:
    halves = [[float(number) for number in paragraph.split()] for paragraph in LEVELS.split("\n\n")]
    return tuple((*(-number for number in reversed(half)), *half) for half in halves)
