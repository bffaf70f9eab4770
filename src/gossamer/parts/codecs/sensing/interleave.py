"""A long vector dealt out to blocks like cards, so that all blocks are about equally long vectors.

Signs do not tell how long a vector is. Measured block by block, every block comes back with the same norm, whatever it
had: what is recovered of x is x with its blocks brought to one norm. Cut where they stand, the blocks of a model are
layers, whose gradients differ by orders of magnitude. Hence the deal: of each B neighbours every one of the B blocks
gets one, in turn, from a random block on. With layers whose scales span two decades, the cosine between x and what is
left of it rises from 0.63 to 0.99, as with a random permutation; but a permutation of ten million entries takes a sort,
and this takes one random number for every B entries. A deal without random starts would give one block all weights of
one input wherever a layer has B inputs.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from gossamer.core.random import Key, words
from gossamer.core.random.streams import LOW

CACHED = 2**16  # how many entries a CPU turns at a time


@dataclass(frozen=True, eq=False)
class Deal:
    """Which entry goes to which block. Laid out, the blocks are columns; those are filled up with zeros at the end.

    Args:
        size: how many entries the vectors have
        blocks: how many blocks there are
        starts: for each row of the vector, cut into rows of so many, the block that its first entry goes to
    """

    size: int
    blocks: int
    starts: Tensor

    @classmethod
    def make(cls, size: int, block: int, key: Key, device: torch.device | str = "cpu") -> "Deal":
        """The deal of a key to as many blocks as it takes if none has more than ``block`` entries."""
        blocks = max(1, -(-size // block))
        drawn = words(key, -(-size // blocks), device=device) >> 32 & LOW
        return cls(size, blocks, drawn * blocks >> 32)

    @property
    def each(self) -> int:
        """How many places a block has: its entries, and at most one that is zero."""
        return len(self.starts)

    def out(self, x: Tensor) -> Tensor:
        """The blocks of a vector, as columns, in memory of their own."""
        if self.blocks == 1:
            return x.clone().view(-1, 1)
        columns = x.new_empty(self.each, self.blocks)
        parts = (laid(part, self.blocks) for part in torch.split(x, self._rows * self.blocks))
        return self._turned(parts, self.blocks - self.starts, columns)

    def back(self, columns: Tensor) -> Tensor:
        """The vector whose blocks these are."""
        if self.blocks == 1:
            return columns.view(-1)
        parts = torch.split(columns, self._rows)
        return self._turned(parts, self.starts, torch.empty_like(columns)).view(-1)[: self.size]

    @property
    def _rows(self) -> int:
        """How many rows are turned at a time: on a CPU as many as stay in its cache, else all."""
        most = CACHED // self.blocks if self.starts.device.type == "cpu" else self.each
        return max(1, min(most, self.each))

    def _turned(self, parts: Iterable[Tensor], by: Tensor, out: Tensor) -> Tensor:
        """Each row from some place on, up to its end, and then from its beginning: cut out of the row twice over."""
        first = torch.arange(self._rows, device=by.device) * (2 * self.blocks)
        for part, starts, to in zip(parts, torch.split(by, self._rows), torch.split(out, self._rows), strict=True):
            twice = torch.cat((part, part), 1).view(-1).unfold(0, self.blocks, 1)
            torch.index_select(twice, 0, first[: len(part)] + starts, out=to)
        return out


def laid(x: Tensor, columns: int) -> Tensor:
    """A vector row by row, with zeros at the end of the last."""
    short = -len(x) % columns
    return (pad(x, (0, short)) if short else x).reshape(-1, columns)
