"""Measurement: random projections that both ends of a link can draw, and that are never held as one matrix.

A vector of n entries is dealt out to B blocks of at most 4096 (``.deal``), and all blocks are measured by the same
small matrix; the S rows are shared out evenly. All of it follows from a key. There are two kinds:

    gaussian    independent normal entries, from a table (``gossamer.core.random.noise``)
    hadamard    rows of a rotation, as in ``gossamer.parts.codecs.rotation``: signs are flipped as the key says and
    the
                Hadamard transform is taken, twice. A block is filled up with zeros to a power of two, d; of the d
                entries that come out, those are kept that the key chooses, one from each stretch of d B / S. If that
                does not suffice, as with more rows than entries, further rotations follow

Entries have the variance B / S, which is 1 / S where there is one block, so Phi' Phi is the identity on average.

To measure is linear, and ``back`` is its adjoint. Hadamard measurements are made of products, sums and differences in
one order: their bits, and so their signs, are the same on every device. The Gaussian matrix is, too, but each device
adds up its products in an order of its own: measurements differ in their last bits, and a sign does where they are that
close to zero, which is one in some millions.

Memory, beside the vectors' own: for the Gaussian matrix 4 bytes times (S / n) times the square of a block, 16 MiB for a
quarter and blocks of 4096. Blocks are smaller where that would pass 32 MiB.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor
from torch.nn.functional import pad

from gossamer.core.errors import listed, require, wrong
from gossamer.core.exact import unit
from gossamer.core.random import Key, fold, uniform, words
from gossamer.core.random.noise import draw
from gossamer.core.random.streams import LOW
from gossamer.parts.codecs.hadamard import hadamard_
from gossamer.parts.codecs.sensing.interleave import Deal, laid

Kind = Literal["gaussian", "hadamard"]
KINDS: tuple[Kind, ...] = get_args(Kind)
BLOCK = 4096
ENTRIES = 2**23  # of a Gaussian matrix, at most
DRAWN = 2**17  # how many normal numbers are drawn at a time: as many as stay in a cache


@dataclass(frozen=True)
class Sensing:
    """How vectors are measured.

    Args:
        kind: "hadamard", or "gaussian"
        ratio: how many measurements there are for each entry, S / n
        rows: how many measurements there are, however long the vector is; none takes the ratio
        block: how many entries are measured together at most, up to 4096
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
        """How many measurements are made of a vector: S; at least one, unless it is empty."""
        if n == 0:
            return 0
        return self.rows if self.rows is not None else max(1, round(self.ratio * n))

    def matrix(
        self, n: int, key: Key, *, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32
    ) -> "Matrix":
        """The matrix of a key for vectors of ``n`` entries."""
        deal = Deal.make(n, self._block(n), fold(key, "deal"), device)
        return (_gaussian if self.kind == "gaussian" else _hadamard)(self.count(n), deal, key, dtype)

    def _block(self, n: int) -> int:
        """How many entries a block may have: fewer where a Gaussian matrix would be too large."""
        if self.kind == "hadamard" or n == 0:
            return self.block
        return max(1, min(self.block, math.isqrt(ENTRIES * n // self.count(n))))

    def measure(self, x: Tensor, key: Key) -> Tensor:
        """The measurements of a vector."""
        return self.matrix(len(x), key, device=x.device, dtype=x.dtype).measure(x)

    def back(self, y: Tensor, n: int, key: Key) -> Tensor:
        """The adjoint: measurements back to ``n`` entries."""
        return self.matrix(n, key, device=y.device, dtype=y.dtype).back(y)


@dataclass(frozen=True, eq=False)
class Matrix(ABC):
    """A matrix of S rows and n columns, drawn.

    Args:
        rows: how many measurements it makes: S
        deal: which entry is in which block
    """

    rows: int
    deal: Deal

    @property
    def size(self) -> int:
        """How many entries the vectors have: n."""
        return self.deal.size

    @property
    @abstractmethod
    def independent(self) -> bool:
        """Whether entries are independent of each other."""

    @property
    @abstractmethod
    def overlap(self) -> float:
        """The mean square of the eigenvalues of Phi' Phi - 1: what an entry gets of the others on its way back."""

    @abstractmethod
    def _ahead(self, columns: Tensor) -> Tensor:
        """The measurements of each block, as columns; what is given may be overwritten."""

    @abstractmethod
    def _behind(self, columns: Tensor) -> Tensor:
        """The adjoint of that."""

    def measure(self, x: Tensor) -> Tensor:
        """Phi x."""
        return self._ahead(self.deal.out(x)).view(-1)[: self.rows]

    def back(self, y: Tensor) -> Tensor:
        """Phi' y."""
        return self.deal.back(self._behind(laid(y, self.deal.blocks)))

    def signs(self, x: Tensor) -> Tensor:
        """Where Phi x is not negative, as booleans; x may be as long as can be."""
        return self.measure(unit(x)[0]) >= 0


# Gaussian.


def _gaussian(rows: int, deal: Deal, key: Key, dtype: torch.dtype) -> Matrix:
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
    """Independent normal entries.

    Args:
        entries: what each block is multiplied by
    """

    entries: Tensor

    @property
    def independent(self) -> bool:
        """They are."""
        return True

    @property
    def overlap(self) -> float:
        """n / S, as for any matrix of independent entries."""
        return self.size / max(1, self.rows)

    def _ahead(self, columns: Tensor) -> Tensor:
        return self.entries @ columns

    def _behind(self, columns: Tensor) -> Tensor:
        return self.entries.T @ columns


# Hadamard.


def _hadamard(rows: int, deal: Deal, key: Key, dtype: torch.dtype) -> Matrix:
    most, width = -(-rows // deal.blocks), 1 << max(0, deal.each - 1).bit_length()
    device, turns = deal.starts.device, max(1, -(-most // width))
    coins = uniform(fold(key, "flips"), turns * 2 * width, device=device)
    flips = (coins < 0.5).to(dtype).mul_(-2).add_(1).view(turns, 2, width)
    kept = [
        _kept(min(width, most - turn * width), width, fold(key, "rows", turn), device) + turn * width
        for turn in range(turns)
    ]
    return HadamardMatrix(rows, deal, flips, torch.cat(kept), math.sqrt(width * deal.blocks / max(1, rows)))


def _kept(count: int, width: int, key: Key, device: torch.device) -> Tensor:
    """So many of the integers below ``width``, ascending: one from each of as many stretches of equal length."""
    edges = torch.arange(count + 1, device=device) * width // max(1, count)
    within = (words(key, count, device=device) >> 32 & LOW) * edges.diff() >> 32
    return edges[:-1] + within


@dataclass(frozen=True, eq=False)
class HadamardMatrix(Matrix):
    """Some rows of one rotation, or all rows of some and some of another.

    Args:
        flips: for each rotation the signs before its two transforms
        kept: which of the entries are kept that come out of all rotations
        scale: what these are multiplied by
    """

    flips: Tensor
    kept: Tensor
    scale: float

    @property
    def independent(self) -> bool:
        """Entries are not: rows are orthogonal, or nearly so where blocks were filled up."""
        return False

    @property
    def overlap(self) -> float:
        """From the last rotation, of which a share f is kept: f (1 - f) n / (B d) (B d / S)^2, and 0 if it is whole."""
        room = self.deal.blocks * self.flips.shape[-1]
        share = self.rows / room % 1
        return share * (1 - share) * self.size * room / max(1, self.rows) ** 2

    def _ahead(self, columns: Tensor) -> Tensor:
        turns, _, width = self.flips.shape
        first, second = self._flips()
        fits = (turns, width) == (1, len(columns))
        turned = columns[None].mul_(first) if fits else pad(columns, (0, 0, 0, width - len(columns))) * first
        hadamard_(hadamard_(turned, 1).mul_(second * self._unit), 1)
        return turned.view(turns * width, -1).index_select(0, self.kept).mul_(self._unit).mul_(self.scale)

    def _behind(self, columns: Tensor) -> Tensor:
        turns, _, width = self.flips.shape
        first, second = self._flips()
        filled = columns.new_zeros(turns * width, columns.shape[1]).index_copy_(0, self.kept, columns)
        turned = hadamard_(hadamard_(filled.view(turns, width, -1), 1).mul_(second * self._unit), 1)
        parts = turned.mul_(first * self._unit)[:, : self.deal.each]
        return sum(parts[1:], parts[0]) * self.scale

    def _flips(self) -> tuple[Tensor, Tensor]:
        """Of all rotations those before the first transform and those before the second, as columns."""
        return self.flips[:, 0, :, None], self.flips[:, 1, :, None]

    @property
    def _unit(self) -> float:
        """What makes a transform orthonormal."""
        return 1 / math.sqrt(self.flips.shape[-1])
