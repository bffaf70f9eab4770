"""The objective of a plan: the terms of a convergence bound that depend on power, pruning and measurements.

In Theorem 1 of ``gossamer.analysis.theory.wireless``, with S measurements and K samples in total, these are

    pruning      2 L^2 D^2 sum rho_u
    outages      12 C^2 (1 + (delta + 1) G^2 / (S K)) sum q_u
    measuring    12 (delta + 1) C^2 G^2 / (S K)

as printed, or with corrections that keep the sum over devices. The other terms are the same for all plans, except
participation. It depends on which clients are received together, and in general decreases with fewer outages too.

There C is a constant, so the number of measurements has almost no effect. With ``entries``, the number n of entries of
the model, the squared error of the reconstruction is that of the decoder instead, G^2 e(S), with

    e(S) = least_squares_error(n, S)

of ``gossamer.parts.codecs.reconstruction``. It falls from 1 to (pi / 2 - 1) n / S. The terms are then

    pruning      4 L^2 D^2 sum rho_u
    outages      c^2 G^2 (6 + 2 e(S)) sum q_u
    measuring    2 G^2 e(S) U

for U devices and the coefficient c of retained gradients, with the corrections ``PLANNED``. All are sums over devices,
as in the paper. A device that prunes has a smaller error than e(S), so this is on the safe side.

``probe`` estimates the constants from a short run without losses and pruning. The run is FedSGD. Before each of its
rounds, the model w is pruned by some ratios rho, as a plan prunes it, to w'. The constants are the smallest ones for
which the inequalities of Theorem 1 hold in these rounds:

    G    |grad F_u(w)| <= G, for each client u. The paper's G bounds the gradients of single samples, which are larger;
         reconstruction errors are proportional to the gradients of clients
    L    |grad F(w) - grad F(w')| <= L |w - w'|: the smoothness in the direction of pruning
    D    |w - w'|^2 <= rho D^2. Pruned weights are the smallest, so D is less than the norm of the weights
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from gossamer.analysis.theory import WirelessSetting, gradient_bound
from gossamer.core.errors import gather, require, wrong
from gossamer.core.random import key
from gossamer.core.types import Clock, Params
from gossamer.engines.executors import threads
from gossamer.engines.options import Options
from gossamer.engines.simulation import Simulation
from gossamer.methods.averaging import fedsgd
from gossamer.methods.composition import compose
from gossamer.parts.codecs.reconstruction import least_squares_error
from gossamer.parts.solvers.sgd import SGD
from gossamer.parts.views.magnitude import MagnitudePruned
from gossamer.tasks.objective import Objective
from gossamer.tasks.task import Task

PLANNED = ("mean", "scale", "coefficient", "stale", "triangle")
"""Corrections of the bound that a plan supports."""


MOST = 1e20
"""Maximum of the bound's constants: squares of their products do not overflow."""


class TargetWeights(NamedTuple):
    """Weights of the terms: of a device that prunes everything, of a device that is never received, of measuring."""

    pruning: float
    outage: float
    measuring: float


@dataclass(frozen=True)
class Target:
    """The constants of the bound, with the paper's symbols.

    Args:
        samples: K, the number of samples of all devices
        smoothness: L, the smoothness of the loss
        gradient: G, the maximum norm of one sample's gradient
        weights: D, the maximum norm of the weights
        reconstruction: C, the constant of the reconstruction
        isometry: delta, the restricted isometry constant
        coefficient: factor of retained gradients
        corrected: names of corrections of the bound; none means as printed
        entries: n, the number of entries of the model; 0 takes C as a constant, as the paper does
        devices: U, the number of devices; used with entries
    """

    samples: int
    smoothness: float = 1.0
    gradient: float = 1.0
    weights: float = 1.0
    reconstruction: float = 1.0
    isometry: float = 0.5
    coefficient: float = 1.0
    corrected: tuple[str, ...] = ()
    entries: int = 0
    devices: int = 1

    def __post_init__(self) -> None:
        names = ("smoothness", "gradient", "weights", "reconstruction", "isometry", "coefficient")
        large = {name: getattr(self, name) for name in names if getattr(self, name) > MOST}
        gather([f"{name} must be at most {MOST:g}, got {value}" for name, value in large.items()])
        self.at(1.0)  # checks the constants
        require(
            (self.entries >= 0, wrong(self, "entries", "must not be negative")),
            (self.devices >= 1, wrong(self, "devices", "must be at least 1")),
        )
        others = [name for name in self.corrected if name not in PLANNED]
        require((not others, f"Target.corrected: a plan supports {', '.join(PLANNED)}, not {', '.join(others)}"))

    def at(self, measurements: float) -> TargetWeights:
        """Return the weights for a number of measurements."""
        setting = WirelessSetting(
            smoothness=self.smoothness,
            gradient=self.gradient,
            weights=self.weights,
            sizes=(self.samples,),
            outages=(1.0,),
            ratios=(1.0,),
            measurements=measurements,
            reconstruction=self.reconstruction,
            isometry=self.isometry,
            coefficient=self.coefficient,
        )
        corrected = {*self.corrected, *(("mean", "scale") if self.entries else ())}
        terms = gradient_bound(setting, rounds=1, rate=1.0, gap=0.0, corrected=corrected)
        if self.entries:
            error = 2 * self.gradient**2 * float(least_squares_error(self.entries, measurements))
            again = self.coefficient**2 if "coefficient" in corrected else 1.0
            return TargetWeights(terms["pruning"], terms.get("stale", 0.0) + again * error, self.devices * error)
        lost = sum(terms.get(name, 0.0) for name in ("retained signs", "retained measuring", "stale"))
        return TargetWeights(terms["pruning"], lost, terms["measuring"])


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
    views = {}
    for share in SHARES:  # the view that prunes the smallest weights of each tensor, by its ratio
        recipe = compose(MagnitudePruned((share * largest,), "tensor"), SGD())
        views[share * largest] = recipe.bind(run.objective).training.view
    found = Constants(LEAST, LEAST, LEAST)
    for number in range(rounds):
        with threads(1):
            model = run.model()
            whole, longest = _gradient(run.objective, task, model)
            found = found.or_larger(Constants(LEAST, longest, LEAST))
            for ratio, view in views.items():
                keep = view.part(model, Clock(0, 1, 0), key(0)).keep or {}
                pruned = {name: tensor * keep[name] if name in keep else tensor for name, tensor in model.items()}
                apart = ((model[name] - pruned[name]).square().sum() for name in run.objective.trained)
                moved = math.sqrt(sum(map(float, apart)))
                if moved > 0:
                    turned = float((_gradient(run.objective, task, pruned)[0] - whole).norm())
                    found = found.or_larger(Constants(turned / moved, LEAST, moved / math.sqrt(ratio)))
        run.round(number, None)
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
