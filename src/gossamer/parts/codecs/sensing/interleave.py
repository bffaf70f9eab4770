"""Interleaving: distribute the entries of a long vector to blocks of almost equal norm.

Signs do not contain the norm of a vector. Measured block by block, every block is recovered with the same norm.
Contiguous blocks of a model are layers, whose gradients differ by orders of magnitude, so their relative scale would be
lost. Interleaving avoids this: of each B consecutive entries, each of the B blocks gets one, in cyclic order starting
at a random block. For layers whose scales span two decades, the cosine between the vector and its reconstruction rises
from 0.63 to 0.99, as with a random permutation. A permutation of ten million entries needs a sort; interleaving needs
one random number per B entries. Without random starts, one block would get all weights of one input where a layer has B
inputs.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from gossamer.core.random import Key, words
from gossamer.core.random.streams import LOW

CACHED = 2**16  # entries that a CPU rotates at a time


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
    def make(cls, size: int, block: int, key: Key, device: torch.device | str = "cpu") -> "Deal":
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
        most = CACHED // self.blocks if self.starts.device.type == "cpu" else self.each
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
