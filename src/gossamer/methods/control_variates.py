"""SCAFFOLD: control variates that correct client drift.

Karimireddy et al., SCAFFOLD: Stochastic Controlled Averaging for Federated Learning, ICML 2020,
https://arxiv.org/abs/1910.06378.

The control variate c_k of client k estimates its gradient, and the server's control variate c is the mean of all c_k.
All start at 0. A client receives the model w and c. It corrects each local step by their difference:

    y <- y - lr (g(y) - c_k + c)

After K steps it sends y - w and c_k' - c_k, where the new control variate c_k' is

    option 1    the gradient of all its samples at w, which costs one more pass over them
    option 2    c_k - c + (w - y) / (K lr)      the mean of its gradients, at no cost

The server adds server_lr times the mean of y - w to the model. It adds the sum of c_k' - c_k, divided by the number of
all clients, to c. If an upload is lost, the client keeps c_k, so c stays the mean of all c_k.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal, Self, Unpack

import torch
from torch import Tensor

from gossamer.core.errors import ConfigError, require, wrong
from gossamer.core.exchange import Arrival, Assignment, Context, Download, LocalTrainingInfo, Section, Sections
from gossamer.core.method import Method
from gossamer.core.solver import Gradient, Hyperparams
from gossamer.core.types import Clock, Params, State
from gossamer.methods.composition import compose
from gossamer.methods.recipes import Averaging, Training, pick, recipe
from gossamer.parts.codecs.dense import Dense
from gossamer.parts.servers.mean import Sum, WeightedMean
from gossamer.parts.solvers.sgd import PlainDescent
from gossamer.parts.views.entries import Full

__all__ = ["Scaffold", "ScaffoldSGD", "scaffold"]


@dataclass(frozen=True)
class ScaffoldSGD(PlainDescent):
    """SGD with gradients corrected by control variates.

    Args:
        option: client control variate: 1 (full gradient at the received model) or 2 (mean of local gradients)
    """

    option: Literal[1, 2] = 2
    sections: ClassVar[tuple[Section, ...]] = (Section("control_change", "model"),)
    stateful: ClassVar[bool] = True

    def __post_init__(self) -> None:
        require(
            *self.rules(),
            (self.option in (1, 2), wrong(self, "option", "must be 1 or 2")),
            (not self.momentum, wrong(self, "momentum", "must be 0: control variates need plain gradient steps")),
        )

    def bind(self, context: Context) -> Self:
        """Refuse a server without a control variate."""
        if "control" not in {section.name for section in context.exchange.server.sections}:
            raise ConfigError("ScaffoldSGD needs a server that sends a control variate: use Scaffold()")
        return self

    def init(self, context: Context) -> State:
        """Return a control variate of 0."""
        layout = self.layout
        return {"control": torch.zeros(layout.size, dtype=layout.dtype, device=context.network.device)}

    def begin(self, start: Tensor, sections: Sections, memory: State, steps: int) -> State:
        """Return the state of SGD with both control variates and the sum of learning rates so far."""
        controls = {"control": memory["control"], "shared": sections["control"]}
        return {**self.begun(start), **controls, "far": torch.zeros_like(start[..., :1])}

    def step(self, gradient: Gradient, start: Tensor, carry: State, hyperparams: Hyperparams) -> State:
        """Take a step of SGD with a corrected gradient."""
        grads, params = gradient(carry["params"])
        corrected = grads + (carry["shared"] - carry["control"])
        moved = self.moved(corrected, params, start, carry, hyperparams["rate"])
        return {**carry, **moved, "far": carry["far"] + hyperparams["rate"]}

    def end(self, carry: State, info: LocalTrainingInfo) -> tuple[State, Sections]:
        """Return the old and new control variates as client state, and their difference for the server."""
        old: Tensor = carry["control"]
        if self.option == 1:
            new = self.layout.padded(info.start_gradient())
        else:
            change = self.layout.flatten(info.start) - carry["params"]
            new = self.where_trained(old - carry["shared"] + change / carry["far"], 0.0)
        return {"control": old.clone(), "next": new}, {"control_change": new - old}

    def settle(self, memory: State, delivered: bool) -> State:
        """Keep the new control variate if the upload arrived, else the old one."""
        return {"control": memory["next" if delivered else "control"]} if "next" in memory else memory

    def skipped(self, memory: State) -> State:
        """Keep the control variate of entries that the client did not hold."""
        return {"control": memory["control"], "next": memory["control"]}


@dataclass
class Sums:
    """Accumulator of a round: the sums of model updates and of control variate updates."""

    changes: Sum
    controls: Params


@dataclass(frozen=True)
class Scaffold(WeightedMean):
    """Weighted mean of client updates, with the mean of all clients' control variates in the download.

    Args:
        clients: the number of clients
        trained: the names of the trained tensors
    """

    sections: ClassVar[tuple[Section, ...]] = (Section("control", "model"),)

    clients: int = field(default=0, init=False, repr=False, compare=False)
    trained: tuple[str, ...] = field(default=(), init=False, repr=False, compare=False)

    def bind(self, context: Context) -> Self:
        """Return the server for these clients and trained tensors. Refuse a solver without control variates."""
        if "control_change" not in {section.name for section in context.exchange.solver.sections}:
            raise ConfigError("Scaffold needs clients with control variates: use ScaffoldSGD()")
        return super().bind(context).filled(clients=context.clients, trained=context.trained)

    def init(self, params: Params) -> State:
        """Return the model and a control variate of 0."""
        return {"params": params, "control": {name: torch.zeros_like(params[name]) for name in self.trained}}

    def download(self, state: State, assignment: Assignment) -> Download:
        """Return the model and the control variate."""
        return Download((state["params"],), {"control": state["control"]})

    def begin(self, state: State, assigned: Mapping[int, Assignment]) -> Sums:
        """Return empty sums."""
        return Sums(self.empty(state["params"]), {n: torch.zeros_like(c) for n, c in state["control"].items()})

    def fold(self, acc: Sums, arrival: Arrival) -> Sums:
        """Add one client's update, multiplied by its weight, and the update of its control variate."""
        # The model update comes first: it raises if it cannot be decoded, and then nothing was added.
        acc.changes.add(arrival, self.weigh(arrival))
        arrival.part.add(acc.controls, arrival.sections["control_change"], 1.0)
        return acc

    def finish(self, state: State, acc: Sums, clock: Clock) -> State:
        """Update the model and the control variate. Running statistics are averaged, without ``server_lr``."""
        if acc.changes.weight == 0:
            return state
        params: Params = state["params"]
        rates = {name: self.server_lr if name in self.trained else 1.0 for name in params}
        moved = {name: params[name].add(mean, alpha=rates[name]) for name, mean in acc.changes.mean().items()}
        control = {n: c + acc.controls[n] / self.clients for n, c in state["control"].items()}
        return {**state, "params": self.projected(moved), "control": control}


@recipe(weights="uniform")
def scaffold(*, option: Literal[1, 2] = 2, server_lr: float = 1.0, **fields: Unpack[Averaging]) -> Method:
    """FedAvg with control variates that correct client drift.

    Karimireddy et al., SCAFFOLD: Stochastic Controlled Averaging for Federated Learning, ICML 2020,
    https://arxiv.org/abs/1910.06378

    Args:
        option: client control variate: 1 (full gradient at the received model) or 2 (mean of local gradients)
        server_lr: server learning rate, the factor of the mean update
    """
    solver = ScaffoldSGD(**pick(Training, fields), option=option)
    return compose(Full(), solver, Dense(), Scaffold(fields["weights"], server_lr=server_lr))
