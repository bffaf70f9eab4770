"""Levels of a scale per block, the common part of QSGD and of the integer codecs.

A vector is cut into blocks. Each block has a scale s of at least its largest magnitude. An entry u is sent as an
integer level l near top u / s, from -top to top, and decoded as s l / top. Stochastic rounding goes up with probability
equal to the fraction, so that the level is unbiased.

Rounding compares the fraction with noise instead of adding noise to the level: the sum would be rounded itself. All
operations are exact or rounded as IEEE 754 defines, so the bits are the same on all devices.
"""

from abc import abstractmethod

import torch
from torch import Tensor

from gossamer.core.codec import Codec, Coding
from gossamer.core.errors import PayloadError
from gossamer.core.random import Key, uniform
from gossamer.core.types import Payload
from gossamer.core.wire import finite
from gossamer.parts.codecs.scale import block_length, blocks, expect_scales, ratio


class BlockScaled(Codec):
    """Base of codecs that send an integer level per entry, and a scale per block."""

    @property
    @abstractmethod
    def top(self) -> int:
        """The largest level."""

    @property
    @abstractmethod
    def length(self) -> int | None:
        """The number of entries per block, or ``None`` for one block."""

    @abstractmethod
    def pack(self, levels: Tensor) -> Payload:
        """Return the arrays of the levels."""

    @abstractmethod
    def unpack(self, payload: Payload, count: int) -> Tensor:
        """Return ``count`` levels from a payload. The caller checks that none exceeds ``top``."""

    @abstractmethod
    def scales(self, rows: Tensor) -> Tensor:
        """Return the scale of each block."""

    @abstractmethod
    def rounded(self, exact: Tensor, key: Key) -> Tensor:
        """Return whole numbers near ``exact``."""

    def encode(self, x: Tensor, ctx: Coding) -> Payload:
        """Return the levels, and a scale per block."""
        rows = blocks(finite(x, "change"), block_length(len(x), self.length))
        scales = self.scales(rows)
        levels = self.rounded(ratio(rows, scales.view(-1, 1)) * self.top, ctx.key)
        return {**self.pack(levels.view(-1)[: len(x)]), "scales": scales}

    def decode(self, payload: Payload, ctx: Coding) -> Tensor:
        """Return level divided by ``top``, times scale."""
        length = block_length(ctx.layout.size, self.length)
        scales = expect_scales(payload, ctx.layout, -(-ctx.layout.size // length))
        levels = self.unpack(payload, ctx.layout.size)
        if bool((levels.abs() > self.top).any()):
            raise PayloadError(f"a level is above {self.top}")
        # A tensor as divisor: a GPU rounds a division by a Python number differently.
        top = torch.tensor(self.top, dtype=ctx.layout.dtype, device=levels.device)
        # The quotient comes first: it is at most 1, so that the product with the largest scale is finite.
        return (blocks(levels.to(ctx.layout.dtype) / top, length) * scales.view(-1, 1)).view(-1)[: ctx.layout.size]


def rounded(exact: Tensor, key: Key) -> Tensor:
    """Return whole numbers near ``exact``, at random and unbiased."""
    low = exact.floor()
    noise = uniform(key, exact.numel(), dtype=exact.dtype, device=exact.device).view(exact.shape)
    return low + (noise < exact - low)
