"""Signs of noisy entries (Tang et al., z-SignFedAvg, 2023, https://arxiv.org/abs/2302.02589): one bit per entry.

An entry u becomes sign(u + sigma xi), with independent noise xi of density exp(-t^(2 z) / 2) / (2 eta). The receiver
multiplies the sign by eta sigma. Its mean is then u, up to a bias that falls with sigma, while the variance grows with
sigma squared. The paper evaluates two values of z:

    gauss      z = 1: normal noise, eta = sqrt(pi / 2). The mean is eta sigma erf(u / (sqrt(2) sigma)): about
               u (1 - u^2 / (6 sigma^2)), and at most eta sigma
    uniform    z = infinity: noise from -1 to 1, eta = 1. Unbiased if |u| <= sigma; larger entries are clipped

Sigma is a constant, so a message has nothing but the bits, and the bits of clients add up. With uniform noise the
distribution is that of ``StochasticSign`` with a fixed scale.
"""

import math
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from gossamer.core.bits import bits, expect_bits, numbers, plus_minus
from gossamer.core.codec import Codec, Coding
from gossamer.core.errors import require, wrong
from gossamer.core.random import fold
from gossamer.core.random.noise import draw
from gossamer.core.secure import SumSegment
from gossamer.core.types import Layout, Payload
from gossamer.core.wire import finite

Noise = Literal["gauss", "uniform"]

ETAS: dict[Noise, float] = {"gauss": math.sqrt(math.pi / 2), "uniform": 1.0}
"""The integral of exp(-t^(2 z) / 2) over t > 0."""


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
