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

from gossamer.core.errors import require, wrong
from gossamer.core.exchange import Context, Sections
from gossamer.core.solver import Gradient, Hyperparams
from gossamer.core.types import Clock, Params, State
from gossamer.parts.solvers.batches import InBatches
from gossamer.parts.solvers.schedules import Constant, LRSchedule


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
            *self.batch_rules(),
            (0 <= self.beta < 1, wrong(self, "beta", "must be in [0, 1)")),
            (0 <= self.beta2 < 1, wrong(self, "beta2", "must be in [0, 1)")),
            (self.epsilon > 0, wrong(self, "epsilon", "must be positive")),
            (self.warmup >= 0, wrong(self, "warmup", "must not be negative")),
        )

    def bind(self, context: Context) -> "BoundAdam":
        """Return the solver with the names of the tensors that have moments."""
        super().bind(context)
        return BoundAdam(**vars(self), trained=context.trained)

    def begin(self, start: Params, sections: Sections, memory: State, steps: int) -> State:
        """Return the received model with both moments at 0."""
        some = next(iter(start.values()))
        zeros = {name: torch.zeros_like(tensor) for name, tensor in self.moving(start).items()}
        step = torch.zeros((), dtype=torch.float64, device=some.device)
        return {"params": start, "mean": zeros, "square": dict(zeros), "step": step}

    def moving(self, start: Params) -> Params:
        """Return the tensors that have moments: all floating-point ones, as long as the trained ones are not known."""
        return {name: tensor for name, tensor in start.items() if tensor.is_floating_point()}

    def hyperparams(self, clock: Clock) -> dict[str, float]:
        """Return the learning rate of this round."""
        return {"rate": self.lr * self.schedule.factor(clock.round, clock.rounds)}

    def step(self, gradient: Gradient, start: Params, carry: State, hyperparams: Hyperparams) -> State:
        """Take one Adam step."""
        params: Params = carry["params"]
        grads, forward = gradient(params)
        step = carry["step"] + 1
        shrink, shrink2 = 1 - self.beta**step, 1 - self.beta2**step
        rate = hyperparams["rate"] * (step / self.warmup).clamp(max=1) if self.warmup else hyperparams["rate"]
        mean = {name: self.beta * carry["mean"][name] + (1 - self.beta) * g for name, g in grads.items()}
        square = {name: self.beta2 * carry["square"][name] + (1 - self.beta2) * g * g for name, g in grads.items()}
        moved = {
            name: params[name] - rate * (m / shrink.to(m)) / ((square[name] / shrink2.to(m)).sqrt() + self.epsilon)
            for name, m in mean.items()
        }
        return {
            "params": {**params, **forward, **moved},
            "mean": {**carry["mean"], **mean},
            "square": {**carry["square"], **square},
            "step": step,
        }


@dataclass(frozen=True)
class BoundAdam(Adam):
    """``Adam`` for one network.

    Args:
        trained: the names of the trained tensors; running statistics and frozen weights have no moments
    """

    trained: tuple[str, ...] = ()

    def moving(self, start: Params) -> Params:
        """Return the trained tensors that the client holds."""
        return {name: start[name] for name in self.trained if name in start}
