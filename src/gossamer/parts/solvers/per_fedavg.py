"""Per-FedAvg (Fallah et al., 2020), first order: a model that is good after one step on a client's own samples.

One step of training takes two batches. From weights ``w``, with the loss gradient ``g`` of a batch,

    v <- w - inner g(w)                      on the first batch: a look ahead
    w <- w - lr factor(round) g(v)           on the second: the gradient found there, applied where the look began

The exact method multiplies ``g(v)`` by (identity - inner Hessian of the loss at w); the first order leaves that out.
The second line is a step of SGD, with all that SGD has; the first is a plain step, at the same rate in every round.
Both forward passes change running statistics.
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
    """SGD with gradients from one step ahead; each of its steps takes two batches.

    Args:
        lr: learning rate
        epochs: passes over the client's samples in each round, unless steps are given
        steps: steps in each round, each on two batches, however many samples there are; none means epochs count
        batch: samples in a batch, the last of an epoch may be smaller; none means all samples at once
        momentum: heavy-ball momentum, fresh in every round
        weight_decay: strength of L2 decay
        clip: largest norm of the gradient over all tensors; none means no clipping
        proximal: strength of the pull back to where the round began
        schedule: how the learning rate changes by round: constant, exponential:RATE, steps:AT+AT,RATE or cosine
        inner: rate of the step ahead; 0 is SGD on every second batch
    """

    inner: float = 0.05

    def __post_init__(self) -> None:
        super().__post_init__()
        require((0 <= self.inner < math.inf, wrong(self, "inner", "must be a number from 0 on")))

    def plan(self, samples: int, key: Key) -> list[np.ndarray]:
        """The batches of SGD, two for each step; where the epochs make an odd number, one more of a fresh order."""
        steps = self.steps or math.ceil(self.epochs * self.batches(samples) / 2)
        return SGD(steps=2 * steps, batch=self.batch).plan(samples, key)

    def begin(self, start: Params, sections: Sections, memory: State, steps: int) -> State:
        """As SGD, with room for the model one step ahead, and a count of batches."""
        turn = torch.zeros((), dtype=torch.int64, device=tree.device(start))
        return {**super().begin(start, sections, memory, steps), "ahead": tree.clone(start), "turn": turn}

    def step(self, gradient: Gradient, start: Params, carry: State, hyperparams: Hyperparams) -> State:
        """A look ahead, or the step that follows one."""
        look = when(carry["turn"] % 2 == 0, hyperparams)
        at = either(look, carry["params"], carry["ahead"])
        grads, forward = gradient(at)
        ahead, moved = carry["ahead"], carry
        if look is not False:
            ahead = {**at, **forward, **{name: at[name] - self.inner * g for name, g in grads.items()}}
        if look is not True:
            moved = super().step(lambda _: (grads, forward), start, carry, hyperparams)
        kept = [name for name in ("params", "velocity") if name in carry]
        return {
            **{name: either(look, carry[name], moved[name]) for name in kept},
            "ahead": either(look, ahead, carry["ahead"]),
            "turn": carry["turn"] + 1,
        }
