"""Distributed differential privacy: each client adds whole-number noise, and only the sum of all clients is revealed.

Each client clips its update to the norm ``clip``, rotates it, divides it by a step, rounds it at random to whole
numbers, and adds noise (``noise_tables``). All clients rotate in the same way, so the server decodes the sum of the
whole numbers: times the step, rotated back. With n clients, each adds noise of variance

    (noise_multiplier clip / step)^2 / h        so that h clients have noise of noise_multiplier times clip in the sum

where h = n - dropouts - colluding: a share of the clients may be lost, and a share may help the server. These know
their own noise, so the server can subtract it, and only that of the h others protects anybody. The noise of one client
is too small to protect it: the server must not see the messages, which is why these codecs need secure aggregation.

A message has ``bits`` bits per entry, for the whole numbers from -B to B, plus B. The step is the smallest for which

    B >= (largest entry of the rotated update) / step + (largest noise)

The noise has a largest magnitude (``noise_tables.reach``), and the rotated update is clipped entry by entry before
noise is added, so nothing is clipped after it and sums are exact. Clipping entries never makes a vector longer. It
almost never happens: a rotation makes each entry sub-Gaussian with variance clip^2 / d, in blocks of d = 8192 entries,
and the range is ``SPREAD`` standard deviations. An entry is outside with probability below 5e-16. Without rotation, the
range is ``clip``.

**Rounding.** Each entry is rounded up with the probability of its fraction, so rounding is unbiased. It makes vectors
longer. For a vector of d entries with norm at most c, Kairouz, Liu and Steinke (https://arxiv.org/abs/2102.06387,
Proposition 22) show that the rounded vector is longer than ``norm_bound`` with a probability of at most beta =
exp(-1/2):

    min( (c + sqrt(d))^2, c^2 + d / 4 + sqrt(2 log(1 / beta)) (c + sqrt(d) / 2) )     is the square of the bound

Conditional rounding draws again until the bound holds, so it holds always: it is a sensitivity. The condition makes the
rounding slightly biased. After ``ATTEMPTS`` draws, which has a probability below 1e-13, entries are rounded towards
zero, which never makes a vector longer. Smaller steps make rounding negligible: it adds up to a quarter to the squared
norm of each entry, which counts against noise and signal. For a million entries, 16 bits have a norm that is larger by
a few percent.

**The noise.** Discrete Gaussian noise: Kairouz, Liu and Steinke, ICML 2021 (https://arxiv.org/abs/2102.06387). In the
paper, values wrap around modulo the size of the ring. Here the ring holds the sum of all clients, so nothing wraps
around. Skellam noise, the difference of two Poisson variables: Agarwal, Kairouz and Liu, NeurIPS 2021
(https://arxiv.org/abs/2110.04995). The sum of Skellam variables is a Skellam variable, so the noise of a sum is known
exactly, however small that of each client is. ``renyi`` has the guarantees of both.
"""

import math
from abc import abstractmethod
from dataclasses import dataclass, field
from typing import NamedTuple, Self

import torch
from torch import Tensor

from gossamer.core.bits import code_bytes, codes, expect_codes
from gossamer.core.codec import Codec, Coding
from gossamer.core.errors import ConfigError, PayloadError, require, wrong
from gossamer.core.exchange import Context
from gossamer.core.privacy import Guarantee, Participation
from gossamer.core.random import Key, Keys, fold, uniform
from gossamer.core.secure import SumSegment
from gossamer.core.types import Layout, Payload
from gossamer.core.wire import expect, finite
from gossamer.parts.codecs import renyi
from gossamer.parts.codecs.noise_tables import EXTRA, REACH, Weights, draw, gaussian_weights, reach, skellam_weights
from gossamer.parts.codecs.private import (
    check_outermost,
    clipped,
    entries,
    helped,
    honest,
    least_cohort,
    of_share,
    shares,
    with_zeros,
)
from gossamer.parts.codecs.rotation import Rotation

SPREAD = 8.5
"""The range of rotated entries, in standard deviations."""


class Grid(NamedTuple):
    """The whole numbers of a client.

    Args:
        step: the difference of updates that differ by 1
        top: the largest magnitude of a value with noise
        inner: the largest magnitude without noise
        clip: the largest norm without noise, before rounding
        variance: the variance of a client's noise
    """

    step: float
    top: int
    inner: int
    clip: float
    variance: float


@dataclass(frozen=True)
class DistributedNoise(Codec):
    """Base of codecs that send the rounded update plus whole-number noise, for secure aggregation.

    Args:
        clip: the largest norm of an update; longer ones are scaled down
        noise_multiplier: the standard deviation of the noise that honest clients have in the sum, divided by ``clip``
        clients: the number of clients in a round
        dropouts: the share of them that may drop out without a weaker guarantee; each client adds more noise for it
        colluding: the share of them that may tell the server their noise without a weaker guarantee; likewise
        bits: the number of bits per entry of one client's values
        rotate: rotate updates at random, so that all entries are small
    """

    clip: float = 1.0
    noise_multiplier: float = 1.0
    clients: int = 100
    dropouts: float = 0.0
    colluding: float = 0.0
    bits: int = 16
    rotate: bool = True
    size: int = field(default=0, init=False, repr=False, compare=False)
    """The number of entries of the model; 0 before it is known."""
    secure_noise: bool = field(default=False, init=False, repr=False, compare=False)
    """Whether noise comes from the operating system, as all that protects anybody does, or from the key."""

    def __post_init__(self) -> None:
        require(
            (1e-30 <= self.clip <= 1e30, wrong(self, "clip", "must be from 1e-30 to 1e30")),
            (1e-3 <= self.noise_multiplier <= 1e6, wrong(self, "noise_multiplier", "must be from 0.001 to 1e6")),
            (1 <= self.clients <= 1 << 30, wrong(self, "clients", "must be at least 1")),
            *shares(self, self.dropouts, self.colluding),
            (8 <= self.bits <= 18, wrong(self, "bits", "must be from 8 to 18")),
        )

    @property
    def exact(self) -> bool:
        """Whether noise follows from the key."""
        return not self.secure_noise

    @property
    def common(self) -> bool:
        """True: all clients of a round use the same rotation."""
        return True

    @property
    @abstractmethod
    def weights(self) -> Weights:
        """The distribution of the noise."""

    @abstractmethod
    def renyi(self, order: float, norm: float, size: int, variance: float, clients: int) -> float:
        """Return the Rényi divergence of sums whose contributions have at most this norm, see ``renyi``."""

    def bind(self, context: Context) -> Self:
        """Refuse an exchange in which the server sees the messages, and learn the number of entries."""
        check_outermost(self, context)
        if context.exchange.secure is None:
            raise ConfigError(
                f"{type(self).__name__} needs secure aggregation: the noise of one client alone is too small to protect"
                " it. Use --secure, or local privacy (LocalGaussian, PoissonBinomial)"
            )
        return self.filled(size=entries(context), secure_noise=context.network.secure_noise)

    def fewest(self, cohort: int) -> int:
        """Return the number of clients whose noise suffices, if a share of the cohort helps the server."""
        return self.honest + of_share(cohort, self.colluding)

    @property
    def honest(self) -> int:
        """The number of clients whose noise protects."""
        return honest(self.clients, self.dropouts, self.colluding)

    @property
    def private(self) -> bool:
        """True: the sum of a round has noise."""
        return True

    def grid(self, size: int) -> Grid:
        """Return the whole numbers for updates with this number of entries."""
        noise = self.noise_multiplier * self.clip / math.sqrt(self.honest)
        largest = self.clip * (min(1.0, SPREAD / math.sqrt(Rotation(size, Key(0, 0)).block)) if self.rotate else 1.0)
        top = (1 << self.bits - 1) - 1
        step = (largest + REACH * noise) / (top - 2 - EXTRA)
        variance = (noise / step) ** 2
        return Grid(step, top, top - reach(variance), self.clip / step, variance)

    def encode(self, x: Tensor, ctx: Coding) -> Payload:
        """Return the rounded, rotated update plus noise, as whole numbers."""
        grid, own = self.grid(self.size or ctx.layout.size), ctx.own
        y, size = clipped(finite(x, "change"), self.clip), ctx.layout.size
        y = (Rotation(size, ctx.key).forward(y) if self.rotate else y) * (1 / grid.step)
        whole = rounded(y, norm_bound(grid.clip, size), fold(own, "rounding")).clamp_(-grid.inner, grid.inner)
        at = fold(own, "noise")
        noise = draw(self.weights, grid.variance, at, size, secure=self.secure_noise, device=x.device)
        return pack(whole + noise + grid.top, self.bits)

    def decode(self, payload: Payload, ctx: Coding) -> Tensor:
        """Return the noisy update."""
        return self._decoded(self._values(payload, ctx.layout).double(), ctx)

    def sum_segments(self, layout: Layout) -> tuple[SumSegment, ...]:
        """Return the largest value, 2 B, as the limit."""
        return (SumSegment(layout.size, 2 * self.grid(self.size or layout.size).top),)

    def to_sum(self, payload: Payload, ctx: Coding) -> Tensor:
        """Return the values, in the layout's type, in which they are exact."""
        return self._values(payload, ctx.layout).to(ctx.layout.dtype)

    def from_sum(self, mean: Tensor, ctx: Coding) -> Tensor:
        """Return the mean update. Its noise is ``noise_multiplier clip`` divided by the number of clients."""
        return self._decoded(mean.double(), ctx)

    def _values(self, payload: Payload, layout: Layout) -> Tensor:
        return unpack(payload, self.bits, layout.size, 2 * self.grid(self.size or layout.size).top)

    def _decoded(self, mean: Tensor, ctx: Coding) -> Tensor:
        grid = self.grid(self.size or ctx.layout.size)
        y = (mean - grid.top) * grid.step
        return (Rotation(ctx.layout.size, ctx.key).inverse_(y) if self.rotate else y).to(ctx.layout.dtype)

    def divergence(self, order: float, replaced: bool = False) -> float:
        """Return the Rényi divergence of one round, without one client or with a replaced one."""
        grid = self.grid(self.size)
        norm = norm_bound(grid.clip, self.size) * (2 if replaced else 1)
        return self.renyi(order, norm, self.size, grid.variance, self.honest)

    def guarantee(self, participation: Participation) -> Guarantee:
        """Return the guarantee of the noisy sums, against the server and everybody who sees the model."""
        from gossamer.parts.privacy.renyi import from_renyi  # imported here: it needs an optional package

        name = type(self).__name__
        if not self.size:
            raise ConfigError(f"{name} must be bound to a network before its guarantee is known")
        asked = least_cohort(participation, name)
        if honest(asked, self.dropouts, self.colluding) < self.honest:
            raise ConfigError(
                f"{name}.clients={self.clients} share the noise, a round has {participation.cohort:g} clients "
                f"and too little noise: use {name}.clients={int(participation.cohort)}"
            )
        return from_renyi(
            self.divergence,
            with_zeros(participation),
            f"{name} noise of {self.honest} or more honest clients, {self.noise_multiplier:g} times the clipping norm",
            f"everybody, also the server, which sees sums, {helped(asked, self.colluding)}",
            replaced=lambda order: self.divergence(order, replaced=True),
        )


@dataclass(frozen=True)
class DiscreteGaussian(DistributedNoise):
    """Sends the rounded update plus discrete Gaussian noise, for secure aggregation.

    See https://arxiv.org/abs/2102.06387.
    """

    @property
    def weights(self) -> Weights:
        """The discrete Gaussian distribution."""
        return gaussian_weights

    def renyi(self, order: float, norm: float, size: int, variance: float, clients: int) -> float:
        """Return the Rényi divergence of a sum of discrete Gaussians."""
        return renyi.discrete_gaussian(order, norm, size, variance, clients)


@dataclass(frozen=True)
class Skellam(DistributedNoise):
    """Sends the rounded update plus Skellam noise, for secure aggregation.

    See https://arxiv.org/abs/2110.04995.
    """

    @property
    def weights(self) -> Weights:
        """The Skellam distribution."""
        return skellam_weights

    def renyi(self, order: float, norm: float, size: int, variance: float, clients: int) -> float:
        """Return the Rényi divergence of Skellam noise."""
        return renyi.skellam(order, norm, size, variance, clients)


BETA = math.exp(-0.5)
ATTEMPTS = 64


def norm_bound(clip: float, size: int) -> float:
    """Return the norm of rounded vectors, for vectors of ``size`` entries whose norm is at most ``clip``."""
    root = math.sqrt(size)
    likely = clip**2 + size / 4 + math.sqrt(2 * math.log(1 / BETA)) * (clip + root / 2)
    return min(clip + root, math.sqrt(likely))


def rounded(y: Tensor, bound: float, key: Key | Keys) -> Tensor:
    """Return whole numbers near ``y`` as int64. Their norm is at most ``bound`` if that of ``y`` is."""
    found, left = y.trunc().long(), torch.ones(*y.shape[:-1], 1, dtype=torch.bool, device=y.device)
    for attempt in range(ATTEMPTS):
        drawn = uniform(fold(key, attempt), y.shape[-1], dtype=torch.float64, device=y.device)
        tried = (y + drawn).floor().long()
        fits = (tried * tried).sum(-1, keepdim=True) <= bound**2
        found, left = torch.where(left & fits, tried, found), left & ~fits
        if not bool(left.any()):
            break
    return found


NAME = "values"


def pack(values: Tensor, width: int) -> Payload:
    """Return numbers of ``width`` bits as a payload.

    >>> pack(torch.tensor([1, 258]), 10)
    {'values': tensor([1, 2, 4], dtype=torch.uint8)}
    """
    planes = [codes(values >> shift & 0xFF, bits) for shift, bits in _planes(width)]
    return {NAME: torch.cat(planes, -1)}


def unpack(payload: Payload, width: int, count: int, limit: int) -> Tensor:
    """Return ``count`` numbers as int64. Raises ``PayloadError`` for wrong bytes, and for a number above ``limit``."""
    sizes = [code_bytes(count, bits) for _, bits in _planes(width)]
    pieces = expect(payload, NAME, torch.uint8, sum(sizes)).split(sizes, -1)
    found = torch.zeros(*pieces[0].shape[:-1], count, dtype=torch.int64, device=pieces[0].device)
    for (shift, bits), piece in zip(_planes(width), pieces, strict=True):
        found |= expect_codes({NAME: piece}, NAME, bits, count).long() << shift
    if found.numel() and int(found.max()) > limit:
        raise PayloadError(f"{NAME!r} has the number {int(found.max()):,}, above the largest one, {limit:,}")
    return found


def _planes(width: int) -> list[tuple[int, int]]:
    """Return the position and the number of bits of each byte of a number."""
    return [(shift, min(8, width - shift)) for shift in range(0, width, 8)]
