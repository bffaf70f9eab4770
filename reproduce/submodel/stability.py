"""Stability of sub-model training on a convex problem, next to Theorems 5 and 6 (https://arxiv.org/abs/2511.06132).

    make reproduce WHAT=submodel-stability

``gossamer.analysis.stability`` replaces one sample, with random masks (Algorithm 1) and with shuffled windows
(Algorithm 2). The distance of the two models is measured against the number of samples N n, and against the share that
a client holds: p for random masks, d_m / d for windows. Runs are stored and not repeated. Tables and the plot go to
docs/reproduction/submodel-stability.md.
"""

import argparse
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch

from gossamer import SGD, Bernoulli, Dense, Mean, Method, Task, Windows, compose
from gossamer.analysis.stability import stability
from gossamer.analysis.theory import (
    Masked,
    Masks,
    SubmodelSetting,
    Terms,
    random_stability,
    rolling_stability,
    task_losses,
)
from gossamer.core.random import key
from gossamer.tasks.data import Data, Samples, Split
from gossamer.tasks.metrics import metrics_of
from reproduce.common import store, tables
from reproduce.common.store import Facts
from reproduce.submodel import stability_page
from reproduce.submodel.theory_problem import ENTRIES, STEPS, ZERO, Linear, correct, loss, samples

STUDY = "submodel-stability"
ROUNDS, FRESH, REPEATS = 32, 16, 2
"""Rounds of a run; test samples per client, of which one is the new sample; replaced samples per seed."""
SEEDS = range(4)
CLIENTS, SAMPLES, SHARE = 4, 16, 0.5
POINTS = ((2, 16), (4, 4), (4, 16), (8, 16), (4, 64), (4, 256))
"""Clients and samples per client."""
SHARES = (0.125, 0.25, 0.5, 0.75, 1.0)
FIXED = math.sqrt(CLIENTS * SAMPLES) / (ROUNDS * STEPS)
"""The learning rate of Theorem 5 for the usual number of samples."""


@dataclass(frozen=True, eq=False)
class Trial:
    """One problem, and one way to train on it.

    Args:
        clients: N
        samples: n, training samples per client
        share: fraction of the entries that a client holds
        rolling: windows (Algorithm 2) rather than random masks (Algorithm 1)
        fixed: the same learning rate for every number of samples, rather than that of the theorems
        seed: seed of the problem and of the run
    """

    clients: int
    samples: int
    share: float
    rolling: bool
    fixed: bool
    seed: int

    @property
    def rate(self) -> float:
        """The learning rate; that of the theorems is sqrt(N n) / (R K), with all rounds of all epochs."""
        return FIXED if self.fixed else math.sqrt(self.clients * self.samples) / (ROUNDS * STEPS)

    @cached_property
    def task(self) -> Task:
        """Logistic regression. A client's test samples have the distribution of its training samples."""
        x, y = samples(key(self.seed), self.clients, self.samples + FRESH)
        owned = np.arange(len(x)).reshape(self.clients, -1)
        train, test = (np.ascontiguousarray(rows).ravel() for rows in np.split(owned, [self.samples], axis=1))
        starts = (np.arange(self.clients + 1) * size for size in (self.samples, FRESH))
        split = Split(np.arange(len(train)), next(starts), np.arange(len(test)), next(starts))
        known, fresh = (Samples(x[rows], y[rows]) for rows in (train, test))
        data = Data("logistic", known, fresh, 2, "natural", "own")
        return Task(Linear, data, split, loss, metrics_of({"accuracy": correct}))

    @cached_property
    def method(self) -> Method:
        """Algorithm 1 or 2, with gradients on all samples of a client."""
        windows = Windows((self.share,), offsets=ENTRIES, seed=self.seed, min_dim=1)
        view = windows if self.rolling else Bernoulli((self.share,), min_dim=1)
        return compose(view, SGD(self.rate, steps=STEPS, batch=None), Dense(), Mean("uniform"))

    def distance(self) -> float:
        """Return the mean distance of the models over the replaced samples."""
        return stability(
            self.method,
            self.task,
            repeats=REPEATS,
            rounds=ROUNDS,
            seed=self.seed,
            eval_every=ROUNDS,
            executor="one-by-one",
        ).last.distance

    def leading(self) -> Terms:
        """Return the leading terms of Theorem 5 or 6, with divergence and deviation measured at zero weights."""
        masked = Masked(task_losses(self.task)[0], self._masks)
        if self.rolling:
            apart = masked.largest_divergence(ZERO)
            found = rolling_stability(self._setting, ROUNDS // ENTRIES, self.samples, apart, 0.0, self.rate)
            return {name: 2 * found[name] for name in LEADING}  # the proof's constant, which the theorem hides
        apart = masked.divergence(ZERO)
        found = random_stability(self._setting, ROUNDS, self.samples, apart, 0.0, self.rate)
        return {name: found[name] for name in LEADING}

    @property
    def _masks(self) -> Masks:
        if self.rolling:
            return Masks.windows([round(self.share * ENTRIES)] * self.clients, ENTRIES, ENTRIES)
        return Masks.bernoulli([self.share] * self.clients, ENTRIES)

    @property
    def _setting(self) -> SubmodelSetting:
        """Constants of the leading terms. The others need an optimum, which separable samples do not have."""
        x = self.task.data.train.x.view(self.clients, self.samples, ENTRIES)
        gradients = x * (0.5 - self.task.data.train.y.view(self.clients, -1, 1).double())
        variance = (gradients - gradients.mean(1, keepdim=True)).square().sum(-1).mean(1).max()
        return SubmodelSetting(
            smoothness=0.25,
            convexity=0.25,
            gradient=1.0,
            radius=1.0,
            deviation=math.sqrt(self.share * float(variance)),
            shares=(self.share,) * self.clients,
            entries=ENTRIES,
            steps=1,  # no drift of the local steps, which is no leading term
            windows=ENTRIES if self.rolling else 1,
        )

    def facts(self) -> Facts:
        """Return the trial with its results, for the store."""
        described = {"masks": "rolling" if self.rolling else "random", "points": self.clients * self.samples}
        known = {name: getattr(self, name) for name in ("clients", "samples", "share", "fixed", "seed")}
        return {**described, **known, "distance": self.distance(), "leading": sum(self.leading().values())}


LEADING = ("divergence", "noise")


def points() -> list[Facts]:
    """Return the distance by the number of samples, at the rate of the theorems and at a fixed rate."""
    kinds = [(rolling, fixed) for fixed in (False, True) for rolling in (False, True)]
    return [
        Trial(clients, count, SHARE, rolling, fixed, seed).facts()
        for rolling, fixed in kinds
        for clients, count in POINTS
        for seed in SEEDS
    ]


def shares() -> list[Facts]:
    """Return the distance by the share that a client holds."""
    return [
        Trial(CLIENTS, SAMPLES, share, rolling, False, seed).facts()
        for rolling in (False, True)
        for share in SHARES
        for seed in SEEDS
    ]


STUDIES: dict[str, Callable[[], list[Facts]]] = {"points": points, "shares": shares}


def main(argv: Sequence[str] | None = None) -> None:
    """Run the missing studies, then render plot and page."""
    argparse.ArgumentParser(description="Measure the stability of sub-model training.").parse_args(argv)
    torch.set_num_threads(1)
    found = {name: store.kept(STUDY, f"{STUDY}-{name}", study) for name, study in STUDIES.items()}
    stability_page.draw(found)
    tables.write(STUDY, stability_page.page(found))


if __name__ == "__main__":
    main()
