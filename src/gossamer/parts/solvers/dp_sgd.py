"""Differentially private SGD on a client: the messages of a client reveal little about any one of its samples.

Abadi et al., Deep Learning with Differential Privacy, CCS 2016, https://arxiv.org/abs/1607.00133, Algorithm 1.

One local step of a client with ``n`` samples, from weights ``w``, with B = min(batch, n):

    sample     each sample independently with probability B / n (Poisson sampling)
    g_i        the gradient of the loss of sample i alone
    g_i     <- g_i min(1, clip / |g_i|)          norm over all trained tensors together
    g       <- (sum_i g_i + noise_multiplier clip N(0, I)) / B
    w       <- w - lr g                          with momentum, weight decay and proximal term as in ``SGD``

Batches may be empty, and the size of a batch is not revealed: the sum is divided by its expectation. Entries of
gradients that are not finite count as 0, so that no sample exceeds its bound.

All batches of a client have the same shape. The number of rows is 2 standard deviations above B, and at most n. Rows
beyond the drawn samples are other samples of the client, whose gradients are computed and not added. A batch that needs
more rows has twice as many, and so on, so that no sample is left out and the sampling is exactly Poisson. The price is
the computation of the additional rows: half as many as the samples for batches of 16, and 1/8 for batches of 256.

With noise of the operating system, batches are drawn from it too: the guarantee counts on nobody knowing them.

The guarantee holds for the model that a client sends. The number of samples and the number of steps count as public.
The mean loss that a client reports and metrics on its samples are not protected.
"""

import math
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from gossamer.core import tree
from gossamer.core.errors import require, wrong
from gossamer.core.exchange import Context
from gossamer.core.privacy import Guarantee, Participation, PrivatePart
from gossamer.core.random import Key, fold, uniform
from gossamer.core.random.normal import normal_like, system_normal_like
from gossamer.core.random.private import words_of
from gossamer.core.solver import Draw, PerSampleSolver
from gossamer.core.types import Params
from gossamer.parts.solvers.sgd import SGD

Drawn = npt.NDArray[np.bool_]
"""Whether each sample of a client is in a batch."""

SPREAD = 2.0
"""Standard deviations of the size of a batch above its mean that its rows have room for."""


@dataclass(frozen=True)
class DPSGD(PerSampleSolver, SGD, PrivatePart):
    """Mini-batch SGD with differential privacy of each sample.

    Args:
        lr: learning rate
        epochs: local epochs per round, unless steps is given: steps of an expected batch, one for each
        steps: local steps per round, independent of the number of samples; none uses epochs
        batch: expected batch size; none takes all samples in every step
        momentum: heavy-ball momentum, reset in every round
        weight_decay: L2 weight decay
        clip: maximum norm of the gradient of one sample, over all tensors
        proximal: proximal term towards the received model (mu of FedProx)
        schedule: learning rate schedule: constant, exponential:RATE, steps:AT+AT,RATE or cosine
        noise_multiplier: standard deviation of the noise in each step, divided by clip
    """

    clip: float = 1.0
    noise_multiplier: float = 1.0

    def __post_init__(self) -> None:
        require(
            (0 < self.clip < math.inf, wrong(self, "clip", "must be a positive number")),
            (0 <= self.noise_multiplier < math.inf, wrong(self, "noise_multiplier", "must not be negative")),
        )
        super().__post_init__()

    def bind(self, context: Context) -> "BoundDPSGD":
        """Refuse networks without gradients of single samples, and learn where noise comes from."""
        super().bind(context)
        return BoundDPSGD(**{**vars(self), "secure_noise": context.network.secure_noise})

    @property
    def eager(self) -> bool:
        """Whether the operating system's generator is asked in every step."""
        return self._secure()

    def _secure(self) -> bool:
        return False

    def expected(self, samples: int) -> float:
        """Return the expected number of samples in a batch."""
        return float(min(self.batch or samples, samples))

    def draw(self, samples: int, key: Key) -> list[Draw]:
        """Return the samples of each step, drawn independently, and other samples up to a common number of rows."""
        rate, rows = self.expected(samples) / samples, self.rows(samples)
        steps = self.steps or self.epochs * self.batches(samples)
        return [_poisson(self._in(samples, rate, fold(key, "step", step)), rows) for step in range(steps)]

    def _in(self, samples: int, rate: float, key: Key) -> Drawn:
        """Return which samples are in a batch. The guarantee counts on nobody knowing it, as it does with noise."""
        if not self._secure():
            return uniform(key, samples, dtype=torch.float64).numpy() < rate
        return ((words_of(key, samples, True) >> 11 & (1 << 53) - 1).double() * 0.5**53).numpy() < rate

    def rows(self, samples: int) -> int:
        """Return the number of rows: 2 standard deviations above the expected number of samples, at most all."""
        mean = self.expected(samples)
        return min(samples, math.ceil(mean + SPREAD * math.sqrt(mean * (1 - mean / samples))))

    def weight(self, grads: Params) -> Tensor:
        """Return the factor that shortens the gradient of one sample to the bound."""
        sizes = torch.stack([torch.linalg.vector_norm(grads[name]) for name in sorted(grads)])
        size: Tensor = torch.linalg.vector_norm(sizes).clamp(min=self.clip)
        return self.clip / size

    def release(self, total: Params, expected: Tensor, key: Tensor, step: Tensor) -> Params:
        """Add the noise, and divide by the expected size of a batch."""
        deviation = self.noise_multiplier * self.clip
        if self._secure() and deviation:
            noise = system_normal_like(total)
            total = {name: (value.double() + deviation * noise[name]).to(value.dtype) for name, value in total.items()}
        elif deviation:
            total = tree.shift(total, normal_like(key, step, total), deviation)
        return tree.scale(total, 1 / expected)

    def limited(self, grads: Params) -> Params:
        """Return the gradient as it is: samples are clipped, not batches."""
        return grads

    def guarantee(self, participation: Participation) -> Guarantee:
        """Return the guarantee for the samples of every client: the largest epsilon that a client may have."""
        from gossamer.parts.privacy.accounting import dp_sgd

        require((self.noise_multiplier > 0, wrong(self, "noise_multiplier", "must be positive for a guarantee")))

        def of_client(samples: int) -> Guarantee:
            batch, steps = self.batch or samples, self.steps or self.epochs * self.batches(samples)
            return dp_sgd(self.noise_multiplier, batch, participation._replace(samples=samples), steps=steps)

        first, *others = (of_client(samples) for samples in self._exposed(participation.samples))
        sampling = f"{first.sampling}; or a larger client, if its epsilon is larger" if others else first.sampling
        about = first.unit, first.relation, first.mechanism, sampling, first.protects_from
        return LargestEpsilon(*about, (first, *others))

    def _exposed(self, fewest: int) -> list[int]:
        """Return the numbers of samples whose epsilon may be the largest, given the fewest samples of a client.

        More samples have a lower rate of sampling. With a number of steps, the fewest samples have the largest epsilon.
        With epochs, one sample above a multiple of the batch size takes another step in each: for noise multipliers
        above 0.5, the largest epsilon is within the next three of these numbers.
        """
        if self.steps is not None or self.batch is None or fewest < 1:
            return [fewest]
        return [fewest, *(self.batch * (self.batches(fewest) + more) + 1 for more in range(3))]


@dataclass(frozen=True)
class LargestEpsilon(Guarantee):
    """The weakest of several guarantees, one for each size of a client.

    Args:
        of: the guarantees
    """

    of: tuple[Guarantee, ...] = ()

    def epsilon(self, rounds: int, delta: float, again: int = 0) -> float:
        """Return the largest epsilon."""
        return max(each.epsilon(rounds, delta, again) for each in self.of)

    def cases(self) -> tuple[Guarantee, ...]:
        """Return them."""
        return self.of


@dataclass(frozen=True)
class BoundDPSGD(DPSGD):
    """``DPSGD`` in one run.

    Args:
        secure_noise: whether noise and batches come from the operating system, as all that protects anybody does, or
            from the client's key
    """

    secure_noise: bool = field(default=False, kw_only=True)

    def _secure(self) -> bool:
        return self.secure_noise


def _poisson(drawn: Drawn, rows: int) -> Draw:
    """Return a batch; the other samples follow in their order, up to a multiple of a number of rows."""
    count = int(drawn.sum())
    room = min(len(drawn), rows * max(1, -(-count // rows)))
    return Draw(np.argsort(~drawn, kind="stable")[:room].astype(np.int64, copy=False), count)
