"""Zeroth-order training: a client evaluates its loss along random directions, and computes no gradient.

Li et al., Achieving Dimension-Free Communication in Federated Learning via Zeroth-Order Optimization, ICLR 2025,
https://arxiv.org/abs/2405.15861 (DeComFL).

In local step k, with the loss F of one batch and perturbations p = 1 to P along directions z(k, p):

    central    c = (F(w + mu z) - F(w - mu z)) / (2 mu)      2 P evaluations per step
    forward    c = (F(w + mu z) - F(w)) / mu                 P + 1 evaluations per step
    w <- w - lr factor(round) / P sum_p c(k, p) z(k, p)

For mu -> 0, c is the product of the gradient g with z, and c z is an unbiased estimate of g in d dimensions:

    rademacher    E|c z - g|^2 = (d - 1) |g|^2        the default
    gauss         E|c z - g|^2 = (d + 1) |g|^2        the authors' code

Central differences are exact for a quadratic loss. Forward differences add mu/2 z'Hz, which is independent of the sign
of z, so that its product with z has mean 0: the bias of both is of the order of mu^2. With ``clip``, estimates are
biased. The directions are those of the round (``gossamer.core.random.directions``), the same for all clients with a
``common`` codec. So ``gossamer.parts.codecs.Seeds`` sends K P scalars, and the server decodes their mean.

A client with K = 1 needs no second copy of the weights. Directions are drawn tensor by tensor where they are used, so
memory is that of inference, and the tensors of one layer.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from gossamer.core import tree
from gossamer.core.errors import require, wrong
from gossamer.core.exchange import Context, Sections
from gossamer.core.random.directions import DirectionKind
from gossamer.core.solver import Hyperparams, Loss, Span, StepKeys
from gossamer.core.types import Params, State
from gossamer.parts.solvers.differences import Along, DifferenceSolver, clipped, numbered
from gossamer.parts.solvers.schedules import Constant, LRSchedule


@dataclass(frozen=True)
class ZerothOrder(DifferenceSolver):
    """Steps along random directions, by differences of losses.

    Args:
        lr: learning rate. The estimate has d times the variance of the gradient, so it is smaller than that of SGD
        steps: local steps per round (K)
        perturbations: directions per step (P)
        mu: length of a perturbation, in units of the direction
        batch: batch size; none takes all samples
        difference: central, or forward, which has fewer evaluations
        directions: distribution of the entries of a direction: rademacher or gauss
        clip: largest magnitude of a difference quotient; none disables clipping
        schedule: learning rate schedule: constant, exponential:RATE, steps:AT+AT,RATE or cosine
    """

    lr: float = 1e-3
    steps: int = 1
    perturbations: int = 10
    mu: float = 1e-3
    batch: int | None = 32
    difference: Literal["central", "forward"] = "central"
    directions: DirectionKind = "rademacher"
    clip: float | None = None
    schedule: LRSchedule = Constant()

    def __post_init__(self) -> None:
        differences = ("central", "forward")
        require(
            *self.rules(),
            (self.perturbations >= 1, wrong(self, "perturbations", "must be at least 1")),
            (self.difference in differences, wrong(self, "difference", "must be central or forward")),
        )

    def bind(self, context: Context) -> "BoundZerothOrder":
        """Return the solver with the numbers of the tensors. Without a codec of scalars, every step moves the model."""
        super().bind(context)
        moves = self.steps > 1 or not context.exchange.codec.takes_carry(self)
        return BoundZerothOrder(**vars(self), layers=numbered(context), moves=moves)

    @property
    def span(self) -> Span:
        """K P directions."""
        return Span(self.directions, self.steps * self.perturbations, -self.lr / self.perturbations)

    @property
    def evaluations(self) -> int:
        """The number of losses per step: 2 P, or P + 1 with forward differences."""
        return 2 * self.perturbations if self.difference == "central" else self.perturbations + 1

    def begin(self, start: Params, sections: Sections, memory: State, steps: int) -> State:
        """Return the received model and no scalars."""
        return {"params": tree.clone(start), "scalars": self._zeros(start)}

    def _zeros(self, like: Params) -> Tensor:
        return next(iter(like.values())).new_zeros(self.span.size)


@dataclass(frozen=True)
class BoundZerothOrder(ZerothOrder):
    """``ZerothOrder`` for one network.

    Args:
        layers: the number of each trained tensor, in name order
        moves: whether steps move the model; else the scalars are all that is needed of the only step
    """

    layers: Mapping[str, int] = field(default_factory=dict)
    moves: bool = True

    def begin(self, start: Params, sections: Sections, memory: State, steps: int) -> State:
        """Return the received model, as a copy if steps move it."""
        return {"params": tree.clone(start) if self.moves else start, "scalars": self._zeros(start)}

    def along(self, carry: State, keys: StepKeys) -> Along:
        """Return the directions of a step."""
        return Along(self.directions, self.layers, keys.common, carry["params"])

    def advance(self, loss: Loss, start: Params, carry: State, hyperparams: Hyperparams, keys: StepKeys) -> State:
        """Take one step along the directions of the step."""
        params, before = carry["params"], carry["scalars"]
        first = keys.step * self.perturbations if self.steps > 1 else 0
        along = self.along(carry, keys)
        centre = None if self.difference == "central" else loss(params)
        numbers = [first + p for p in range(self.perturbations)]
        found = [clipped(along.quotient(loss, number, self.mu, centre), self.clip) for number in numbers]
        scalars = torch.stack(found).to(before.dtype) * hyperparams["factor"]
        mine = torch.arange(self.span.size, device=before.device) // self.perturbations == keys.step
        if self.moves:
            in_place = not isinstance(hyperparams["factor"], Tensor)
            params = along.step(numbers, scalars * self.span.scale, in_place)
        return {**carry, "params": params, "scalars": torch.where(mine, scalars.repeat(self.steps), before)}
