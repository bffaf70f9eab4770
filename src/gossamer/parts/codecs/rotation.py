"""A random rotation that sender and receiver draw from a shared key, with the same bits on all devices.

The randomized Hadamard transform H D x / sqrt(d), applied twice. D flips signs at random, with new signs each time, and
H is the Hadamard matrix. A single transform is not enough for vectors with few large entries: of (5, 3, 1, 0, 0, ...),
the 5 alone would determine the signs of all rotated entries, for any D. After the second transform, all entries have an
influence.

The length d of the transform must be a power of two. A long vector is therefore rotated in blocks of d = 8192, each
with its own scale, without padding. With ``head = n % d`` for a vector of n entries,

    1. the first d entries are rotated, if there is a head;
    2. the last n - head entries, a multiple of d, are rotated block by block.

Each step is orthogonal, so both together are a rotation in n dimensions. The head is final after the first step. The
other entries of the first step are rotated again in the second. The head and each block are the segments. For a vector
shorter than 8192, d is the largest power of two that fits.

**The fast Hadamard transform** consists of sums and differences in a fixed order. In stage s, entries at distance 2**s
are paired: their sum replaces the first, their difference the second. After log2(d) stages, d entries are transformed.
The order of the stages determines the rounding, so it is fixed. The order of memory accesses is free, and determines
the speed. A CPU therefore works on blocks that fit into its cache: contiguous blocks for the first stages, strided
slices for the others. The transform is fastest along the columns of a wide matrix, where sums run over whole rows.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from gossamer.core.bits import unbits
from gossamer.core.exact import CACHED, FORMATS
from gossamer.core.random import Key, Keys, fold, words

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


def _negate_(x: Tensor, flags: Tensor) -> Tensor:
    """Flip the sign bits of marked entries in place. This takes a tenth of the time of ``torch.where``."""
    whole = FORMATS[x.dtype].integer
    for bits, marks in zip(x.view(whole).split(CACHED, -1), flags.view(torch.uint8).split(CACHED, -1), strict=True):
        bits ^= marks.to(whole) << 8 * x.itemsize - 1
    return x


# The fast Hadamard transform.

Pair = tuple[Tensor, ...]


def hadamard_(x: Tensor, dim: int = -1) -> Tensor:
    """Transform in place along a dimension whose length d is a power of two. Applied twice, it multiplies by d."""
    d, run = x.shape[dim], math.prod(x.shape[dim:][1:])
    low = _low(d, run)
    _mix(x.view(-1, low, run))
    _mix(x.view(-1, d // low, low * run))
    return x


def _low(d: int, run: int) -> int:
    """Return the block length of the first stages: as large as fits the cache, and at least about sqrt(d)."""
    fits = 1 << max(1, CACHED // run).bit_length() - 1
    return min(d, max(1 << d.bit_length() // 2, fits))


def _mix(x: Tensor) -> None:
    """Transform in place along the second of three dimensions."""
    if x.shape[1] == 1:
        return
    shape, buffers = torch.Size(), list[tuple[Pair, Pair]]()
    for part in _parts(x):
        if part.shape != shape:
            shape, buffers = part.shape, _buffers(part)
        _butterflies(part, buffers)


def _parts(x: Tensor) -> Iterator[Tensor]:
    """Yield the parts to transform one after the other: everything, or on a CPU parts that fit its cache."""
    if x.device.type != "cpu":
        yield x
        return
    width = max(1, min(x.shape[2], CACHED // x.shape[1]))
    for rows in torch.split(x, max(1, CACHED // (x.shape[1] * width))):
        yield from torch.split(rows, width, 2)


def _buffers(like: Tensor) -> list[tuple[Pair, Pair]]:
    """Return views of two alternating buffers: the output of each stage but the last, and the input of the next."""
    spare = [torch.empty_like(like, memory_format=torch.contiguous_format) for _ in range(2)]
    stages = range(like.shape[1].bit_length() - 2)
    return [(_halves(spare[stage % 2], stage), _halves(spare[stage % 2], stage + 1)) for stage in stages]


def _butterflies(x: Tensor, buffers: list[tuple[Pair, Pair]]) -> None:
    """Compute all stages from ``x`` to ``x``. A single stage reads a copy, because it overwrites its input."""
    inputs = _halves(x if buffers else x.clone(), 0)
    for outputs, following in buffers:
        _butterfly(inputs, outputs)
        inputs = following
    _butterfly(inputs, _halves(x, len(buffers)))


def _halves(x: Tensor, stage: int) -> Pair:
    """Return the first and the second entries of all pairs of a stage."""
    rows, d, run = x.shape
    return x.view(rows, d >> stage + 1, 2, 1 << stage, run).unbind(2)


def _butterfly(inputs: Pair, outputs: Pair) -> None:
    if inputs[0].shape[2:] == (2, 1):  # two long loops are faster than many loops over two entries
        for column in (0, 1):
            _butterfly(tuple(x[:, :, column] for x in inputs), tuple(x[:, :, column] for x in outputs))
        return
    torch.add(*inputs, out=outputs[0])
    torch.sub(*inputs, out=outputs[1])
