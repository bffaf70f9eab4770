"""Adam (Kingma and Ba, 2015), fresh in every round.

One step from weights ``w`` with the loss gradient ``g``, the t-th of the round:

    m <- beta m + (1 - beta) g              m and v start at 0
    v <- beta2 v + (1 - beta2) g**2
    w <- w - lr (m / (1 - beta**t)) / (sqrt(v / (1 - beta2**t)) + epsilon)
"""

import math
from dataclasses import dataclass

import torch

from gossamer.core.errors import require, wrong
from gossamer.core.exchange import Sections
from gossamer.core.solver import Gradient, Hyperparams
from gossamer.core.types import Clock, Params, State
from gossamer.parts.solvers.batches import InBatches


@dataclass(frozen=True)
class Adam(InBatches):
    """Mini-batch Adam for a number of epochs or of steps.

    Args:
        lr: learning rate
        epochs: passes over the client's samples in each round, unless steps are given
        steps: steps in each round, however many samples the client has; none means epochs count
        batch: samples in a batch, the last of an epoch may be smaller; none means all samples at once
        beta: how much of the mean gradient is kept from step to step
        beta2: how much of the mean square is kept from step to step
        epsilon: added to the root of the mean square
    """

    lr: float = 0.001
    epochs: int = 5
    steps: int | None = None
    batch: int | None = 16
    beta: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8

    def __post_init__(self) -> None:
        require(
            (0 < self.lr < math.inf, wrong(self, "lr", "must be a positive number")),
            *self.batch_rules(),
            (0 <= self.beta < 1, wrong(self, "beta", "must be in [0, 1)")),
            (0 <= self.beta2 < 1, wrong(self, "beta2", "must be in [0, 1)")),
            (self.epsilon > 0, wrong(self, "epsilon", "must be positive")),
        )

    def begin(self, start: Params, sections: Sections, memory: State, steps: int) -> State:
        """From where the round starts, with nothing averaged yet."""
        some = next(iter(start.values()))
        zeros = {name: torch.zeros_like(tensor) for name, tensor in start.items() if tensor.is_floating_point()}
        step = torch.zeros((), dtype=torch.float64, device=some.device)
        return {"params": start, "mean": zeros, "square": dict(zeros), "step": step}

    def hyperparams(self, clock: Clock) -> dict[str, float]:
        """The learning rate."""
        return {"rate": self.lr}

    def step(self, gradient: Gradient, start: Params, carry: State, hyperparams: Hyperparams) -> State:
        """One step of the rule above."""
        params: Params = carry["params"]
        grads, forward = gradient(params)
        step = carry["step"] + 1
        shrink, shrink2 = 1 - self.beta**step, 1 - self.beta2**step
        mean = {name: self.beta * carry["mean"][name] + (1 - self.beta) * g for name, g in grads.items()}
        square = {name: self.beta2 * carry["square"][name] + (1 - self.beta2) * g * g for name, g in grads.items()}
        moved = {
            name: params[name]
            - hyperparams["rate"] * (m / shrink.to(m)) / ((square[name] / shrink2.to(m)).sqrt() + self.epsilon)
            for name, m in mean.items()
        }
        return {
            "params": {**params, **forward, **moved},
            "mean": {**carry["mean"], **mean},
            "square": {**carry["square"], **square},
            "step": step,
        }
