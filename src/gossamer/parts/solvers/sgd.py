"""Stochastic gradient descent on a client.

One step from weights ``w`` with the loss gradient ``g``, in this order:

    g <- g + proximal (w - w_start)          the proximal term of FedProx, https://arxiv.org/abs/1812.06127
    g <- g min(1, clip / (|g| + 1e-6))       norm over all trained tensors together
    g <- g + weight_decay w
    v <- momentum v + g                      v starts at 0 in every round
    w <- w - lr factor(round) v
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from gossamer.core import tree
from gossamer.core.errors import require, wrong
from gossamer.core.exchange import Sections
from gossamer.core.solver import Gradient, Hyperparams
from gossamer.core.types import Clock, Params, State
from gossamer.parts.solvers.batches import InBatches
from gossamer.parts.solvers.schedules import Constant, LRSchedule


@dataclass(frozen=True)
class SGD(InBatches):
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

    lr: float = 0.1
    epochs: int = 5
    steps: int | None = None
    batch: int | None = 16
    momentum: float = 0.0
    weight_decay: float = 0.0
    clip: float | None = None
    proximal: float = 0.0
    schedule: LRSchedule = Constant()

    def __post_init__(self) -> None:
        require(
            (0 < self.lr < math.inf, wrong(self, "lr", "must be a positive number")),
            *self.batch_rules(),
            (0 <= self.momentum < 1, wrong(self, "momentum", "must be in [0, 1)")),
            (0 <= self.weight_decay < math.inf, wrong(self, "weight_decay", "must not be negative")),
            (self.clip is None or self.clip > 0, wrong(self, "clip", "must be positive")),
            (0 <= self.proximal < math.inf, wrong(self, "proximal", "must not be negative")),
        )

    def begin(self, start: Params, sections: Sections, memory: State, steps: int) -> State:
        """Return a copy of the received model, which steps may overwrite, with velocity 0."""
        rest = {"velocity": {name: torch.zeros_like(tensor) for name, tensor in start.items()}} if self.momentum else {}
        return {"params": tree.clone(start), **rest}

    def hyperparams(self, clock: Clock) -> dict[str, float]:
        """Return the learning rate of this round."""
        return {"rate": self.lr * self.schedule.factor(clock.round, clock.rounds)}

    def limited(self, grads: Params) -> Params:
        """Return the gradient with a norm of at most ``clip``."""
        if self.clip is None:
            return grads
        return tree.scale(grads, torch.clamp(self.clip / (tree.norm(grads) + 1e-6), max=1.0))

    def step(self, gradient: Gradient, start: Params, carry: State, hyperparams: Hyperparams) -> State:
        """Take one SGD step."""
        params: Params = carry["params"]
        grads, forward = gradient(params)
        if self.proximal:
            grads = tree.shift(grads, tree.subtract(params, {name: start[name] for name in grads}), self.proximal)
        grads = self.limited(grads)
        if self.weight_decay:
            grads = tree.shift(grads, params, self.weight_decay)
        if self.momentum:
            grads = tree.shift(grads, carry["velocity"], self.momentum)
        moved = _descend({name: params[name] for name in grads}, grads, hyperparams["rate"])
        still = {"velocity": {**carry["velocity"], **grads}} if self.momentum else {}
        return {"params": {**params, **forward, **moved}, **still}


def _descend(params: Params, grads: Params, rate: float | Tensor) -> Params:
    """Take a step, in place if the rate is a number. A compiled step, with tensors, is fused by the compiler."""
    if isinstance(rate, Tensor):
        return tree.shift(params, grads, -rate)
    tree.shift_(params, grads, -rate)
    return params
