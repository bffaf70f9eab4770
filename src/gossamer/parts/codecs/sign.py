"""Stochastic sign (Safaryan and Richtárik, ICML 2021, https://arxiv.org/abs/1905.12938): one bit per entry.

An entry u becomes +s with probability (1 + u / s) / 2, clipped to [0, 1], and otherwise -s. It is unbiased if
|u| <= s. Larger entries are clipped to s or -s.

With a fixed scale, the bits of clients add up: a mean m of bits is decoded as (2 m - 1) s.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from gossamer.core.bits import bits, expect_bits, numbers, plus_minus
from gossamer.core.codec import Codec, Coding, checked
from gossamer.core.errors import require, wrong
from gossamer.core.exact import norm
from gossamer.core.random import fold, uniform
from gossamer.core.secure import SumSegment
from gossamer.core.types import Layout, Payload
from gossamer.core.wire import finite
from gossamer.parts.codecs.scale import expect_scale, largest, ratio


@dataclass(frozen=True)
class StochasticSign(Codec):
    """Sends a random sign per entry, and one scale.

    See https://arxiv.org/abs/1905.12938.

    Args:
        scale: the scale s: "max" is the largest magnitude of the vector, the smallest unbiased scale; "norm" is the
            Euclidean norm, as in the paper, unbiased and noisier; a number is not sent, and clips larger entries
    """

    scale: Literal["max", "norm"] | float = "max"

    def __post_init__(self) -> None:
        fits = self.scale in ("max", "norm") if isinstance(self.scale, str) else 1e-37 < self.scale < 1e37
        require((fits, wrong(self, "scale", "must be max, norm or a number from 1e-37 to 1e37")))

    @property
    def unbiased(self) -> bool:
        """Whether no entry is clipped."""
        return isinstance(self.scale, str)

    def encode(self, x: Tensor, ctx: Coding) -> Payload:
        """Return one bit per entry, 1 for plus, and the scale unless it is a constant."""
        scale = self._scale(finite(x, "change"))
        noise = uniform(fold(ctx.key, "sign"), ctx.layout.size, dtype=ctx.layout.dtype, device=x.device) * 2 - 1
        packed = {"bits": bits(noise < ratio(x, scale))}
        return {**packed, "scale": scale} if isinstance(self.scale, str) else packed

    def decode(self, payload: Payload, ctx: Coding) -> Tensor:
        """Return plus or minus the scale."""
        positive = expect_bits(payload, "bits", ctx.layout.size)
        if isinstance(self.scale, str):
            scale = expect_scale(payload, ctx.layout)
        else:
            scale = torch.full((1,), self.scale, dtype=ctx.layout.dtype, device=positive.device)
        return plus_minus(positive, ctx.layout.dtype).mul_(scale)

    def sum_segments(self, layout: Layout) -> tuple[SumSegment, ...]:
        """Return the limit 1 with a fixed scale: a bit per entry."""
        return () if isinstance(self.scale, str) else (SumSegment(layout.size, 1),)

    def unsummable(self) -> str:
        """Return that every client measures a scale of its own, if so."""
        own = f"StochasticSign(scale={self.scale!r}) measures a scale at each client: use a number, such as 0.1"
        return own if isinstance(self.scale, str) else ""

    def to_sum(self, payload: Payload, ctx: Coding) -> Tensor:
        """Return 1 for plus and 0 for minus, or the decoded vector without a fixed scale."""
        if isinstance(self.scale, str):
            return checked(self.decode(payload, ctx), ctx.layout)
        return numbers(expect_bits(payload, "bits", ctx.layout.size), ctx.layout.dtype)

    def from_sum(self, mean: Tensor, ctx: Coding) -> Tensor:
        """Return the mean of the signs, times a fixed scale."""
        return mean if isinstance(self.scale, str) else (mean * 2 - 1) * self.scale

    def _scale(self, x: Tensor) -> Tensor:
        if self.scale == "max":
            return largest(x)
        if self.scale == "norm":
            # Rounding can make the norm slightly smaller than the largest entry.
            return finite(torch.maximum(norm(x).view(1), largest(x)), "norm of the change")
        return x.new_full((1,), self.scale)
