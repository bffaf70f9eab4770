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

import numpy as np
import torch
from torch import Tensor

from gossamer import tree
from gossamer.errors import require
from gossamer.random import Key, fold, permutation
from gossamer.solvers.base import Gradient, Now
from gossamer.solvers.schedules import Constant, Schedule
from gossamer.types import Clock, Params, State


@dataclass(frozen=True)
class SGD:
    """Mini-batch SGD for a number of epochs or of steps.

    lr: learning rate
    epochs: passes over the client's samples in each round (ignored when steps are given)
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
            (0 < self.lr < math.inf, f"SGD.lr must be a positive number, got {self.lr}"),
            (self.epochs >= 1, f"SGD.epochs must be at least 1, got {self.epochs}"),
            (self.steps is None or self.steps >= 1, f"SGD.steps must be at least 1, got {self.steps}"),
            (self.batch is None or self.batch >= 1, f"SGD.batch must be at least 1, got {self.batch}"),
            (0 <= self.momentum < 1, f"SGD.momentum must be in [0, 1), got {self.momentum}"),
            (0 <= self.weight_decay < math.inf, f"SGD.weight_decay must not be negative, got {self.weight_decay}"),
            (self.clip is None or self.clip > 0, f"SGD.clip must be positive, got {self.clip}"),
            (0 <= self.proximal < math.inf, f"SGD.proximal must not be negative, got {self.proximal}"),
        )

    def batches(self, samples: int) -> int:
        """How many batches one pass over the samples has."""
        return -(-samples // (self.batch or samples))

    def plan(self, samples: int, key: Key) -> list[np.ndarray]:
        """Each epoch a fresh order, cut into batches: no sample is dropped, none comes twice in an epoch."""
        steps = self.steps or self.epochs * self.batches(samples)
        plan: list[np.ndarray] = []
        for epoch in range(-(-steps // self.batches(samples))):
            order = permutation(fold(key, "epoch", epoch), samples)
            plan += [order[i : i + (self.batch or samples)] for i in range(0, samples, self.batch or samples)]
        return plan[:steps]

    def begin(self, start: Params, state: State) -> State:
        """From where the round starts, at rest."""
        rest = {"velocity": {name: torch.zeros_like(tensor) for name, tensor in start.items()}} if self.momentum else {}
        return {"params": start, **rest}

    def now(self, clock: Clock) -> dict[str, float]:
        """This round's learning rate."""
        return {"rate": self.lr * self.schedule.factor(clock.round, clock.rounds)}

    def step(self, gradient: Gradient, start: Params, carry: State, now: Now) -> State:
        """One step of the rule above."""
        params: Params = carry["params"]
        grads, forward = gradient(params)
        if self.proximal:
            grads = {name: g + self.proximal * (params[name] - start[name]) for name, g in grads.items()}
        if self.clip is not None:
            shrink = torch.clamp(self.clip / (tree.norm(grads) + 1e-6), max=1.0)
            grads = {name: g * shrink for name, g in grads.items()}
        if self.weight_decay:
            grads = {name: g + self.weight_decay * params[name] for name, g in grads.items()}
        if self.momentum:
            grads = {name: self.momentum * carry["velocity"][name] + g for name, g in grads.items()}
        moved = {name: _descend(params[name], g, now["rate"]) for name, g in grads.items()}
        still = {"velocity": {**carry["velocity"], **grads}} if self.momentum else {}
        return {"params": {**params, **forward, **moved}, **still}

    def end(self, carry: State) -> State:
        """SGD starts afresh in every round."""
        return {}


def _descend(tensor: Tensor, gradient: Tensor, rate: float | Tensor) -> Tensor:
    """One pass over memory where the rate is a plain number; a compiler makes one of the other as well."""
    return tensor - rate * gradient if isinstance(rate, Tensor) else torch.sub(tensor, gradient, alpha=rate)
