"""The convex problem of the theory study: logistic regression with a ridge, and the constants of the theorems."""

import math
from dataclasses import dataclass
from functools import cache, cached_property

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gossamer import SGD, Bernoulli, Dense, Mean, Task, Windows, compose
from gossamer.analysis.theory import Masked, Masks, SubmodelSetting, task_losses
from gossamer.core.random import Key, fold, key, uniform
from gossamer.engines import Options
from gossamer.engines.simulation import Simulation
from gossamer.tasks.data import Data, Samples, Split
from gossamer.tasks.metrics import metrics_of

CLIENTS, SAMPLES, ENTRIES, STEPS = 4, 24, 8, 2
RIDGE, RADIUS, BATCH = 0.3, 2.0, 4
ZERO = torch.zeros(ENTRIES, dtype=torch.float64)


class Linear(nn.Module):
    """One output, no bias, zero weights, in double precision to resolve small distances."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(ZERO.clone())

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.w


def loss(output: Tensor, y: Tensor) -> Tensor:
    return F.softplus((1 - 2 * y) * output).mean()


def correct(output: Tensor, y: Tensor) -> Tensor:
    return (output > 0).long() == y


def samples(at: Key, clients: int = CLIENTS, count: int = SAMPLES) -> tuple[Tensor, Tensor]:
    """Return ``count`` samples per client, of norm 1 with correlated entries; each client labels by its own line."""

    def centred(label: str, *shape: int) -> Tensor:
        return 2 * uniform(fold(at, label), math.prod(shape), dtype=torch.float64).view(shape) - 1

    x = centred("x", clients, count, ENTRIES) + 1.2 * centred("common", clients, count, 1)
    x = x / x.norm(dim=-1, keepdim=True)
    line = 1 + 3 * centred("line", clients, ENTRIES, 1)
    y = (x @ line + centred("noise", clients, count, 1) > 0).long()
    return x.view(-1, ENTRIES), y.view(-1)


@dataclass(frozen=True, eq=False)
class Problem:
    """Clients that all train the same share of the entries, under random masks or under windows.

    Args:
        share: fraction of the entries that a client trains
        rolling: windows (Algorithm 2) rather than random masks (Algorithm 1)
        noisy: gradients on batches rather than on all samples
    """

    share: float
    rolling: bool
    noisy: bool = False

    @cached_property
    def task(self) -> Task:
        both = Samples(*samples(key(0)))
        start = np.arange(0, CLIENTS * SAMPLES + 1, SAMPLES)
        split = Split(np.arange(CLIENTS * SAMPLES), start, np.arange(CLIENTS * SAMPLES), start)
        return Task(
            Linear, Data("logistic", both, both, 2, "natural", "own"), split, loss, metrics_of({"accuracy": correct})
        )

    @cached_property
    def masks(self) -> Masks:
        if self.rolling:
            return Masks.windows([round(self.share * ENTRIES)] * CLIENTS, ENTRIES, ENTRIES)
        return Masks.bernoulli([self.share] * CLIENTS, ENTRIES)

    @cached_property
    def masked(self) -> Masked:
        return Masked(task_losses(self.task, RIDGE)[0], self.masks)

    @cached_property
    def whole(self) -> Masked:
        return Masked(self.masked.losses, Masks.full(CLIENTS, ENTRIES))

    @cached_property
    def optimum(self) -> Tensor:
        return self.masked.optimum(ZERO)

    @cached_property
    def least(self) -> Tensor:
        return self.whole.optimum(ZERO)

    @cached_property
    def setting(self) -> SubmodelSetting:
        """Constants of the theorems. All samples have norm 1, so that gradients are at most 1, plus the ridge."""
        x = self.task.data.train.x.view(CLIENTS, SAMPLES, ENTRIES)
        curvature = float(torch.linalg.eigvalsh(x.mT @ x / SAMPLES / 4).max())
        return SubmodelSetting(
            smoothness=curvature + RIDGE,
            convexity=RIDGE,
            gradient=1 + RIDGE * RADIUS,
            radius=RADIUS,
            deviation=1 / math.sqrt(BATCH) if self.noisy else 0.0,
            shares=(self.share,) * CLIENTS,
            entries=ENTRIES,
            steps=STEPS,
            heterogeneity=self.masked.heterogeneity(self.optimum),
            dissimilarity=max(self.masked.dissimilarity(w) for w in (ZERO, self.optimum)),
            spread=self.masked.spread(self.optimum),
            windows=ENTRIES if self.rolling else 1,
        )

    def excess(self, w: Tensor) -> float:
        """Return F(w) - F*."""
        return float(self.whole.value(w) - self.whole.value(self.least))

    def simulation(self, rounds: int, rate: float, seed: int) -> Simulation:
        """Return a simulation of Algorithm 1 or 2 that starts at zero."""
        shares = (self.share,)
        windows = Windows(shares, offsets=ENTRIES, seed=seed, min_dim=1)
        view = windows if self.rolling else Bernoulli(shares, min_dim=1)
        solver = SGD(rate, steps=STEPS, batch=BATCH if self.noisy else None, weight_decay=RIDGE)
        options = Options(rounds=rounds, seed=seed, eval_every=rounds)
        return Simulation(compose(view, solver, Dense(), Mean("uniform", radius=RADIUS)), self.task, options)


@cache
def posed(share: float, rolling: bool, noisy: bool = False) -> Problem:
    """Return a problem; its optima are computed once."""
    return Problem(share, rolling, noisy)
