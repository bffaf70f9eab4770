"""FedDyn: dynamic regularization that aligns the clients' stationary points.

Acar et al., Federated Learning Based on Dynamic Regularization, ICLR 2021, https://arxiv.org/abs/2111.04263.

The state of client k is h_k, which starts at 0. From the received model w, the client minimizes

    F_k(v) - <h_k, v> + alpha / 2 |v - w|^2,    so that a step is    v <- v - lr (g(v) - h_k + alpha (v - w))

Its next h_k is h_k - alpha (v - w), which is the gradient of F_k at an exact minimum v. The server keeps h, the mean of
-h_k over all N clients, and updates it with the clients that arrived:

    h <- h - alpha / N sum_k (v_k - w)
    w <- mean_k v_k - h / alpha
"""

import math
from dataclasses import dataclass, field
from typing import ClassVar, Self, Unpack

import torch
from torch import Tensor

from gossamer.core.errors import ConfigError, require, wrong
from gossamer.core.exchange import Context, LocalTrainingInfo, Sections
from gossamer.core.method import Method
from gossamer.core.solver import Gradient, Hyperparams
from gossamer.core.types import Clock, Params, State
from gossamer.methods.composition import compose
from gossamer.methods.recipes import Training, recipe
from gossamer.parts.codecs.dense import Dense
from gossamer.parts.servers.mean import Sum, WeightedMean
from gossamer.parts.solvers.sgd import PlainDescent
from gossamer.parts.views.entries import Full

__all__ = ["FedDyn", "FedDynSGD", "feddyn"]


@dataclass(frozen=True)
class FedDynSGD(PlainDescent):
    """SGD on the dynamically regularized loss. ``proximal`` is alpha."""

    proximal: float = 0.1
    stateful: ClassVar[bool] = True

    def __post_init__(self) -> None:
        require(*self.rules(), (self.proximal > 0, wrong(self, "proximal", ", the alpha of FedDyn, must be positive")))

    def init(self, context: Context) -> State:
        """Return a gradient of 0."""
        layout = self.layout
        return {"gradient": torch.zeros(layout.size, dtype=layout.dtype, device=context.network.device)}

    def begin(self, start: Tensor, sections: Sections, memory: State, steps: int) -> State:
        """Return the state of SGD with the gradient h_k of the client state."""
        return {**self.begun(start), "gradient": memory["gradient"]}

    def step(self, gradient: Gradient, start: Tensor, carry: State, hyperparams: Hyperparams) -> State:
        """Take a step of SGD on the regularized loss."""
        grads, params = gradient(carry["params"])
        moved = self.moved(grads - carry["gradient"], params, start, carry, hyperparams["rate"])
        return {**moved, "gradient": carry["gradient"]}

    def end(self, carry: State, info: LocalTrainingInfo) -> tuple[State, Sections]:
        """Return the old and new gradients as client state."""
        old: Tensor = carry["gradient"]
        change = self.where_trained(carry["params"] - self.layout.flatten(info.start), 0.0)
        return {"gradient": old.clone(), "next": old - self.proximal * change}, {}

    def settle(self, memory: State, delivered: bool) -> State:
        """Keep the new gradient if the upload arrived, else the old one."""
        return {"gradient": memory["next" if delivered else "gradient"]} if "next" in memory else memory

    def skipped(self, memory: State) -> State:
        """Keep the gradient of entries that the client did not hold."""
        return {"gradient": memory["gradient"], "next": memory["gradient"]}


@dataclass(frozen=True)
class FedDyn(WeightedMean):
    """Mean of client updates, corrected by the mean h of all clients' gradients.

    Args:
        weights: client weights; must be uniform
        over: denominator of the mean; must be cohort
        alpha: strength of the dynamic regularization, the same as in the solver
        clients: the number of clients
        trained: the names of the trained tensors
    """

    weights: str = "uniform"  # type: ignore[assignment]
    alpha: float = 0.1
    clients: int = field(default=0, init=False, repr=False, compare=False)
    trained: tuple[str, ...] = field(default=(), init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        require(
            (0 < self.alpha < math.inf, wrong(self, "alpha", "must be positive")),
            (self.weights == "uniform", wrong(self, "weights", "must be uniform")),
            (self.over == "cohort", wrong(self, "over", "must be cohort")),
            self.fixed_rate(),
        )

    def bind(self, context: Context) -> Self:
        """Return the server for these clients and trained tensors. Refuse a solver with another alpha."""
        solver = context.exchange.solver
        if not isinstance(solver, FedDynSGD) or solver.proximal != self.alpha:
            raise ConfigError(f"FedDyn needs clients with the same alpha: use FedDynSGD(proximal={self.alpha})")
        return self.filled(clients=context.clients, trained=context.trained)

    def init(self, params: Params) -> State:
        """Return the model and h = 0."""
        return {"params": params, "drift": {name: torch.zeros_like(params[name]) for name in self.trained}}

    def finish(self, state: State, acc: Sum, clock: Clock) -> State:
        """Update h and the model. Running statistics are averaged."""
        if acc.weight == 0:
            return state
        params, mean = state["params"], acc.mean()
        drift = {n: h - self.alpha / self.clients * acc.total[n] for n, h in state["drift"].items()}
        moved = {name: params[name] + change for name, change in mean.items()}
        moved |= {name: moved[name] - h / self.alpha for name, h in drift.items()}
        return {**state, "params": self.projected(moved), "drift": drift}


@recipe
def feddyn(*, alpha: float = 0.1, **fields: Unpack[Training]) -> Method:
    """Dynamic regularization that aligns the clients' stationary points.

    Acar et al., Federated Learning Based on Dynamic Regularization, ICLR 2021, https://arxiv.org/abs/2111.04263

    Args:
        alpha: strength of the dynamic regularization
    """
    return compose(Full(), FedDynSGD(**fields, proximal=alpha), Dense(), FedDyn(alpha=alpha))
