"""Training with masks, slowly and in plain sight: what views with masks are compared with."""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from gossamer.core.jobs import own_key
from gossamer.core.random import fold, key, uniform
from gossamer.core.types import Params, State
from gossamer.engines.simulation import Simulation
from gossamer.parts.solvers.sgd import Descent


@dataclass
class FakeTraining:
    """A finished local training with given results, as a ``LocalTrainingInfo``."""

    weights: Params
    slopes: Params = field(default_factory=dict)
    early: Params = field(default_factory=dict)
    right: float = 1.0
    tried: Params | None = None
    asked: int = 0
    start: Params = field(default_factory=dict)

    @property
    def carry(self) -> State:
        return {"early": self.early}

    def loss(self) -> float:
        return 0.0

    def accuracy(self, params: Params) -> float:
        self.tried = params
        return self.right

    def gradient(self) -> Params:
        self.asked += 1
        return self.slopes

    def start_gradient(self) -> Params:
        return self.slopes


def noise(like: Params, *labels: str | int) -> Params:
    """Uniform entries around zero in tensors of the same shapes."""
    return {
        name: (uniform(fold(key(5), *labels, name), t.numel(), dtype=torch.float64) - 0.5).view(t.shape).to(t.dtype)
        for name, t in like.items()
    }


def filled(like: Params, held: dict[str, Tensor]) -> Params:
    """The masks as numbers, with ones for tensors without a mask."""
    return {name: held[name].to(t) if name in held else torch.ones_like(t) for name, t in like.items()}


def batches(run: Simulation, number: int, client: int) -> tuple[list[tuple[Tensor, Tensor]], Any]:
    """A client's batches of a round, and its key."""
    mine = own_key(run.round_key(number), run.clock(number, client))
    samples, data = run.task.split.train(client), run.task.data.train
    rows = [samples[b] for b in run.method.training.solver.plan(len(samples), fold(mine, "batches"))]
    return [(data.x[torch.from_numpy(r)], data.y[torch.from_numpy(r)]) for r in rows], mine


def slope(run: Simulation, w: Params, x: Tensor, y: Tensor) -> Params:
    """The gradient of the loss on a batch, in evaluation mode."""
    module = run.objective.build(w).eval()
    run.task.loss(module(x), y).backward()
    return {name: p.grad for name, p in module.named_parameters() if p.grad is not None}


def masked_sgd(run: Simulation, number: int, client: int, w: Params, mask: Params) -> tuple[Params, Params]:
    """A client's weights after the first of two epochs of masked SGD, and after both."""
    v = {name: w[name] * mask[name] for name in w}
    (drawn, _), solver = batches(run, number, client), run.method.training.solver
    assert isinstance(solver, Descent)
    for step, (x, y) in enumerate(drawn):
        g = slope(run, v, x, y)
        v = {name: v[name] - solver.lr * g[name] * mask[name] for name in v}
        if step + 1 == len(drawn) // 2:
            first = v
    return first, v
