"""Stochastic gradient descent on a client, and what solvers share that take steps of it.

One step from weights ``w`` with the loss gradient ``g``, in this order:

    g <- g + proximal (w - w_start)          the proximal term of FedProx, https://arxiv.org/abs/1812.06127
    g <- g min(1, clip / (|g| + 1e-6))       norm over all trained tensors together
    g <- g + weight_decay w
    v <- momentum v + g                      v starts at 0 in every round
    w <- w - lr factor(round) v
"""

import math
from abc import ABC
from dataclasses import dataclass

import torch
from torch import Tensor

from gossamer.core.errors import require, wrong
from gossamer.core.exchange import Sections
from gossamer.core.solver import Gradient, Hyperparams, descended
from gossamer.core.types import Clock, State
from gossamer.parts.solvers.schedules import Batched, Constant, InBatches, LRSchedule, batch_rules


@dataclass(frozen=True)
class Descent(Batched, ABC):
    """Base of solvers that take steps of SGD: its fields, and the arithmetic of a step.

    Args:
        lr: learning rate
        epochs: local epochs per round, unless steps is given
        steps: local steps per round, independent of the number of samples; none uses epochs
        batch: batch size; the last batch of an epoch may be smaller; none takes all samples
        momentum: heavy-ball momentum, reset in every round
        weight_decay: L2 weight decay
        clip: maximum norm of the gradient over all tensors; none disables clipping
        proximal: proximal term towards the received model (mu of FedProx)
        schedule: learning rate schedule: constant, exponential:RATE, steps:AT+AT,RATE or cosine
    """

    lr: float = 0.1
    epochs: int = 5
    steps: int | None = None
    batch: int | None = 16
    momentum: float = 0.0
    weight_decay: float = 0.0
    clip: float | None = None
    proximal: float = 0.0
    schedule: LRSchedule = Constant()

    def rules(self) -> list[tuple[bool, str]]:
        """Return the checks of these fields, each with its error message."""
        return [
            (0 < self.lr < math.inf, wrong(self, "lr", "must be a positive number")),
            *batch_rules(self),
            (0 <= self.momentum < 1, wrong(self, "momentum", "must be in [0, 1)")),
            (0 <= self.weight_decay < math.inf, wrong(self, "weight_decay", "must not be negative")),
            (self.clip is None or self.clip > 0, wrong(self, "clip", "must be positive")),
            (0 <= self.proximal < math.inf, wrong(self, "proximal", "must not be negative")),
        ]

    def rate(self, clock: Clock) -> float:
        """Return the learning rate of a round."""
        return self.lr * self.schedule.factor(clock.round, clock.rounds)

    def begun(self, start: Tensor) -> State:
        """Return a copy of the received parameters, which steps may overwrite, with velocity 0."""
        return {"params": start.clone()} | ({"velocity": torch.zeros_like(start)} if self.momentum else {})

    def moved(
        self,
        grads: Tensor,
        params: Tensor,
        start: Tensor,
        carry: State,
        rate: float | Tensor,
        *,
        limited: bool = True,
    ) -> State:
        """Return ``params`` and ``velocity`` after a step; without ``limited``, the gradient is not clipped."""
        if self.proximal:
            grads = torch.add(grads, self.where_trained(params - start, 0.0), alpha=self.proximal)
        if self.clip is not None and limited:
            grads = grads * torch.clamp(self.clip / (grads.norm(dim=-1, keepdim=True) + 1e-6), max=1.0)
        if self.weight_decay:
            grads = torch.add(grads, self.where_trained(params, 0.0), alpha=self.weight_decay)
        if self.momentum:
            grads = torch.add(grads, carry["velocity"], alpha=self.momentum)
        return {"params": descended(params, grads, rate)} | ({"velocity": grads} if self.momentum else {})

    def stepped(self, gradient: Gradient, start: Tensor, carry: State, rate: float | Tensor) -> State:
        """Return ``params`` and ``velocity`` after a step at ``carry["params"]``."""
        if not (self.proximal or self.clip or self.weight_decay or self.momentum):
            return {"params": gradient.descend(carry["params"], rate)}
        return self.moved(*gradient(carry["params"]), start, carry, rate)


@dataclass(frozen=True)
class PlainDescent(InBatches, Descent, ABC):
    """Base of those with the batches and the learning rate of ``SGD``."""

    def hyperparams(self, clock: Clock) -> dict[str, float]:
        """Return the learning rate of this round."""
        return {"rate": self.rate(clock)}


@dataclass(frozen=True)
class SGD(PlainDescent):
    """Mini-batch SGD for a number of epochs or steps per round.

    Args:
        lr: learning rate
        epochs: local epochs per round, unless steps is given
        steps: local steps per round, independent of the number of samples; none uses epochs
        batch: batch size; the last batch of an epoch may be smaller; none takes all samples
        momentum: heavy-ball momentum, reset in every round
        weight_decay: L2 weight decay
        clip: maximum norm of the gradient over all tensors; none disables clipping
        proximal: proximal term towards the received model (mu of FedProx)
        schedule: learning rate schedule: constant, exponential:RATE, steps:AT+AT,RATE or cosine
    """

    def __post_init__(self) -> None:
        require(*self.rules())

    def begin(self, start: Tensor, sections: Sections, memory: State, steps: int) -> State:
        """Return a copy of the received parameters, with velocity 0."""
        return self.begun(start)

    def step(self, gradient: Gradient, start: Tensor, carry: State, hyperparams: Hyperparams) -> State:
        """Take one SGD step."""
        return self.stepped(gradient, start, carry, hyperparams["rate"])
