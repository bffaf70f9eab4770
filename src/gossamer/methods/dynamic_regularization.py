"""FedDyn: every client's loss is bent so that its minimum is where that of all is (Acar et al., 2021).

https://arxiv.org/abs/2111.04263

Client k remembers h_k, which starts as 0. From the model w that it gets, it minimises

    F_k(v) - <h_k, v> + alpha / 2 |v - w|^2,    so that a step is    v <- v - lr (g(v) - h_k + alpha (v - w))

and then takes h_k - alpha (v - w) for its next h_k, which is the gradient of F_k at v where that is a minimum. The
server remembers h, the mean of what all clients (N, present or not) remember with the other sign:

    h <- h - alpha / N sum_k (v_k - w)          over those who arrived
    w <- mean_k v_k - h / alpha                 over those who arrived
"""

import math
from dataclasses import dataclass, field
from typing import Unpack

import torch

from gossamer.core import tree
from gossamer.core.errors import ConfigError, require, wrong
from gossamer.core.exchange import Context, LocalTrainingInfo, Sections
from gossamer.core.method import Method
from gossamer.core.solver import Gradient, Hyperparams, SolverMemory
from gossamer.core.types import Clock, Params, State
from gossamer.methods.composition import compose
from gossamer.methods.recipes import Training, recipe
from gossamer.parts.codecs.dense import Dense
from gossamer.parts.servers.mean import Mean, Sum
from gossamer.parts.solvers.sgd import SGD
from gossamer.parts.views.full import Full

__all__ = ["FedDyn", "FedDynSGD", "feddyn"]

Gradients = tuple[Params, Params]  # named, because the compiler reads annotations too, and trips over brackets


@dataclass(frozen=True)
class FedDynSGD(SolverMemory, SGD):
    """SGD on a loss that is bent by what the client remembers; ``proximal`` is alpha."""

    proximal: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        require((self.proximal > 0, wrong(self, "proximal", ", which is alpha, must be positive")))

    def init(self, context: Context) -> State:
        """A gradient of 0."""
        like = context.network.outline()
        return {"gradient": {name: torch.zeros_like(like[name]).contiguous() for name in context.trained}}

    def begin(self, start: Params, sections: Sections, memory: State, steps: int) -> State:
        """As SGD, with what the client remembers."""
        return {**super().begin(start, sections, memory, steps), "gradient": dict(memory["gradient"])}

    def step(self, gradient: Gradient, start: Params, carry: State, hyperparams: Hyperparams) -> State:
        """A step of SGD on the bent loss."""

        def bent(params: Params) -> Gradients:
            grads, forward = gradient(params)
            return tree.shift(grads, carry["gradient"], -1.0), forward

        return {**super().step(bent, start, carry, hyperparams), "gradient": carry["gradient"]}

    def end(self, carry: State, info: LocalTrainingInfo) -> tuple[State, Sections]:
        """The gradient where the client ended."""
        old: Params = carry["gradient"]
        new = {name: g - self.proximal * (carry["params"][name] - info.start[name]) for name, g in old.items()}
        return {"gradient": tree.clone(old), "next": new}, {}

    def settle(self, memory: State, delivered: bool) -> State:
        """The new gradient counts once the server has the change that it follows from."""
        return {"gradient": memory["next" if delivered else "gradient"]} if "next" in memory else memory

    def skipped_state(self, memory: State) -> State:
        """What is not held stays as it is."""
        return {"gradient": memory["gradient"], "next": memory["gradient"]}


@dataclass(frozen=True)
class FedDyn(Mean):
    """Averages changes, one each, and moves the model by what all clients remember.

    Args:
        weights: uniform: all that arrive count alike
        over: cohort: the sum of what clients remember is over all entries
        alpha: strength of the pull back to where a round began; that of the solver
    """

    weights: str = "uniform"  # type: ignore[assignment]
    alpha: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        require(
            (0 < self.alpha < math.inf, wrong(self, "alpha", "must be positive")),
            (self.weights == "uniform", wrong(self, "weights", "must be uniform")),
            (self.over == "cohort", wrong(self, "over", "must be cohort")),
            self.fixed_rate(),
        )

    def bind(self, context: Context) -> "BoundFedDyn":
        """With the number of clients, and the names of what is trained; refuses another alpha than the solver's."""
        solver = context.exchange.solver
        if not isinstance(solver, FedDynSGD) or solver.proximal != self.alpha:
            raise ConfigError(f"FedDyn needs clients with the same alpha: use FedDynSGD(proximal={self.alpha})")
        return BoundFedDyn(**vars(self), clients=context.clients, trained=context.trained)


@dataclass(frozen=True)
class BoundFedDyn(FedDyn):
    """The same with the number of clients, and the names of what is trained."""

    clients: int = field(kw_only=True)
    trained: tuple[str, ...] = field(kw_only=True)

    def init(self, params: Params) -> State:
        """The model, and nothing remembered."""
        return {"params": params, "drift": {name: torch.zeros_like(params[name]) for name in self.trained}}

    def finish(self, state: State, acc: Sum, clock: Clock) -> State:
        """The two lines above; statistics of the network are averaged."""
        if acc.weight == 0:
            return state
        params, mean = state["params"], acc.mean()
        drift = {n: h - self.alpha / self.clients * acc.total[n] for n, h in state["drift"].items()}
        moved = {name: params[name] + change for name, change in mean.items()}
        moved |= {name: moved[name] - h / self.alpha for name, h in drift.items()}
        return {**state, "params": self.projected(moved), "drift": drift}


@recipe
def feddyn(*, alpha: float = 0.1, **fields: Unpack[Training]) -> Method:
    """Losses bent so that clients agree on the minimum (Acar et al., 2021, https://arxiv.org/abs/2111.04263)."""
    return compose(Full(), FedDynSGD(**fields, proximal=alpha), Dense(), FedDyn(alpha=alpha))
