"""One-bit compressive sensing: the signs of random measurements of a vector.

    sensing = Sensing("hadamard", ratio=0.25)           a matrix Phi of S = n / 4 rows, drawn from a shared key
    phi = sensing.matrix(n, key)
    sent = pack_signs(phi.signs(x))                     S bits
    add_signs(total, sent, weight)                      the server sums the signs of many clients
    direction = least_squares(phi, total / weights)     and reconstructs once (``gossamer.parts.codecs.reconstruction``)

Signs do not contain the norm of a vector. So a mean of signs measures the mean of the directions x / |x|. For the mean
of the vectors, weight the signs of each client by its norm. Apply masks that all clients share before the measurement:
``n`` is then the number of kept entries, and ``least_squares`` needs no support.

**The matrix.** A vector of n entries is distributed to B blocks of at most 4096 entries. All blocks are measured by the
same small matrix, and the S rows are divided evenly. There are two kinds:

    gaussian    independent normal entries, from a table (``gossamer.core.random.noise``)
    hadamard    rows of a rotation, as in ``gossamer.parts.codecs.rotation``: random sign flips and a Hadamard
                transform, twice. A block is padded with zeros to a power of two, d. Of the d outputs, the key selects
                one from each range of d B / S. If there are more rows than outputs, further rotations follow

Entries have the variance B / S, which is 1 / S for one block. So the expectation of Phi' Phi is the identity.

Measuring is linear, and ``back`` is its adjoint. Hadamard measurements consist of products, sums and differences in a
fixed order, so their bits and signs are the same on every device. The entries of the Gaussian matrix are the same on
every device too, but each device sums products in its own order. So measurements differ in their last bits, and about
one sign in several million differs.

The Gaussian matrix takes 4 bytes times (S / n) times the squared block length: 16 MiB for a ratio of 1/4 and blocks of
4096. Blocks are smaller where it would exceed 32 MiB.

**Interleaving** distributes the entries of a long vector to blocks of almost equal norm. Measured block by block, every
block is recovered with the same norm. Contiguous blocks of a model are layers, whose gradients differ by orders of
magnitude, so their relative scale would be lost. Interleaving avoids this: of each B consecutive entries, each of the B
blocks gets one, in cyclic order starting at a random block. For layers whose scales span two decades, the cosine
between the vector and its reconstruction rises from 0.63 to 0.99, as with a random permutation. A permutation of ten
million entries needs a sort; interleaving needs one random number per B entries. Without random starts, one block would
get all weights of one input where a layer has B inputs.

**Signs as bits**, with or without the retained signs of a lost message. A client whose last message was lost can send
its signs again together with the new ones: y + rho r. The entries of y and r are +1 and -1, and both sides know the
coefficient rho. There are four levels, -1 - rho, 1 - rho, -1 + rho and 1 + rho. They take two bits per measurement:
first that of y, then that of r, set for plus. Both must be measured with the same matrix.

The server needs only the sum over clients. A byte contains eight signs or four levels, so each byte is looked up in a
table of 256 rows, and the row is added.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor
from torch.nn.functional import pad

from gossamer.core.bits import bits
from gossamer.core.errors import PayloadError, listed, require, wrong
from gossamer.core.exact import unit
from gossamer.core.random import Key, Keys, fold, uniform, words
from gossamer.core.random.noise import draw
from gossamer.core.random.streams import LOW
from gossamer.parts.codecs.rotation import hadamard_

# Interleaving.

TURNED = 2**16  # entries that a CPU rotates at a time


@dataclass(frozen=True, eq=False)
class Deal:
    """The assignment of entries to blocks. The blocks are the columns of a matrix, padded with zeros at the end.

    Args:
        size: the number of entries of the vectors
        blocks: the number of blocks
        starts: the block of the first entry of each row, where a row is ``blocks`` consecutive entries
    """

    size: int
    blocks: int
    starts: Tensor

    @classmethod
    def make(cls, size: int, block: int, key: Key | Keys, device: torch.device | str = "cpu") -> "Deal":
        """Return the assignment of a key, with the fewest blocks of at most ``block`` entries."""
        blocks = max(1, -(-size // block))
        drawn = words(key, -(-size // blocks), device=device) >> 32 & LOW
        return cls(size, blocks, drawn * blocks >> 32)

    @property
    def each(self) -> int:
        """The length of a block, including at most one zero of padding."""
        return len(self.starts)

    def out(self, x: Tensor) -> Tensor:
        """Return the blocks of a vector as columns of a new matrix."""
        if self.blocks == 1:
            return x.clone().view(-1, 1)
        columns = x.new_empty(self.each, self.blocks)
        parts = (laid(part, self.blocks) for part in torch.split(x, self._rows * self.blocks))
        return self._turned(parts, self.blocks - self.starts, columns)

    def back(self, columns: Tensor) -> Tensor:
        """Return the vector with these blocks."""
        if self.blocks == 1:
            return columns.view(-1)
        parts = torch.split(columns, self._rows)
        return self._turned(parts, self.starts, torch.empty_like(columns)).view(-1)[: self.size]

    @property
    def _rows(self) -> int:
        """The number of rows to rotate at a time: those that fit a CPU's cache, or all."""
        most = TURNED // self.blocks if self.starts.device.type == "cpu" else self.each
        return max(1, min(most, self.each))

    def _turned(self, parts: Iterable[Tensor], by: Tensor, out: Tensor) -> Tensor:
        """Rotate each row cyclically by its offset: take a window of the row repeated twice."""
        first = torch.arange(self._rows, device=by.device) * (2 * self.blocks)
        for part, starts, to in zip(parts, torch.split(by, self._rows), torch.split(out, self._rows), strict=True):
            twice = torch.cat((part, part), 1).view(-1).unfold(0, self.blocks, 1)
            torch.index_select(twice, 0, first[: len(part)] + starts, out=to)
        return out


def laid(x: Tensor, columns: int) -> Tensor:
    """Return a vector as a matrix, row by row, padded with zeros at the end."""
    short = -len(x) % columns
    return (pad(x, (0, short)) if short else x).reshape(-1, columns)


# Matrices.

Kind = Literal["gaussian", "hadamard"]
"""Kinds of measurement matrices."""
KINDS: tuple[Kind, ...] = get_args(Kind)
BLOCK = 4096
ENTRIES = 2**23  # the maximum number of entries of a Gaussian matrix
DRAWN = 2**17  # normal numbers that are drawn at a time, so that they fit into a cache


@dataclass(frozen=True)
class Sensing:
    """The configuration of a measurement.

    Args:
        kind: "hadamard" or "gaussian"
        ratio: the number of measurements per entry, S / n
        rows: the number of measurements S, independent of the length of the vector; none uses the ratio
        block: the maximum number of entries of a block, up to 4096
    """

    kind: Kind = "hadamard"
    ratio: float = 0.25
    rows: int | None = None
    block: int = BLOCK

    def __post_init__(self) -> None:
        require(
            (self.kind in KINDS, wrong(self, "kind", f"must be one of {listed(KINDS)}")),
            (0 < self.ratio < math.inf, wrong(self, "ratio", "must be a positive number")),
            (self.rows is None or self.rows >= 1, wrong(self, "rows", "must be at least 1, or none")),
            (1 <= self.block <= BLOCK, wrong(self, "block", f"must be from 1 to {BLOCK}")),
        )

    def count(self, n: int) -> int:
        """Return the number of measurements S of a vector of ``n`` entries: at least 1, or 0 for an empty vector."""
        if n == 0:
            return 0
        return self.rows if self.rows is not None else max(1, round(self.ratio * n))

    def matrix(
        self, n: int, key: Key | Keys, *, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32
    ) -> "Matrix":
        """Return the matrix of a key for vectors of ``n`` entries."""
        deal = Deal.make(n, self._block(n), fold(key, "deal"), device)
        return (_gaussian if self.kind == "gaussian" else _hadamard)(self.count(n), deal, key, dtype)

    def _block(self, n: int) -> int:
        """Return the maximum block length, which is smaller where a Gaussian matrix would be too large."""
        if self.kind == "hadamard" or n == 0:
            return self.block
        return max(1, min(self.block, math.isqrt(ENTRIES * n // self.count(n))))

    def measure(self, x: Tensor, key: Key) -> Tensor:
        """Return the measurements of a vector."""
        return self.matrix(len(x), key, device=x.device, dtype=x.dtype).measure(x)

    def back(self, y: Tensor, n: int, key: Key) -> Tensor:
        """Apply the adjoint: project measurements back to ``n`` entries."""
        return self.matrix(n, key, device=y.device, dtype=y.dtype).back(y)


@dataclass(frozen=True, eq=False)
class Matrix(ABC):
    """A random matrix Phi of S rows and n columns.

    Args:
        rows: the number of measurements S
        deal: the assignment of entries to blocks
    """

    rows: int
    deal: Deal

    @property
    def size(self) -> int:
        """The number of entries of the vectors: n."""
        return self.deal.size

    @property
    @abstractmethod
    def independent(self) -> bool:
        """Whether the entries of the matrix are independent."""

    @property
    @abstractmethod
    def overlap(self) -> float:
        """The mean square of the eigenvalues of Phi' Phi - 1: the crosstalk between entries in ``back(measure(x))``."""

    @abstractmethod
    def _forward(self, columns: Tensor) -> Tensor:
        """Return the measurements of each block, as columns. May overwrite its argument."""

    @abstractmethod
    def _adjoint(self, columns: Tensor) -> Tensor:
        """Apply the adjoint of ``_forward``."""

    def measure(self, x: Tensor) -> Tensor:
        """Return Phi x."""
        return self._forward(self.deal.out(x)).view(-1)[: self.rows]

    def back(self, y: Tensor) -> Tensor:
        """Return Phi' y."""
        return self.deal.back(self._adjoint(laid(y, self.deal.blocks)))

    def signs(self, x: Tensor) -> Tensor:
        """Return where Phi x is not negative, as booleans. Vectors of any finite norm are allowed, and rows of them."""
        if x.dim() > 1:
            return torch.stack([self.signs(row) for row in x])
        return self.measure(unit(x)[0]) >= 0


# Gaussian.


def _gaussian(rows: int, deal: Deal, key: Key | Keys, dtype: torch.dtype) -> Matrix:
    shape = -(-rows // deal.blocks), deal.each
    size = math.prod(shape)
    pieces = [
        draw("gauss", 1.0, fold(key, "gauss"), min(DRAWN, size - start), start=start, device=deal.starts.device)
        for start in range(0, size, DRAWN)
    ]
    drawn = torch.cat(pieces).view(shape) if pieces else torch.empty(shape, device=deal.starts.device)
    return GaussianMatrix(rows, deal, drawn.to(dtype).mul_(math.sqrt(deal.blocks / max(1, rows))))


@dataclass(frozen=True, eq=False)
class GaussianMatrix(Matrix):
    """A matrix with independent normal entries.

    Args:
        entries: the matrix of one block
    """

    entries: Tensor

    @property
    def independent(self) -> bool:
        """True: the entries are independent."""
        return True

    @property
    def overlap(self) -> float:
        """The crosstalk n / S, as for any matrix of independent entries."""
        return self.size / max(1, self.rows)

    def _forward(self, columns: Tensor) -> Tensor:
        return self.entries @ columns

    def _adjoint(self, columns: Tensor) -> Tensor:
        return self.entries.T @ columns


# Hadamard.


def _hadamard(rows: int, deal: Deal, key: Key | Keys, dtype: torch.dtype) -> Matrix:
    most, width = -(-rows // deal.blocks), 1 << max(0, deal.each - 1).bit_length()
    device, turns = deal.starts.device, max(1, -(-most // width))
    coins = uniform(fold(key, "flips"), turns * 2 * width, device=device)
    flips = (coins < 0.5).to(dtype).mul_(-2).add_(1).view(turns, 2, width)
    kept = [
        _kept(min(width, most - turn * width), width, fold(key, "rows", turn), device) + turn * width
        for turn in range(turns)
    ]
    return HadamardMatrix(rows, deal, flips, torch.cat(kept), math.sqrt(width * deal.blocks / max(1, rows)))


def _kept(count: int, width: int, key: Key | Keys, device: torch.device) -> Tensor:
    """Return ``count`` of the integers below ``width``, ascending: one from each of ``count`` equal ranges."""
    edges = torch.arange(count + 1, device=device) * width // max(1, count)
    within = (words(key, count, device=device) >> 32 & LOW) * edges.diff() >> 32
    return edges[:-1] + within


@dataclass(frozen=True, eq=False)
class HadamardMatrix(Matrix):
    """Selected rows of one or more rotations.

    Args:
        flips: the signs before both transforms, for each rotation
        kept: the indices of the selected outputs of all rotations
        scale: the factor of the outputs
    """

    flips: Tensor
    kept: Tensor
    scale: float

    @property
    def independent(self) -> bool:
        """False: rows are orthogonal, or nearly orthogonal where blocks are padded."""
        return False

    @property
    def overlap(self) -> float:
        """The crosstalk f (1 - f) n / (B d) (B d / S)^2, with f the selected share of the last rotation."""
        room = self.deal.blocks * self.flips.shape[-1]
        share = self.rows / room % 1
        return share * (1 - share) * self.size * room / max(1, self.rows) ** 2

    def _forward(self, columns: Tensor) -> Tensor:
        turns, _, width = self.flips.shape
        first, second = self._flips()
        fits = (turns, width) == (1, len(columns))
        turned = columns[None].mul_(first) if fits else pad(columns, (0, 0, 0, width - len(columns))) * first
        hadamard_(hadamard_(turned, 1).mul_(second * self._unit), 1)
        return turned.view(turns * width, -1).index_select(0, self.kept).mul_(self._unit).mul_(self.scale)

    def _adjoint(self, columns: Tensor) -> Tensor:
        turns, _, width = self.flips.shape
        first, second = self._flips()
        filled = columns.new_zeros(turns * width, columns.shape[1]).index_copy_(0, self.kept, columns)
        turned = hadamard_(hadamard_(filled.view(turns, width, -1), 1).mul_(second * self._unit), 1)
        parts = turned.mul_(first * self._unit)[:, : self.deal.each]
        return sum(parts[1:], parts[0]) * self.scale

    def _flips(self) -> tuple[Tensor, Tensor]:
        """Return the signs before the first and before the second transform of all rotations, as columns."""
        return self.flips[:, 0, :, None], self.flips[:, 1, :, None]

    @property
    def _unit(self) -> float:
        """The factor that makes a transform orthonormal."""
        return 1 / math.sqrt(self.flips.shape[-1])


# Signs as bits.


def pack_signs(signs: Tensor, retained: Tensor | None = None) -> Tensor:
    """Pack signs: one bit per sign, or two together with the retained signs of a lost message.

    >>> pack_signs(torch.tensor([True, False, True]))
    tensor([5], dtype=torch.uint8)
    """
    return bits(signs if retained is None else torch.stack((signs, retained), -1).flatten(-2))


def unpack_signs(packed: Tensor, count: int, rho: float | None = None) -> Tensor:
    """Return the values of ``count`` packed signs: 1 and -1, or with a coefficient the levels y + rho r.

    >>> unpack_signs(torch.tensor([5], dtype=torch.uint8), 3)
    tensor([ 1., -1.,  1.])
    """
    total = torch.zeros(count, device=packed.device)
    add_signs(total, packed, 1.0, rho)
    return total


def add_signs(total: Tensor, packed: Tensor, weight: float, rho: float | None = None) -> None:
    """Add ``weight`` times packed signs, or with a coefficient the levels y + rho r, to ``total``, in place."""
    levels = _levels(rho)
    width = len(levels) // 2
    _check(packed, len(total) * width)
    each = 8 // width
    rows = _table(levels, weight, total)[packed.int()]
    whole = len(total) // each
    total[: whole * each].view(-1, each).add_(rows[:whole])
    if len(total) % each:
        total[whole * each :].add_(rows[-1, : len(total) % each])


def _levels(rho: float | None) -> tuple[float, ...]:
    """Return the values of one bit, or of two bits. The first bit is the lower one."""
    return (-1.0, 1.0) if rho is None else (-1 - rho, 1 - rho, rho - 1, 1 + rho)


def _table(levels: tuple[float, ...], weight: float, like: Tensor) -> Tensor:
    """Return the values of each byte, times the weight."""
    width = len(levels) // 2
    codes = torch.arange(256, device=like.device).view(-1, 1) >> torch.arange(0, 8, width, device=like.device)
    return (like.new_tensor(levels) * weight)[codes & (1 << width) - 1]


def _check(packed: Tensor, count: int) -> None:
    if packed.dtype != torch.uint8 or packed.shape != (-(-count // 8),):
        raise PayloadError(f"{count:,} bits of signs take {-(-count // 8):,} bytes, got {tuple(packed.shape)}")
    if count % 8 and bool(packed[-1] >> (count % 8)):
        raise PayloadError(f"the signs have ones after their {count:,} bits")
