"""Stochastic gradient descent, as clients run it.

One step from weights ``w`` with the loss gradient ``g``, in this order:

    g <- g + proximal (w - w_start)          FedProx's term: part of the loss
    g <- g min(1, clip / (|g| + 1e-6))       over all trained tensors together
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
from gossamer.parts.solvers.schedules import Constant, Schedule


@dataclass(frozen=True)
class SGD(InBatches):
    """Mini-batch SGD for a number of epochs or of steps.

    Args:
        lr: learning rate
        epochs: passes over the client's samples in each round, unless steps are given
        steps: steps in each round, however many samples the client has; none means epochs count
        batch: samples in a batch, the last of an epoch may be smaller; none means all samples at once
        momentum: heavy-ball momentum, fresh in every round
        weight_decay: strength of L2 decay
        clip: largest norm of the gradient over all tensors; none means no clipping
        proximal: strength of the pull back to where the round began (FedProx's mu)
        schedule: how the learning rate changes by round: constant, exponential:RATE, steps:AT+AT,RATE or cosine
    """

    lr: float = 0.1
    epochs: int = 5
    steps: int | None = None
    batch: int | None = 16
    momentum: float = 0.0
    weight_decay: float = 0.0
    clip: float | None = None
    proximal: float = 0.0
    schedule: Schedule = Constant()

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
        """From where the round starts, at rest; in memory of its own, which steps may write to."""
        rest = {"velocity": {name: torch.zeros_like(tensor) for name, tensor in start.items()}} if self.momentum else {}
        return {"params": tree.clone(start), **rest}

    def hyperparams(self, clock: Clock) -> dict[str, float]:
        """This round's learning rate."""
        return {"rate": self.lr * self.schedule.factor(clock.round, clock.rounds)}

    def step(self, gradient: Gradient, start: Params, carry: State, hyperparams: Hyperparams) -> State:
        """One step of the rule above."""
        params: Params = carry["params"]
        grads, forward = gradient(params)
        if self.proximal:
            grads = tree.shift(grads, tree.subtract(params, {name: start[name] for name in grads}), self.proximal)
        if self.clip is not None:
            shrink = torch.clamp(self.clip / (tree.norm(grads) + 1e-6), max=1.0)
            grads = tree.scale(grads, shrink)
        if self.weight_decay:
            grads = tree.shift(grads, params, self.weight_decay)
        if self.momentum:
            grads = tree.shift(grads, carry["velocity"], self.momentum)
        moved = _descend({name: params[name] for name in grads}, grads, hyperparams["rate"])
        still = {"velocity": {**carry["velocity"], **grads}} if self.momentum else {}
        return {"params": {**params, **forward, **moved}, **still}


def _descend(params: Params, grads: Params, rate: float | Tensor) -> Params:
    """In place where the rate is a plain number; a compiler, which is given tensors, finds that out by itself."""
    if isinstance(rate, Tensor):
        return tree.shift(params, grads, -rate)
    tree.shift_(params, grads, -rate)
    return params
