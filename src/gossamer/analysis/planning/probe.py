"""Estimates of the bound's constants from a short run without losses and pruning.

The run is FedSGD. Before each of its rounds, the model w is pruned by some ratios rho, as a plan prunes it, to w'. The
constants are the smallest ones for which the inequalities of Theorem 1 hold in these rounds:

    G    |grad F_u(w)| <= G, for each client u. The paper's G bounds the gradients of single samples, which are larger;
         reconstruction errors are proportional to the gradients of clients
    L    |grad F(w) - grad F(w')| <= L |w - w'|: the smoothness in the direction of pruning
    D    |w - w'|^2 <= rho D^2. Pruned weights are the smallest, so D is less than the norm of the weights
"""

import math
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from gossamer.core.errors import require
from gossamer.core.random import key
from gossamer.core.types import Clock, Params
from gossamer.core.view import View
from gossamer.engines.executors import threads
from gossamer.engines.options import Options
from gossamer.engines.simulation import Simulation
from gossamer.methods.averaging import fedsgd
from gossamer.methods.composition import compose
from gossamer.parts.solvers.sgd import SGD
from gossamer.parts.views.magnitude import MagnitudePruned
from gossamer.tasks.objective import Objective
from gossamer.tasks.task import Task

SHARES = (1 / 3, 2 / 3, 1.0)
"""Pruning ratios of the probe, as fractions of the largest one."""

LEAST = 1e-12
"""The smallest estimate: constants are positive."""


class Constants(NamedTuple):
    """Estimated constants of the bound.

    Args:
        smoothness: L
        gradient: G
        weights: D
    """

    smoothness: float
    gradient: float
    weights: float

    def or_larger(self, other: "Constants") -> "Constants":
        """Return the maximum of each constant."""
        return Constants(*map(max, zip(self, other, strict=True)))


def probe(task: Task, rounds: int = 10, lr: float = 0.3, largest: float = 0.9, seed: int = 0) -> Constants:
    """Run FedSGD for some rounds, and return the constants that hold in all of them.

    Args:
        task: the task to plan for
        rounds: number of rounds
        lr: learning rate
        largest: largest pruning ratio of the plan
        seed: seed of the run
    """
    require((rounds >= 1, f"probe must have at least 1 round, got {rounds}"))
    run = Simulation(fedsgd(lr), task, Options(rounds=rounds, seed=seed, eval_every=rounds, executor="one-by-one"))
    views = {share * largest: _view(run.objective, share * largest) for share in SHARES}
    found = Constants(LEAST, LEAST, LEAST)
    for number in range(rounds):
        with threads(1):
            found = found.or_larger(_at(run.objective, task, run.model(), views))
        run.round(number, None)
    return found


def _view(objective: Objective, ratio: float) -> View:
    """Return the view that prunes the smallest weights of each tensor."""
    return compose(MagnitudePruned((ratio,), "tensor"), SGD()).bind(objective).training.view


def _at(objective: Objective, task: Task, model: Params, views: Mapping[float, View]) -> Constants:
    """Return the constants of one model, pruned by each view; views are by their ratio."""
    whole, longest = _gradient(objective, task, model)
    found = Constants(LEAST, longest, LEAST)
    for ratio, view in views.items():
        pruned = _pruned(view, model)
        moved = _distance(model, pruned, objective.trained)
        if moved > 0:
            turned = float((_gradient(objective, task, pruned)[0] - whole).norm())
            found = found.or_larger(Constants(turned / moved, LEAST, moved / math.sqrt(ratio)))
    return found


def _gradient(objective: Objective, task: Task, model: Params) -> tuple[Tensor, float]:
    """Return the gradient of the mean loss over all samples, and the largest norm of a client's gradient."""
    sizes = [len(task.split.train(client)) for client in range(task.clients)]
    total, longest = torch.zeros(()), 0.0
    for client, size in enumerate(sizes):
        x, y = objective.samples.read(torch.as_tensor(task.split.train(client)))
        _, gradients, _ = objective.gradient(model, x, y)
        vector = torch.cat([gradients[name].flatten() for name in objective.trained])
        total, longest = total + size / sum(sizes) * vector, max(longest, float(vector.norm()))
    return total, longest


def _pruned(view: View, model: Params) -> Params:
    """Return the model with zeros in place of pruned weights."""
    keep = view.part(model, Clock(0, 1, 0), key(0)).keep or {}
    return {name: tensor * keep[name] if name in keep else tensor for name, tensor in model.items()}


def _distance(one: Params, other: Params, names: Iterable[str]) -> float:
    return math.sqrt(sum(float((one[name] - other[name]).square().sum()) for name in names))
