"""Distributed differential privacy: each client adds whole-number noise, and only the sum of all clients is revealed.

Each client clips its update to the norm ``clip``, rotates it, divides it by a step, rounds it at random to whole
numbers (``rounding``), and adds noise (``tables``). All clients rotate in the same way, so the server decodes the sum
of the whole numbers: times the step, rotated back. With n clients, each adds noise of variance

    (noise_multiplier clip / step)^2 / h        so that h clients have noise of noise_multiplier times clip in the sum

where h = n - dropouts - colluding: a share of the clients may be lost, and a share may help the server. These know
their own noise, so the server can subtract it, and only that of the h others protects anybody. The noise of one client
is too small to protect it: the server must not see the messages, which is why these codecs need secure aggregation.

A message has ``bits`` bits per entry, for the whole numbers from -B to B, plus B. The step is the smallest for which

    B >= (largest entry of the rotated update) / step + (largest noise)

The noise has a largest magnitude (``tables.reach``), and the rotated update is clipped entry by entry before noise is
added, so nothing is clipped after it and sums are exact. Clipping entries never makes a vector longer. It almost never
happens: a rotation makes each entry sub-Gaussian with variance clip^2 / d, in blocks of d = 8192 entries, and the range
is ``SPREAD`` standard deviations. An entry is outside with probability below 5e-16. Without rotation, the range is
``clip``.

Smaller steps make rounding negligible: rounding adds up to a quarter to the squared norm of each entry, which counts
against noise and signal. For a million entries, 16 bits have a norm that is larger by a few percent.
"""

import math
from abc import abstractmethod
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self

from torch import Tensor

from gossamer.core.codec import IntegerSums, OwnDraws
from gossamer.core.errors import ConfigError, require, wrong
from gossamer.core.exchange import Context
from gossamer.core.privacy import Guarantee, Participation, PrivatePart, SharedNoise
from gossamer.core.random import Key, fold
from gossamer.core.types import Layout, Payload
from gossamer.core.wire import finite
from gossamer.parts.codecs.private.bound import (
    check_outermost,
    entries,
    helped,
    honest,
    is_secure,
    least_cohort,
    of_share,
    shares,
    with_zeros,
)
from gossamer.parts.codecs.private.packing import pack, unpack
from gossamer.parts.codecs.private.rounding import clipped, norm_bound, rounded
from gossamer.parts.codecs.private.tables import EXTRA, REACH, Weights, draw, reach
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
class DistributedNoise(IntegerSums, OwnDraws, PrivatePart, SharedNoise):
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
        return not self._secure()

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

    @abstractmethod
    def _with(self, **known: Any) -> Self:
        """Return the codec with more known fields of ``BoundNoise``."""

    def bind(self, context: Context) -> Self:
        """Refuse an exchange in which the server sees the messages, and learn the number of entries."""
        check_outermost(self, context)
        if not is_secure(context):
            raise ConfigError(
                f"{self._name} needs secure aggregation: the noise of one client alone is too small to protect it. "
                "Use --secure, or local privacy (LocalGaussian, PoissonBinomial)"
            )
        return self._with(size=entries(context), secure_noise=context.network.secure_noise)

    def fewest(self, cohort: int) -> int:
        """Return the number of clients whose noise suffices, if a share of the cohort helps the server."""
        return self.honest + of_share(cohort, self.colluding)

    @property
    def honest(self) -> int:
        """The number of clients whose noise protects."""
        return honest(self.clients, self.dropouts, self.colluding)

    def of_client(self, client: int) -> Self:
        """Return the codec with the draws of a client."""
        return self._with(client=client)

    @property
    def _name(self) -> str:
        return type(self).__name__.removeprefix("Bound")

    def grid(self, size: int) -> Grid:
        """Return the whole numbers for updates with this number of entries."""
        noise = self.noise_multiplier * self.clip / math.sqrt(self.honest)
        largest = self.clip * (min(1.0, SPREAD / math.sqrt(Rotation(size, Key(0, 0)).block)) if self.rotate else 1.0)
        top = (1 << self.bits - 1) - 1
        step = (largest + REACH * noise) / (top - 2 - EXTRA)
        variance = (noise / step) ** 2
        return Grid(step, top, top - reach(variance), self.clip / step, variance)

    def encode(self, x: Tensor, layout: Layout, key: Key) -> Payload:
        """Return the rounded, rotated update plus noise, as whole numbers."""
        grid, own = self.grid(self._size(layout)), self._own(key)
        y = self._rotated(clipped(finite(x, "change"), self.clip), key) * (1 / grid.step)
        whole = rounded(y, norm_bound(grid.clip, layout.size), fold(own, "rounding")).clamp_(-grid.inner, grid.inner)
        at = fold(own, "noise")
        noise = draw(self.weights, grid.variance, at, layout.size, secure=self._secure(), device=x.device)
        return pack(whole + noise + grid.top, self.bits)

    def decode(self, payload: Payload, layout: Layout, key: Key) -> Tensor:
        """Return the noisy update."""
        return self._decoded(self._values(payload, layout).double(), layout, key)

    def sum_limit(self, layout: Layout) -> int:
        """Return the largest value, 2 B."""
        return 2 * self.grid(self._size(layout)).top

    def to_sum(self, payload: Payload, layout: Layout, key: Key) -> Tensor:
        """Return the values, in the layout's type, in which they are exact."""
        return self._values(payload, layout).to(layout.dtype)

    def from_sum(self, mean: Tensor, layout: Layout, key: Key) -> Tensor:
        """Return the mean update. Its noise is ``noise_multiplier clip`` divided by the number of clients."""
        return self._decoded(mean.double(), layout, key)

    def _values(self, payload: Payload, layout: Layout) -> Tensor:
        return unpack(payload, self.bits, layout.size, self.sum_limit(layout))

    def _decoded(self, mean: Tensor, layout: Layout, key: Key) -> Tensor:
        grid = self.grid(self._size(layout))
        y = (mean - grid.top) * grid.step
        return (Rotation(layout.size, key).inverse_(y) if self.rotate else y).to(layout.dtype)

    def _rotated(self, x: Tensor, key: Key) -> Tensor:
        return Rotation(len(x), key).forward(x) if self.rotate else x

    def _size(self, layout: Layout) -> int:
        return layout.size

    def _own(self, key: Key) -> Key:
        return key

    def _secure(self) -> bool:
        return False

    def guarantee(self, participation: Participation) -> Guarantee:
        """Return the guarantee of the noisy sums. Only a bound codec has one, since it depends on the model's size."""
        raise ConfigError(f"{self._name} must be bound to a network before its guarantee is known")


@dataclass(frozen=True)
class BoundNoise(DistributedNoise):
    """``DistributedNoise`` for one network, and at one client.

    Args:
        size: the number of entries of the model
        client: the client's number; none at the server
        secure_noise: whether noise comes from the operating system, as all that protects anybody does, or from the key
    """

    size: int = field(default=0, kw_only=True)
    client: int | None = field(default=None, kw_only=True)
    secure_noise: bool = field(default=False, kw_only=True)

    def _size(self, layout: Layout) -> int:
        return self.size or layout.size

    def _own(self, key: Key) -> Key:
        return key if self.client is None else fold(key, "client", self.client)

    def _secure(self) -> bool:
        return self.secure_noise

    def divergence(self, order: float, replaced: bool = False) -> float:
        """Return the Rényi divergence of one round, without one client or with a replaced one."""
        grid = self.grid(self.size)
        norm = norm_bound(grid.clip, self.size) * (2 if replaced else 1)
        return self.renyi(order, norm, self.size, grid.variance, self.honest)

    def guarantee(self, participation: Participation) -> Guarantee:
        """Return the guarantee of the noisy sums, against the server and everybody who sees the model."""
        from gossamer.parts.privacy.renyi import from_renyi  # imported here: it needs an optional package

        asked = least_cohort(participation, self._name)
        if honest(asked, self.dropouts, self.colluding) < self.honest:
            raise ConfigError(
                f"{self._name}.clients={self.clients} share the noise, a round has {participation.cohort:g} clients "
                f"and too little noise: use {self._name}.clients={int(participation.cohort)}"
            )
        return from_renyi(
            self.divergence,
            with_zeros(participation),
            f"{self._name} noise of {self.honest} or more honest clients, {self.noise_multiplier:g} times the clipping "
            "norm",
            f"everybody, also the server, which sees sums, {helped(asked, self.colluding)}",
            replaced=lambda order: self.divergence(order, replaced=True),
        )
