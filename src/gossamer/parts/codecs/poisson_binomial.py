"""The Poisson binomial mechanism: random bits whose probabilities follow the update.

Chen, Özgür and Kairouz, ICML 2022 (https://arxiv.org/abs/2207.09916). Clipping does not bound how much a sign vector
reveals: signs do not depend on the norm. So the randomness must come before the bit. The update is clipped to the norm
``clip``, rotated, and clipped entry by entry to [-c, c]. Entry y is sent as the number of ones of ``trials`` bits, each

    1 with probability 1/2 + theta y / c,        decoded as  y = (ones / trials - 1/2) c / theta

This is unbiased for updates that are not clipped. With ``trials=1``, a message has one bit per parameter. The ones of
all clients add up, so secure aggregation needs few bits.

The rotation makes entries almost Gaussian with standard deviation ``clip / sqrt(d)``, for d entries. The range c is
``spread`` of them. Entries are interleaved before the rotation (``gossamer.parts.codecs.sensing``), so that
all blocks of it have almost the same norm.

The guarantee (``renyi``) is about that of Gaussian noise with the noise multiplier

    z = sqrt(n / trials) spread / (2 theta sqrt(d))

where n honest clients are summed under secure aggregation (not those that may drop out, nor those that may tell the
server their bits, which then count as constants), and n = 1 if the server sees each message. So a model with many
parameters needs a small theta: ``theta = spread / (2 z sqrt(d))`` for local privacy. Then almost all bits are noise.
"""

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from gossamer.core.bits import bits, codes, expect_bits, expect_codes, numbers
from gossamer.core.codec import Codec, Coding, each_row
from gossamer.core.errors import ConfigError, PayloadError, require, wrong
from gossamer.core.exchange import Context
from gossamer.core.privacy import Guarantee, Participation
from gossamer.core.random import fold
from gossamer.core.random.private import words_of
from gossamer.core.secure import SumSegment
from gossamer.core.types import Layout, Payload
from gossamer.core.wire import finite
from gossamer.parts.codecs.private import (
    check_outermost,
    clipped,
    entries,
    helped,
    honest,
    least_cohort,
    remaining,
    shares,
    with_zeros,
)
from gossamer.parts.codecs.renyi import poisson_binomial
from gossamer.parts.codecs.rotation import BLOCK, Rotation
from gossamer.parts.codecs.sensing import Deal


@dataclass(frozen=True)
class PoissonBinomial(Codec):
    """Sends random bits whose probabilities follow the rotated update, with differential privacy.

    See https://arxiv.org/abs/2207.09916.

    Args:
        clip: the largest norm of an update; longer ones are scaled down
        theta: the largest difference of a bit's probability from 1/2, below 1/2; less is more private
        trials: the number of bits per entry
        spread: the range of rotated entries, in standard deviations; larger entries are clipped
        dropouts: the share of the clients of a round that may drop out of the sum, under secure aggregation
        colluding: the share of the clients of a round that may tell the server their bits, under secure aggregation
    """

    clip: float = 1.0
    theta: float = 0.25
    trials: int = 1
    spread: float = 4.0
    dropouts: float = 0.0
    colluding: float = 0.0
    size: int = field(default=0, init=False, repr=False, compare=False)
    """The number of entries of the model; 0 before it is known."""
    secure: bool = field(default=False, init=False, repr=False, compare=False)
    """Whether the server sees only sums."""
    secure_noise: bool = field(default=False, init=False, repr=False, compare=False)
    """Whether bits come from the operating system, as all that protects anybody does, or from the key."""

    def __post_init__(self) -> None:
        require(
            (1e-30 <= self.clip <= 1e30, wrong(self, "clip", "must be from 1e-30 to 1e30")),
            (1e-6 <= self.theta < 0.5, wrong(self, "theta", "must be from 1e-6 to below 0.5")),
            (1 <= self.trials <= 255, wrong(self, "trials", "must be from 1 to 255")),
            (1 <= self.spread <= 100, wrong(self, "spread", "must be from 1 to 100")),
            *shares(self, self.dropouts, self.colluding),
        )

    @property
    def exact(self) -> bool:
        """Whether the bits follow from the key."""
        return not self.secure_noise

    @property
    def common(self) -> bool:
        """True: all clients of a round use the same rotation."""
        return True

    def bind(self, context: Context) -> "PoissonBinomial":
        """Learn the number of entries, and whether the server sees only sums."""
        check_outermost(self, context)
        secure, here = context.exchange.secure is not None, context.network.secure_noise
        return self.filled(size=entries(context), secure=secure, secure_noise=here)

    @property
    def private(self) -> bool:
        """True: bits are random."""
        return True

    @each_row
    def encode(self, x: Tensor, ctx: Coding) -> Payload:
        """Return the number of ones of each entry: one bit, or a code."""
        y = self._rotated(clipped(finite(x, "change"), self.clip), ctx)
        chance = (y * (1 / self._range(ctx.layout))).clamp_(-1, 1) * self.theta + 0.5
        ones = torch.zeros_like(chance, dtype=torch.uint8)
        for trial in range(self.trials):
            at = fold(ctx.own, "trial", trial)
            drawn = words_of(at, len(chance), self.secure_noise, device=chance.device)
            ones += (drawn >> 11 & (1 << 53) - 1).double() * 0.5**53 < chance
        return {"bits": bits(ones > 0)} if self.trials == 1 else {"codes": codes(ones, self._width)}

    @each_row
    def decode(self, payload: Payload, ctx: Coding) -> Tensor:
        """Return the unbiased estimate of the clipped update."""
        return self.from_sum(self.to_sum(payload, ctx), ctx)

    def sum_size(self, layout: Layout) -> int:
        """Return the number of entries, plus at most one per block of padding before the rotation."""
        blocks = max(1, -(-layout.size // BLOCK))
        return -(-layout.size // blocks) * blocks

    def sum_segments(self, layout: Layout) -> tuple[SumSegment, ...]:
        """Return the number of bits per entry as the limit."""
        return (SumSegment(self.sum_size(layout), self.trials),)

    @each_row
    def to_sum(self, payload: Payload, ctx: Coding) -> Tensor:
        """Return the number of ones of each entry."""
        if self.trials == 1:
            return numbers(expect_bits(payload, "bits", self.sum_size(ctx.layout)), ctx.layout.dtype)
        ones = expect_codes(payload, "codes", self._width, self.sum_size(ctx.layout))
        if bool((ones > self.trials).any()):
            raise PayloadError(f"'codes' has a number above {self.trials}, the number of bits per entry")
        return ones.to(ctx.layout.dtype)

    def from_sum(self, mean: Tensor, ctx: Coding) -> Tensor:
        """Return the unbiased estimate of the mean update."""
        y = (mean.double() * (1 / self.trials) - 0.5) * (self._range(ctx.layout) / self.theta)
        return self._rotated_back(y, ctx).to(ctx.layout.dtype)

    @property
    def _width(self) -> int:
        return self.trials.bit_length()

    def _range(self, layout: Layout) -> float:
        """Return c."""
        return self.clip * self.spread / math.sqrt(max(1, self.size or layout.size))

    def _rotated(self, x: Tensor, ctx: Coding) -> Tensor:
        deal = self._deal(ctx, x.device)
        return Rotation(deal.each * deal.blocks, ctx.key).forward(deal.out(x).t().reshape(-1))

    def _rotated_back(self, y: Tensor, ctx: Coding) -> Tensor:
        deal = self._deal(ctx, y.device)
        return deal.back(Rotation(len(y), ctx.key).inverse_(y).view(deal.blocks, deal.each).t().contiguous())

    def _deal(self, ctx: Coding, device: torch.device) -> Deal:
        return Deal.make(ctx.layout.size, BLOCK, fold(ctx.key, "deal"), device)

    def fewest(self, cohort: int) -> int:
        """Return the number of clients whose bits suffice, if a share of the cohort helps the server."""
        return remaining(cohort, self.dropouts)

    @property
    def energy(self) -> float:
        """The largest sum of squares of ``2 theta y / c`` over the entries of a clipped update."""
        return 4 * self.theta**2 * self.size / self.spread**2

    def guarantee(self, participation: Participation) -> Guarantee:
        """Return the guarantee against the server: of each message, or of sums under secure aggregation."""
        from gossamer.parts.privacy.renyi import from_renyi  # imported here: it needs an optional package

        if not self.size:
            raise ConfigError("PoissonBinomial must be bound to a network before its guarantee is known")
        clients, seen = 1, "each message"
        if self.secure:
            asked = least_cohort(participation, "PoissonBinomial")
            clients = honest(asked, self.dropouts, self.colluding)
            seen = f"sums of {clients} or more honest clients, {helped(asked, self.colluding)}"
        return from_renyi(
            lambda order: poisson_binomial(order, self.theta, clients, self.energy, self.trials),
            with_zeros(participation),
            f"Poisson binomial, random bits with probabilities 1/2 +- {self.theta:g}, {self.trials} per entry",
            f"everybody, also the server, which sees {seen}",
            amplified=self.secure,
        )
