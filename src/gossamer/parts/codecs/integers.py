"""Integers of 8 or 4 bits with a scale per block: absmax quantization.

The largest magnitude of a block is its scale. Entries are rounded to multiples of the scale divided by 127 (8 bits) or
7 (4 bits). Levels are symmetric, so that a zero stays a zero. With stochastic rounding, the codec is unbiased. Rounding
to the nearest level has half the squared error in a single message, but repeats the error in each round: an update that
is small compared with the step is always rounded to zero.

Blocks of 256 entries limit the influence of a large entry. ``OnWeights(Int8(block=None), per_tensor=True)`` has one
scale per tensor.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from gossamer.core.bits import codes, expect_codes
from gossamer.core.errors import require, wrong
from gossamer.core.random import Key, fold
from gossamer.core.types import Payload
from gossamer.core.wire import expect
from gossamer.parts.codecs.block_scaled import BlockScaled, rounded

Rounding = Literal["stochastic", "nearest"]


@dataclass(frozen=True)
class Integers(BlockScaled):
    """Base of codecs that send an integer of a few bits per entry, and one scale per block.

    Args:
        rounding: stochastic (unbiased) or nearest
        block: the number of entries with one scale; none is the whole vector
    """

    rounding: Rounding = "stochastic"
    block: int | None = 256

    def __post_init__(self) -> None:
        require(
            (self.rounding in ("stochastic", "nearest"), wrong(self, "rounding", "must be stochastic or nearest")),
            (self.block is None or self.block > 0, wrong(self, "block", "must be at least 1, or none")),
        )

    @property
    def unbiased(self) -> bool:
        """Whether rounding is stochastic."""
        return self.rounding == "stochastic"

    @property
    def length(self) -> int | None:
        """The number of entries per block."""
        return self.block

    def scales(self, rows: Tensor) -> Tensor:
        """Return the scale of each block: its largest magnitude."""
        return rows.abs().amax(1)

    def rounded(self, exact: Tensor, key: Key) -> Tensor:
        """Return whole numbers near ``exact``: the nearest, or unbiased random ones."""
        return exact.round() if self.rounding == "nearest" else rounded(exact, fold(key, "integers"))


@dataclass(frozen=True)
class Int8(Integers):
    """Sends one byte per entry, and one scale per block.

    Args:
        rounding: stochastic (unbiased) or nearest
        block: the number of entries with one scale; none is the whole vector
    """

    @property
    def top(self) -> int:
        """The largest level."""
        return 127

    def pack(self, levels: Tensor) -> Payload:
        """Return one signed byte per level."""
        return {"levels": levels.to(torch.int8)}

    def unpack(self, payload: Payload, count: int) -> Tensor:
        """Return the levels as int16, in which the magnitude of -128 is a number too."""
        return expect(payload, "levels", torch.int8, count).to(torch.int16)


@dataclass(frozen=True)
class Int4(Integers):
    """Sends half a byte per entry, and one scale per block.

    Args:
        rounding: stochastic (unbiased) or nearest
        block: the number of entries with one scale; none is the whole vector
    """

    @property
    def top(self) -> int:
        """The largest level."""
        return 7

    def pack(self, levels: Tensor) -> Payload:
        """Return two levels per byte, each plus 7."""
        return {"levels": codes(levels.to(torch.int64) + self.top, 4)}

    def unpack(self, payload: Payload, count: int) -> Tensor:
        """Return the levels."""
        return expect_codes(payload, "levels", 4, count).long() - self.top
