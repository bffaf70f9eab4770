"""One bit or one trit per entry, and at most one scale: random signs, signs after noise, and TernGrad.

**Stochastic sign** (Safaryan and Richtárik, ICML 2021, https://arxiv.org/abs/1905.12938). An entry u becomes +s with
probability (1 + u / s) / 2, clipped to [0, 1], and otherwise -s. It is unbiased if |u| <= s. Larger entries are clipped
to s or -s.

**Noisy sign** (Tang et al., z-SignFedAvg, 2023, https://arxiv.org/abs/2302.02589). An entry u becomes sign(u + sigma
xi), with independent noise xi of density exp(-t^(2 z) / 2) / (2 eta). The receiver multiplies the sign by eta sigma.
Its mean is then u, up to a bias that falls with sigma, while the variance grows with sigma squared. The paper evaluates
two values of z:

    gauss      z = 1: normal noise, eta = sqrt(pi / 2). The mean is eta sigma erf(u / (sqrt(2) sigma)): about
               u (1 - u^2 / (6 sigma^2)), and at most eta sigma
    uniform    z = infinity: noise from -1 to 1, eta = 1. Unbiased if |u| <= sigma; larger entries are clipped

Sigma is a constant, so a message has nothing but the bits. With uniform noise the distribution is that of
``StochasticSign`` with a fixed scale.

**TernGrad** (Wen et al., NIPS 2017, https://arxiv.org/abs/1705.07878). With s the largest magnitude of the vector, an
entry u becomes s times its sign with probability |u| / s, else zero. So each entry is unbiased. Most entries are zero,
so the trits are sent in an entropy code (``gossamer.core.entropy``).

With a fixed scale, no scale is sent, larger entries are clipped, and what clients send adds up: a mean m of bits is
decoded as (2 m - 1) s.
"""

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from gossamer.core import entropy
from gossamer.core.bits import TRITS, bits, expect_bits, expect_trits, numbers, plus_minus, trits
from gossamer.core.codec import Codec, Coding, checked, row_by_row, rows_of
from gossamer.core.errors import require, wrong
from gossamer.core.exact import norm
from gossamer.core.random import fold, uniform
from gossamer.core.random.noise import draw
from gossamer.core.secure import SumSegment
from gossamer.core.types import Layout, Payload
from gossamer.core.wire import finite
from gossamer.parts.codecs.scale import expect_scale, largest, ratio

Noise = Literal["gauss", "uniform"]

ETAS: dict[Noise, float] = {"gauss": math.sqrt(math.pi / 2), "uniform": 1.0}
"""The integral of exp(-t^(2 z) / 2) over t > 0."""


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
        scale = x.new_full((1,), self.scale) if not isinstance(self.scale, str) else largest(finite(x, "change"))
        if self.scale == "norm":
            # Rounding can make the norm slightly smaller than the largest entry.
            scale = finite(torch.maximum(norm(x).unsqueeze(-1), scale), "norm of the change")
        noise = uniform(fold(ctx.key, "sign"), ctx.layout.size, dtype=ctx.layout.dtype, device=x.device) * 2 - 1
        packed = {"bits": bits(noise < ratio(finite(x, "change"), scale))}
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


@dataclass(frozen=True)
class NoisySign(Codec):
    """Sends the sign of each entry after noise is added.

    See https://arxiv.org/abs/2302.02589.

    Args:
        sigma: the scale of the noise; entries that are much larger are clipped to it, times sqrt(pi / 2) for gauss
        noise: gauss or uniform
    """

    sigma: float = 0.01
    noise: Noise = "gauss"

    def __post_init__(self) -> None:
        require(
            (1e-7 <= self.sigma <= 1e30, wrong(self, "sigma", "must be from 1e-7 to 1e30")),
            (self.noise in ETAS, wrong(self, "noise", "must be gauss or uniform")),
        )

    def encode(self, x: Tensor, ctx: Coding) -> Payload:
        """Return one bit per entry, 1 for plus."""
        noise = draw(self.noise, self.sigma, fold(ctx.key, "noisy-sign"), ctx.layout.size, device=x.device)
        return {"bits": bits(finite(x, "change") + noise.to(ctx.layout.dtype) >= 0)}

    def decode(self, payload: Payload, ctx: Coding) -> Tensor:
        """Return plus or minus eta sigma."""
        signs = plus_minus(expect_bits(payload, "bits", ctx.layout.size), ctx.layout.dtype)
        return signs.mul_(ETAS[self.noise] * self.sigma)

    def sum_segments(self, layout: Layout) -> tuple[SumSegment, ...]:
        """Return the limit 1: a bit per entry."""
        return (SumSegment(layout.size, 1),)

    def to_sum(self, payload: Payload, ctx: Coding) -> Tensor:
        """Return 1 for plus and 0 for minus."""
        return numbers(expect_bits(payload, "bits", ctx.layout.size), ctx.layout.dtype)

    def from_sum(self, mean: Tensor, ctx: Coding) -> Tensor:
        """Return the mean of the signs, times eta sigma."""
        return (mean * 2 - 1) * (ETAS[self.noise] * self.sigma)


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
        if self.coded and x.dim() > 1:  # codes differ in length
            return row_by_row(self.encode, x, ctx)
        scale = largest(finite(x, "change")) if self.scale is None else finite(x, "change").new_full((1,), self.scale)
        noise = uniform(fold(ctx.key, "ternary"), ctx.layout.size, dtype=ctx.layout.dtype, device=x.device)
        part = ratio(x, scale)
        signs = (noise < part).to(torch.int8) - (noise < -part).to(torch.int8)
        packed = {"trits": trits(signs)}
        sent = entropy.shorter(packed, signs % 3, 3) if self.coded else packed
        return {**sent, "scale": scale} if self.scale is None else sent

    def decode(self, payload: Payload, ctx: Coding) -> Tensor:
        """Return trit times scale."""
        if self.coded and rows_of(payload) is not None:
            return row_by_row(self.decode, payload, ctx)
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
        if self.coded and rows_of(payload) is not None:
            return row_by_row(self.to_sum, payload, ctx)
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
