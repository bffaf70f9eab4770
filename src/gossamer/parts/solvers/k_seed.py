"""Zeroth-order training along a fixed set of directions.

Qin et al., Federated Full-Parameter Tuning of Billion-Sized Language Models with Communication Cost under 18 Kilobytes,
ICML 2024, https://arxiv.org/abs/2312.06353 (FedKSeed), Algorithm 1 with uniform probabilities.

A run has K candidate directions z_1 to z_K, which follow from its key. In each local step, a client draws one of them,
evaluates the loss F of a batch twice, and adds to the sum of that direction:

    c = (F(w + mu z_j) - F(w - mu z_j)) / (2 mu)
    w <- w - lr factor(round) c z_j
    s_j <- s_j + factor(round) c

The upload has the sums (``gossamer.parts.codecs.Seeds``). The global model is the initial one plus a sum over the K
directions, so the download has K numbers (``gossamer.parts.servers.SeedSums``).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from gossamer.core import tree
from gossamer.core.errors import require, wrong
from gossamer.core.exchange import Context, Sections
from gossamer.core.random import Key, Purpose, draws, fold
from gossamer.core.random.directions import DirectionKind
from gossamer.core.solver import Hyperparams, Loss, Span, StepKeys
from gossamer.core.types import Params, State
from gossamer.parts.solvers.differences import Along, DifferenceSolver, clipped, numbered
from gossamer.parts.solvers.schedules import Constant, LRSchedule

SEEDS = "seeds"
"""The purpose of the key of the directions."""


@dataclass(frozen=True)
class KSeed(DifferenceSolver):
    """Steps along candidate directions, one drawn per step.

    Args:
        lr: learning rate
        steps: local steps per round
        candidates: number of candidate directions of the run (K)
        mu: length of a perturbation, in units of the direction
        batch: batch size; none takes all samples
        directions: distribution of the entries of a direction: rademacher or gauss
        clip: largest magnitude of a difference quotient; none disables clipping
        schedule: learning rate schedule: constant, exponential:RATE, steps:AT+AT,RATE or cosine
        seed: seed of the directions; none uses that of the run
    """

    lr: float = 1e-3
    steps: int = 20
    candidates: int = 512
    mu: float = 1e-3
    batch: int | None = 32
    directions: DirectionKind = "rademacher"
    clip: float | None = None
    schedule: LRSchedule = Constant()
    seed: int | None = None

    def __post_init__(self) -> None:
        require(
            *self.rules(),
            (1 <= self.candidates < 2**24, wrong(self, "candidates", "must be at least 1 and below 2**24")),
        )

    def bind(self, context: Context) -> "BoundKSeed":
        """Return the solver with the directions of the run."""
        super().bind(context)
        return BoundKSeed(**vars(self), layers=numbered(context), at=fold(context.shared_key(self.seed), SEEDS))

    @property
    def span(self) -> Span:
        """The candidate directions."""
        return Span(self.directions, self.candidates, -self.lr)

    @property
    def fixed(self) -> bool:
        """True: a run has one set of directions."""
        return True

    @property
    def evaluations(self) -> int:
        """Two losses per step."""
        return 2

    def begin(self, start: Params, sections: Sections, memory: State, steps: int) -> State:
        """Return a copy of the received model, and sums of zero."""
        return {"params": tree.clone(start), "scalars": next(iter(start.values())).new_zeros(self.candidates)}


@dataclass(frozen=True)
class BoundKSeed(KSeed):
    """``KSeed`` for one network.

    Args:
        layers: the number of each trained tensor, in name order
        at: the key of the directions
    """

    layers: Mapping[str, int] = field(default_factory=dict)
    at: Key = Key(0, 0)

    def purposes(self) -> Iterable[Purpose]:
        """Return the directions of the run."""
        return [(SEEDS,)] if self.seed is None else ()

    def direction_key(self, codec: Key) -> Key:
        """Return the key of the run's directions."""
        return self.at

    def advance(self, loss: Loss, start: Params, carry: State, hyperparams: Hyperparams, keys: StepKeys) -> State:
        """Take one step along a direction that the client draws."""
        before: Tensor = carry["scalars"]
        along = Along(self.directions, self.layers, keys.common, carry["params"])
        number = (draws(keys.own, keys.step, 1)[0].double() * self.candidates).to(torch.int64)
        found = clipped(along.quotient(loss, number, self.mu), self.clip).to(before.dtype)
        scalar = found * hyperparams["factor"]
        mine = torch.arange(self.candidates, device=before.device) == number
        in_place = not isinstance(hyperparams["factor"], Tensor)
        params = along.step([number], (scalar * self.span.scale).view(1), in_place)
        return {**carry, "params": params, "scalars": torch.where(mine, before + scalar, before)}
