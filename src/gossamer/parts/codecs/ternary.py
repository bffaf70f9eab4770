"""TernGrad (Wen et al., NIPS 2017, https://arxiv.org/abs/1705.07878): each entry as -1, 0 or 1 times a scale.

With s the largest magnitude of the vector, an entry u becomes s times its sign with probability |u| / s, else zero. So
each entry is unbiased. Most entries are zero, so the trits are sent in an entropy code (``gossamer.core.entropy``).

With a fixed scale s, no scale is sent, larger entries are clipped, and the trits of clients add up.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from gossamer.core import entropy
from gossamer.core.bits import TRITS, expect_trits, trits
from gossamer.core.codec import Codec, Coding, checked
from gossamer.core.errors import require, wrong
from gossamer.core.random import fold, uniform
from gossamer.core.secure import SumSegment
from gossamer.core.types import Layout, Payload
from gossamer.core.wire import finite
from gossamer.parts.codecs.scale import expect_scale, largest, ratio


@dataclass(frozen=True)
class Ternary(Codec):
    """Sends one of three values per entry, at most 1.6 bits, and one scale.

    TernGrad, https://arxiv.org/abs/1705.07878.

    Args:
        coded: send the entropy code of the values where it is shorter than five values per byte
        scale: a fixed scale, which is not sent, and clips larger entries; none sends the largest magnitude
    """

    coded: bool = True
    scale: float | None = None

    def __post_init__(self) -> None:
        fits = self.scale is None or 1e-37 < self.scale < 1e37
        require((fits, wrong(self, "scale", "must be a number from 1e-37 to 1e37, or none")))

    def __repr__(self) -> str:
        """Leave out a scale of none: run folders and messages of earlier releases do not have it."""
        scale = "" if self.scale is None else f", scale={self.scale}"
        return f"Ternary(coded={self.coded}{scale})"

    @property
    def unbiased(self) -> bool:
        """Whether no entry is clipped."""
        return self.scale is None

    def encode(self, x: Tensor, ctx: Coding) -> Payload:
        """Return one trit per entry, and the scale unless it is a constant."""
        scale = largest(finite(x, "change")) if self.scale is None else finite(x, "change").new_full((1,), self.scale)
        noise = uniform(fold(ctx.key, "ternary"), ctx.layout.size, dtype=ctx.layout.dtype, device=x.device)
        part = ratio(x, scale)
        signs = (noise < part).to(torch.int8) - (noise < -part).to(torch.int8)
        packed = {"trits": trits(signs)}
        sent = entropy.shorter(packed, signs % 3, 3) if self.coded else packed
        return {**sent, "scale": scale} if self.scale is None else sent

    def decode(self, payload: Payload, ctx: Coding) -> Tensor:
        """Return trit times scale."""
        signs = self._signs(payload, ctx.layout.size).to(ctx.layout.dtype)
        return signs * (expect_scale(payload, ctx.layout) if self.scale is None else self.scale)

    def sum_segments(self, layout: Layout) -> tuple[SumSegment, ...]:
        """Return the limit 2 with a fixed scale: the trits plus 1."""
        return () if self.scale is None else (SumSegment(layout.size, 2),)

    def unsummable(self) -> str:
        """Return that every client measures a scale of its own, if so."""
        own = "Ternary() measures a scale at each client: use a fixed one, such as Ternary(scale=0.1)"
        return own if self.scale is None else ""

    def to_sum(self, payload: Payload, ctx: Coding) -> Tensor:
        """Return the trits plus 1, or the decoded vector without a fixed scale."""
        if self.scale is None:
            return checked(self.decode(payload, ctx), ctx.layout)
        return self._signs(payload, ctx.layout.size).to(ctx.layout.dtype) + 1

    def from_sum(self, mean: Tensor, ctx: Coding) -> Tensor:
        """Return the mean of the trits, times a fixed scale."""
        return mean if self.scale is None else (mean - 1) * self.scale

    def _signs(self, payload: Payload, count: int) -> Tensor:
        if not self.coded or entropy.NAME not in payload:
            return expect_trits(payload, "trits", count)
        digits = entropy.expect_symbols(payload, 3, count, -(-count // TRITS)).view(torch.int8)
        return digits - digits // 2 * 3
