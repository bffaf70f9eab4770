"""Per-FedAvg, first order: train a global model that adapts to a client in one local step.

Fallah et al., Personalized Federated Learning: A Meta-Learning Approach, NeurIPS 2020,
https://arxiv.org/abs/2002.07948.

One training step takes two batches. From weights ``w``, with the loss gradient ``g`` of a batch,

    v <- w - inner g(w)                      on the first batch: the inner step
    w <- w - lr factor(round) g(v)           on the second batch: the outer step, with the gradient at v

The exact method multiplies ``g(v)`` by (identity - inner Hessian of the loss at w). The first-order method omits this
factor. The outer step is a step of ``SGD`` with all its fields. The inner step is plain gradient descent at a constant
rate. Both forward passes update running statistics.
"""

import math
from dataclasses import dataclass

import numpy as np
import torch

from gossamer.core import tree
from gossamer.core.errors import require, wrong
from gossamer.core.exchange import Sections
from gossamer.core.random import Key
from gossamer.core.solver import Gradient, Hyperparams
from gossamer.core.types import Params, State
from gossamer.parts.solvers.sgd import SGD
from gossamer.parts.solvers.two_models import either, when


@dataclass(frozen=True)
class PerFedAvg(SGD):
    """SGD with gradients taken after an inner step. Each step takes two batches.

    Args:
        lr: learning rate of the outer step
        epochs: local epochs per round, unless steps is given
        steps: local steps per round, each on two batches; none uses epochs
        batch: batch size; the last batch of an epoch may be smaller; none takes all samples
        momentum: heavy-ball momentum, reset in every round
        weight_decay: L2 weight decay
        clip: maximum norm of the gradient over all tensors; none disables clipping
        proximal: proximal term towards the received model
        schedule: learning rate schedule: constant, exponential:RATE, steps:AT+AT,RATE or cosine
        inner: learning rate of the inner step; 0 is SGD on every second batch
    """

    inner: float = 0.05

    def __post_init__(self) -> None:
        super().__post_init__()
        require((0 <= self.inner < math.inf, wrong(self, "inner", "must be finite and not negative")))

    def plan(self, samples: int, key: Key) -> list[np.ndarray]:
        """Return the batches of SGD, two per step. An odd number of batches is extended from a new permutation."""
        steps = self.steps or math.ceil(self.epochs * self.batches(samples) / 2)
        return SGD(steps=2 * steps, batch=self.batch).plan(samples, key)

    def begin(self, start: Params, sections: Sections, memory: State, steps: int) -> State:
        """Return the state of SGD with the model after the inner step and the number of batches used."""
        turn = torch.zeros((), dtype=torch.int64, device=tree.device(start))
        return {**super().begin(start, sections, memory, steps), "ahead": tree.clone(start), "turn": turn}

    def step(self, gradient: Gradient, start: Params, carry: State, hyperparams: Hyperparams) -> State:
        """Take an inner step on an even batch, or an outer step on an odd batch."""
        is_inner = when(carry["turn"] % 2 == 0, hyperparams)
        at = either(is_inner, carry["params"], carry["ahead"])
        grads, forward = gradient(at)
        ahead, moved = carry["ahead"], carry
        if is_inner is not False:
            ahead = {**at, **forward, **{name: at[name] - self.inner * g for name, g in grads.items()}}
        if is_inner is not True:
            moved = super().step(lambda _: (grads, forward), start, carry, hyperparams)
        kept = [name for name in ("params", "velocity") if name in carry]
        return {
            **{name: either(is_inner, carry[name], moved[name]) for name in kept},
            "ahead": either(is_inner, ahead, carry["ahead"]),
            "turn": carry["turn"] + 1,
        }
