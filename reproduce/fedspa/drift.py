"""The mask drift p_t of FedSpa's Theorem 1 on a convex problem, and the theorem's bound.

Clients fit least squares. The outputs of client k come from one common vector of weights, of which client k has half:
its planted mask m_k*. So the best masks are known, and so is the minimum of f(w) = mean_k F_k(m_k* w). Gossamer's
simulator runs FedSpa with full gradients at the learning rate of the theorem. From the model and the masks before each
round, the local steps are repeated here with all gradients, which gives p_t.

Some minutes on a CPU. Results are stored and not measured again.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from gossamer import Mean, Method, Task, compose, fedspa
from gossamer.analysis.theory import PersonalSetting, mask_drift, personal_bound, personal_rate
from gossamer.core.random import Key, fold, key, permutation, uniform
from gossamer.core.types import Clock, Params, Part, State
from gossamer.core.view import View
from gossamer.engines import Options
from gossamer.engines.simulation import Simulation
from gossamer.parts.solvers import SGD
from gossamer.tasks.data import Data, Samples, Split
from gossamer.tasks.metrics import metrics_of
from reproduce.common import plots, seeds, store, tables
from reproduce.common.plots import Curve
from reproduce.common.store import Facts

NAME = "fedspa-drift"
CLIENTS, SAMPLES, ENTRIES, STEPS, DENSITY = 4, 48, 24, 4, 0.5
ROUNDS, SEEDS = (64, 256), (0, 1, 2)
NOISE = 0.1
TRIES = 8
"""Runs until the rate is one that the measured drift allows."""
HEADS = (
    "masks",
    "rounds",
    "median p_t",
    "largest p_t",
    "entries of m* held",
    "squared gradient of f",
    "bound",
    "seeds",
)


class Linear(nn.Module):
    """One output without bias, in double precision. The weights do not start at zero, where p_t may be infinite."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(centred(key(9), ENTRIES))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.w


def centred(at: Key, *shape: int) -> Tensor:
    """Return random numbers between -1 and 1."""
    return 2 * uniform(at, math.prod(shape), dtype=torch.float64).view(shape) - 1


def loss(output: Tensor, y: Tensor) -> Tensor:
    """Half of the mean squared error."""
    return (output - y).square().mean() / 2


def deviation(output: Tensor, y: Tensor) -> Tensor:
    """The absolute error of each sample."""
    return (output - y).abs()


@dataclass(frozen=True)
class Planted(View):
    """The mask of each client, known in advance: what an ideal search would find."""

    rows: tuple[tuple[float, ...], ...]

    def part(self, like: Params, clock: Clock, key: Key, memory: State | None = None) -> Part:
        """Return the entries of the client's planted mask."""
        return Part(keep={"w": torch.tensor(self.rows[clock.client], dtype=torch.float64)})


class Problem:
    """Least squares with a planted mask per client."""

    def __init__(self, seed: int) -> None:
        at = fold(key(seed), NAME)
        self.seed, self.x = seed, centred(fold(at, "x"), CLIENTS, SAMPLES, ENTRIES)
        half = round(DENSITY * ENTRIES)
        self.best = torch.zeros(CLIENTS, ENTRIES, dtype=torch.float64)
        for client in range(CLIENTS):
            self.best[client, permutation(fold(at, "mask", client), ENTRIES)[:half]] = 1
        common = 1 + centred(fold(at, "weights"), ENTRIES)
        exact = torch.einsum("kne,ke->kn", self.x, self.best * common)
        self.y = exact + NOISE * centred(fold(at, "noise"), CLIENTS, SAMPLES)

    @cached_property
    def task(self) -> Task:
        both = Samples(self.x.reshape(-1, ENTRIES), self.y.reshape(-1))
        start = np.arange(0, CLIENTS * SAMPLES + 1, SAMPLES)
        split = Split(np.arange(CLIENTS * SAMPLES), start, np.arange(CLIENTS * SAMPLES), start)
        data = Data("planted", both, both, 1, "natural", "own")
        return Task(Linear, data, split, loss, metrics_of({"deviation": deviation}))

    def gradients(self, models: Tensor) -> Tensor:
        """Return the gradient of each client's loss at its model, [clients, entries]."""
        residual = torch.einsum("kne,ke->kn", self.x, models) - self.y
        return torch.einsum("kne,kn->ke", self.x, residual) / SAMPLES

    def value(self, w: Tensor) -> float:
        """Return f(w)."""
        residual = torch.einsum("kne,ke->kn", self.x, self.best * w) - self.y
        return float(residual.square().mean() / 2)

    @cached_property
    def least(self) -> float:
        """The minimum of f."""
        rows = (self.x * self.best[:, None]).reshape(-1, ENTRIES)
        return self.value(torch.linalg.pinv(rows) @ self.y.reshape(-1))

    @cached_property
    def smoothness(self) -> float:
        return float(torch.linalg.eigvalsh(self.x.mT @ self.x / SAMPLES).max())


def masked(**given: Any) -> Callable[[Problem, float], Method]:
    """Return FedSpa with full gradients and a constant rate."""
    plain: dict[str, Any] = {"steps": STEPS, "batch": None, "weight_decay": 0.0, "clip": None, "decay": 1.0}
    return lambda problem, lr: fedspa(lr=lr, **plain, density=DENSITY, distribution="uniform", **given)


def planted(problem: Problem, lr: float) -> Method:
    """Return the same with the planted masks."""
    view = Planted(tuple(map(tuple, problem.best.tolist())))
    return compose(view, SGD(lr, steps=STEPS, batch=None), server=Mean("uniform"))


METHODS: dict[str, Callable[[Problem, float], Method]] = {
    "planted": planted,
    "rsm": masked(mask="rsm"),
    "dst": masked(),
    "dst-own": masked(own_init=True),
    "dst-random": masked(regrow="random"),
}


class Before(NamedTuple):
    """The state before a round: the model, and the mask of each client."""

    w: Tensor
    masks: Tensor


def states(problem: Problem, method: Method, rounds: int) -> list[Before]:
    """Run a method, and return the state before each round and after the last."""
    run = Simulation(method, problem.task, Options(rounds=rounds, seed=problem.seed, eval_every=rounds))
    found = [_state(run)]
    for number in range(rounds):
        run.round(number, None)
        found.append(_state(run))
    run.close()
    return found


def _state(run: Simulation) -> Before:
    view, like = run.method.training.view, run.model()
    memories = [run.clients.get(client).get("view") for client in range(CLIENTS)]
    parts = [view.part(like, Clock(0, 1, client), key(0), memory) for client, memory in enumerate(memories)]
    return Before(like["w"], torch.stack([part.keep["w"] for part in parts]))


def local_steps(problem: Problem, before: Before, rate: float) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield models and gradients of all clients before each local step, and after the last."""
    models = before.masks * before.w
    for _ in range(STEPS + 1):
        gradients = problem.gradients(models)
        yield models, gradients
        models = models - rate * before.masks * gradients


def drift(problem: Problem, before: Before, rate: float) -> float:
    """Return p_t: the maximum over clients and steps."""
    gradients = torch.stack([found for _, found in local_steps(problem, before, rate)][:-1], 1)
    start = problem.gradients(problem.best * before.w)
    return max(mask_drift(before.masks[k], problem.best[k], gradients[k], start[k]) for k in range(CLIENTS))


def course(name: str, rounds: int, seed: int) -> Facts:
    """Run a method at the theorem's rate; return the drift by round, the gradients of f, and the bound."""
    problem = Problem(seed)
    setting = PersonalSetting(problem.smoothness, 0.0, 0.0, 0.0, CLIENTS, STEPS, rounds, 0.0)
    rate = personal_rate(setting, 1.0)
    for _ in range(TRIES):
        before = states(problem, METHODS[name](problem, rate), rounds)[:-1]
        drifts = [drift(problem, state, rate) for state in before]
        allowed = personal_rate(setting, max(drifts))
        if rate <= allowed:
            break
        rate = 0.9 * allowed
    slopes = [problem.best * problem.gradients(problem.best * state.w) for state in before]
    means = [slope.mean(0) for slope in slopes]
    apart = max(float((slope - mean).norm(dim=1).max()) for slope, mean in zip(slopes, means, strict=True))
    setting = replace(
        setting,
        dissimilarity=apart,
        gradient=max(float(mean.norm()) for mean in means),
        gap=problem.value(before[0].w) - problem.least,
    )
    held = before[-1].masks * problem.best
    return {
        "method": name,
        "rounds": rounds,
        "seed": seed,
        "rate": rate,
        "allowed": rate <= allowed,
        "drifts": [round(value, 4) for value in drifts],
        "held": float(held.sum() / problem.best.sum()),
        "gradient": sum(float(mean.square().sum()) for mean in means) / rounds,
        "bound": personal_bound(setting, drifts),
    }


def keep(data_dir: Path) -> None:
    """Measure and store all runs, unless they are stored; no data set is needed."""
    if NAME not in store.read(NAME):
        torch.set_num_threads(1)
        store.write(NAME, NAME, [course(*each) for each in _cases()])


def _cases() -> Iterator[tuple[str, int, int]]:
    return ((name, rounds, seed) for name in METHODS for rounds in ROUNDS for seed in SEEDS)


def stored() -> list[Facts]:
    """Return the stored runs."""
    rows: list[Facts] = store.read(NAME).get(NAME, [])
    return rows


def table() -> str:
    """Return the drift and the bound of each kind of mask, means over seeds, with a plot of p_t."""
    rows = []
    for name in METHODS:
        for rounds in ROUNDS:
            mine = [row for row in stored() if (row["method"], row["rounds"]) == (name, rounds)]
            rows += [[f"`{name}`", f"{rounds}", *_cells(mine), f"{len(mine)}"]] if mine else []
    note = (
        f"Least squares with {CLIENTS} clients, {SAMPLES} samples each, {ENTRIES} entries, {STEPS} local steps, all "
        "clients in every round, full gradients. `planted` trains with the best masks m*. The learning rate is the "
        "largest that the theorem allows for the largest p_t. G and B are the largest values of the run, L and f* are "
        "exact. The squared gradient is the mean over rounds, the left side of the theorem."
    )
    made = tables.section("Theorem 1: the drift of masks on a convex problem", HEADS, rows, note)
    return f"{made}\n\n{tables.picture('p_t by round', f'{NAME}.svg')}" if made else ""


def _cells(rows: list[Facts]) -> list[str]:
    medians = [float(np.median(row["drifts"])) for row in rows]
    values = [medians, [max(row["drifts"]) for row in rows], [row["held"] for row in rows]]
    return [
        *(seeds.spread(each, 2) for each in values),
        *(f"{np.mean([row[which] for row in rows]):.3g}" for which in ("gradient", "bound")),
    ]


def draw() -> None:
    """Draw p_t by round, of the first seed."""
    longest = [row for row in stored() if row["rounds"] == max(ROUNDS) and row["seed"] == 0]
    lines = [Curve(row["method"], list(enumerate(row["drifts"], 1))) for row in longest]
    if lines:
        plots.curves(f"{NAME}.svg", "drift of masks from the planted ones, p_t", "round", lines)
