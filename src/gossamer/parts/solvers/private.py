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
from typing import ClassVar, Literal, Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from gossamer.core.errors import require, wrong
from gossamer.core.exchange import Context, Sections
from gossamer.core.privacy import Guarantee, Participation
from gossamer.core.random import Key, fold, uniform
from gossamer.core.random.normal import normal, system_normal
from gossamer.core.random.private import words_of
from gossamer.core.solver import Draw, Gradient, Hyperparams
from gossamer.core.types import Clock, State
from gossamer.parts.solvers.sgd import Descent

Drawn = npt.NDArray[np.bool_]
"""Whether each sample of a client is in a batch."""

SPREAD = 2.0
"""Standard deviations of the size of a batch above its mean that its rows have room for."""


@dataclass(frozen=True)
class DPSGD(Descent):
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

    uses: ClassVar[Literal["samples"]] = "samples"

    clip: float = 1.0
    noise_multiplier: float = 1.0
    secure_noise: bool = field(default=False, init=False, repr=False, compare=False)
    """Whether noise and batches come from the operating system, as all that protects anybody does, or from a key."""

    def __post_init__(self) -> None:
        require(
            (0 < self.clip < math.inf, wrong(self, "clip", "must be a positive number")),
            (0 <= self.noise_multiplier < math.inf, wrong(self, "noise_multiplier", "must not be negative")),
        )
        require(*self.rules())

    def bind(self, context: Context) -> Self:
        """Learn where noise comes from in this run."""
        return self.filled(secure_noise=context.network.secure_noise)

    # Sampling.

    @property
    def eager(self) -> bool:
        """Whether the operating system's generator is asked in every step."""
        return self.secure_noise

    def expected(self, samples: int) -> float:
        """Return the expected number of samples in a batch."""
        return float(min(self.batch or samples, samples))

    def rows(self, samples: int) -> int:
        """Return the number of rows: 2 standard deviations above the expected number of samples, at most all."""
        mean = self.expected(samples)
        return min(samples, math.ceil(mean + SPREAD * math.sqrt(mean * (1 - mean / samples))))

    def draw(self, samples: int, key: Key) -> list[Draw]:
        """Return the samples of each step, drawn independently, and other samples up to a common number of rows."""
        rate, rows, draws = self.expected(samples) / samples, self.rows(samples), list[Draw]()
        for step in range(self.steps or self.epochs * self.batches(samples)):
            drawn = self._in(samples, rate, fold(key, "step", step))
            count = int(drawn.sum())
            room = min(samples, rows * max(1, -(-count // rows)))  # the other samples follow in their order
            draws.append(Draw(np.argsort(~drawn, kind="stable")[:room].astype(np.int64, copy=False), count))
        return draws

    def _in(self, samples: int, rate: float, key: Key) -> Drawn:
        """Return which samples are in a batch. The guarantee counts on nobody knowing it, as it does with noise."""
        if not self.secure_noise:
            return uniform(key, samples, dtype=torch.float64).numpy() < rate
        return ((words_of(key, samples, True) >> 11 & (1 << 53) - 1).double() * 0.5**53).numpy() < rate

    def plan(self, samples: int, key: Key) -> list[np.ndarray]:
        """Return the rows of each draw."""
        return [drawn.rows for drawn in self.draw(samples, key)]

    # Steps.

    def begin(self, start: Tensor, sections: Sections, memory: State, steps: int) -> State:
        """Return a copy of the received parameters, with velocity 0."""
        return self.begun(start)

    def hyperparams(self, clock: Clock) -> dict[str, float]:
        """Return the learning rate of this round."""
        return {"rate": self.rate(clock)}

    def weight(self, grads: Tensor) -> Tensor:
        """Return the factor that shortens the gradient of each sample to the bound."""
        sizes: Tensor = torch.linalg.vector_norm(grads, dim=-1)
        return self.clip / sizes.clamp(min=self.clip)

    def release(self, total: Tensor, expected: Tensor, key: Tensor, step: Tensor) -> Tensor:
        """Add the noise, and divide by the expected size of a batch."""
        deviation, n = self.noise_multiplier * self.clip, total.shape[-1]
        if self.secure_noise and deviation:
            noise = self.where_trained(system_normal(n, total.device), 0.0)
            total = (total.double() + deviation * noise).to(total.dtype)
        elif deviation:
            total = total + deviation * self.where_trained(normal(key, step, n, total.dtype), 0.0)
        return total * (1 / expected)

    def step(self, gradient: Gradient, start: Tensor, carry: State, hyperparams: Hyperparams) -> State:
        """Take a step of SGD with the released gradient, of which samples are clipped and not the batch."""
        grads, params = gradient(carry["params"])
        return self.moved(grads, params, start, carry, hyperparams["rate"], limited=False)

    # Accounting.

    @property
    def private(self) -> bool:
        """Whether there is noise."""
        return self.noise_multiplier > 0

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
