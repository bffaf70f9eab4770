"""Count sketch: short vectors with the same squared distances as long ones, in expectation.

Charikar, Chen and Farach-Colton, Finding Frequent Items in Data Streams, ICALP 2002,
https://doi.org/10.1007/3-540-45465-9_59.

Each entry of the vector is added, with a random sign, to one of ``size`` numbers. Signs and indices are computed from a
random key, block by block, so no matrix is stored. All vectors must be reduced with the same key.

The squared norm of a sketch is an unbiased estimate of the squared norm of the vector x. Its variance is ``2 / size
(|x|^4 - sum x_i^4)``, so the relative standard error is at most sqrt(2 / size) for any vector. Sketches are linear, so
the same holds for distances.

The rotation in ``gossamer.parts.codecs.rotation`` with some entries kept is an alternative for evenly spread vectors.
But it mixes blocks of 8192 entries only, and two models often differ in a single layer.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from gossamer.core.errors import require, wrong
from gossamer.core.random import Key, fold, words
from gossamer.core.random.streams import LOW

CHUNK = 2**20
"""Number of entries that are processed at a time."""


@dataclass(frozen=True)
class Sketch:
    """A count sketch, the same for all clients.

    Args:
        size: length of a sketch
        key: random key of the signs and indices
    """

    size: int
    key: Key

    def __post_init__(self) -> None:
        require((0 < self.size <= 2**30, wrong(self, "size", "must be from 1 to 2**30")))

    @property
    def error(self) -> float:
        """The maximum relative standard error of a squared distance."""
        return math.sqrt(2 / self.size)

    def reduce(self, vector: Tensor) -> Tensor:
        """Return the sketch of a vector as float64. A vector of at most ``size`` entries is returned as it is."""
        if len(vector) <= self.size:
            return vector.to("cpu", torch.float64)
        # On the CPU, where the order of additions is deterministic. On a GPU it is not.
        total, start = torch.zeros(self.size, dtype=torch.float64), 0
        for piece in torch.split(vector, CHUNK):
            drawn = words(fold(self.key, "sketch"), len(piece), start=start)
            index = (drawn >> 32 & LOW) * self.size >> 32
            entries = piece.to("cpu", torch.float64)
            total.index_add_(0, index, torch.where(drawn & 1 == 1, -entries, entries))
            start += len(piece)
        return total
