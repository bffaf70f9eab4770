"""A long vector dealt out to blocks like cards, so that all blocks are about equally long vectors.

Signs do not tell how long a vector is. Measured block by block, every block comes back with the same norm, whatever it
had: what is recovered of x is x with its blocks brought to one norm. Cut where they stand, the blocks of a model are
layers, whose gradients differ by orders of magnitude. Hence the deal: of each B neighbours every one of the B blocks
gets one, in turn, from a random block on. With layers whose scales span two decades, the cosine between x and what is
left of it rises from 0.63 to 0.99, as with a random permutation; but a permutation of ten million entries takes a sort,
and this takes one random number for every B entries. A deal without random starts would give one block all weights of
one input wherever a layer has B inputs.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from gossamer.random import LOW, Key, words


@dataclass(frozen=True, eq=False)
class Deal:
    """Which entry goes to which block. Laid out, the blocks are columns; those are filled up with zeros at the end.

    size: how many entries the vectors have
    source: for each place, where in the same row of the vector, cut into rows, its entry is
    """

    size: int
    source: Tensor

    @classmethod
    def make(cls, size: int, block: int, key: Key, device: torch.device | str = "cpu") -> "Deal":
        """The deal of a key to as many blocks as it takes if none has more than ``block`` entries."""
        blocks = max(1, -(-size // block))
        starts = (words(key, -(-size // blocks), device=device) >> 32 & LOW) * blocks >> 32
        return cls(size, (torch.arange(blocks, device=device) - starts.view(-1, 1)) % blocks)

    @property
    def blocks(self) -> int:
        """How many blocks there are."""
        return self.source.shape[1]

    @property
    def each(self) -> int:
        """How many places a block has: its entries, and at most one that is zero."""
        return self.source.shape[0]

    def out(self, x: Tensor) -> Tensor:
        """The blocks of a vector, as columns."""
        return laid(x, self.blocks).gather(1, self.source)

    def back(self, columns: Tensor) -> Tensor:
        """The vector whose blocks these are."""
        return torch.empty_like(columns).scatter_(1, self.source, columns).view(-1)[: self.size]


def laid(x: Tensor, columns: int) -> Tensor:
    """A vector row by row, with zeros at the end of the last."""
    return pad(x, (0, -len(x) % columns)).reshape(-1, columns)
