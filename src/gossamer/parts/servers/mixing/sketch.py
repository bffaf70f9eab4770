"""Long vectors as a few numbers that keep their distances, on average.

A count sketch (Charikar, Chen and Farach-Colton, "Finding frequent items in data streams"): each entry of the vector is
added, with a random sign, to one of ``size`` numbers. Signs and places come from a key, block by block, so that no
matrix is ever made. All vectors must be reduced by the same key.

The squared length of what comes out is that of the vector on average over keys, with the variance ``2 / size (|x|^4 -
sum x_i^4)``: whatever the vector is, the standard error is at most sqrt(2 / size) of the squared length. As the sum of
two sketches is the sketch of the sum, the same holds for distances.

The rotation of ``gossamer.parts.codecs.rotation`` with some entries kept would do as well for vectors that are
spread evenly; but it mixes blocks of 8192 entries, and two models often differ in one layer alone.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from gossamer.core.errors import require, wrong
from gossamer.core.random import Key, fold, words
from gossamer.core.random.streams import LOW

CHUNK = 2**20  # how many entries are placed at a time


@dataclass(frozen=True)
class Sketch:
    """A way to reduce vectors, the same for all clients.

    Args:
        size: how many numbers are left
        key: what signs and places are drawn from
    """

    size: int
    key: Key

    def __post_init__(self) -> None:
        require((0 < self.size <= 2**30, wrong(self, "size", "must be from 1 to 2**30")))

    @property
    def error(self) -> float:
        """The largest relative standard error of a squared distance."""
        return math.sqrt(2 / self.size)

    def reduce(self, vector: Tensor) -> Tensor:
        """The sketch of a vector, in double precision; one that is no longer than that stays as it is."""
        if len(vector) <= self.size:
            return vector.to("cpu", torch.float64)
        # On the CPU, which adds in one order; a GPU would add in another each time.
        total, start = torch.zeros(self.size, dtype=torch.float64), 0
        for piece in torch.split(vector, CHUNK):
            drawn = words(fold(self.key, "sketch"), len(piece), start=start)
            place = (drawn >> 32 & LOW) * self.size >> 32
            entries = piece.to("cpu", torch.float64)
            total.index_add_(0, place, torch.where(drawn & 1 == 1, -entries, entries))
            start += len(piece)
        return total
