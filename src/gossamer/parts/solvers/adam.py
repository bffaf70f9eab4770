"""Adam with moments that restart in every round.

Kingma and Ba, Adam: A Method for Stochastic Optimization, ICLR 2015, https://arxiv.org/abs/1412.6980.

Step t of a round, from weights ``w`` with the loss gradient ``g``:

    m <- beta m + (1 - beta) g              m and v start at 0
    v <- beta2 v + (1 - beta2) g**2
    w <- w - lr factor(round) min(1, t / warmup) (m / (1 - beta**t)) / (sqrt(v / (1 - beta2**t)) + epsilon)

The moments of the first steps of a round are noisy: a warm-up makes these steps short.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from gossamer.core.errors import require, wrong
from gossamer.core.exchange import Sections
from gossamer.core.solver import Gradient, Hyperparams
from gossamer.core.types import Clock, State
from gossamer.parts.solvers.schedules import Constant, InBatches, LRSchedule, batch_rules


@dataclass(frozen=True)
class Adam(InBatches):
    """Mini-batch Adam for a number of epochs or steps per round.

    Args:
        lr: learning rate
        epochs: local epochs per round, unless steps is given
        steps: local steps per round, independent of the number of samples; none uses epochs
        batch: batch size; the last batch of an epoch may be smaller; none takes all samples
        beta: decay rate of the first moment
        beta2: decay rate of the second moment
        epsilon: constant added to the square root of the second moment
        warmup: steps of a round over which the learning rate rises linearly; 0 disables it
        schedule: learning rate schedule: constant, exponential:RATE, steps:AT+AT,RATE or cosine
    """

    lr: float = 0.001
    epochs: int = 5
    steps: int | None = None
    batch: int | None = 16
    beta: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    warmup: int = 0
    schedule: LRSchedule = Constant()

    def __post_init__(self) -> None:
        require(
            (0 < self.lr < math.inf, wrong(self, "lr", "must be a positive number")),
            *batch_rules(self),
            (0 <= self.beta < 1, wrong(self, "beta", "must be in [0, 1)")),
            (0 <= self.beta2 < 1, wrong(self, "beta2", "must be in [0, 1)")),
            (self.epsilon > 0, wrong(self, "epsilon", "must be positive")),
            (self.warmup >= 0, wrong(self, "warmup", "must not be negative")),
        )

    def begin(self, start: Tensor, sections: Sections, memory: State, steps: int) -> State:
        """Return the received parameters with both moments and the number of steps at 0."""
        step = torch.zeros_like(start[..., :1], dtype=torch.float64)
        return {"params": start, "mean": torch.zeros_like(start), "square": torch.zeros_like(start), "step": step}

    def hyperparams(self, clock: Clock) -> dict[str, float]:
        """Return the learning rate of this round."""
        return {"rate": self.lr * self.schedule.factor(clock.round, clock.rounds)}

    def step(self, gradient: Gradient, start: Tensor, carry: State, hyperparams: Hyperparams) -> State:
        """Take one Adam step. Entries that are not trained have no moments, and stay."""
        grads, params = gradient(carry["params"])
        step = carry["step"] + 1
        # In float64 until here: in float32, 1 - beta2**t of the first steps has few digits.
        shrink, shrink2 = (1 - self.beta**step).to(grads), (1 - self.beta2**step).to(grads)
        rate = hyperparams["rate"]
        if self.warmup:
            rate = (rate * (step / self.warmup).clamp(max=1)).to(grads)
        mean = self.beta * carry["mean"] + (1 - self.beta) * grads
        square = self.beta2 * carry["square"] + (1 - self.beta2) * grads * grads
        moved = params - rate * (mean / shrink) / ((square / shrink2).sqrt() + self.epsilon)
        return {"params": moved, "mean": mean, "square": square, "step": step}
