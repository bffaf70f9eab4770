"""SCAFFOLD: control variates correct the drift of clients whose data differ (Karimireddy et al., 2020).

https://arxiv.org/abs/1910.06378

The server has a control variate c, the mean of what the clients' gradients are, and each client k one of its own, c_k.
Both start as 0. A client gets the model w and c, and corrects each of its steps by the difference:

    y <- y - lr (g(y) - c_k + c)

After K steps it replaces its own by c_k' and sends y - w and c_k' - c_k, where c_k' is

    option 2    c_k - c + (w - y) / (K lr)      the mean of its corrected steps, for free
    option 1    the gradient of all its samples at w, which takes one more pass over them

The server adds server_lr times the mean of y - w to the model, and the sum of c_k' - c_k over the number of all clients
to c. If a message is lost its client keeps the old c_k, so that c stays the mean of all c_k.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal, Unpack

import torch

from gossamer.core import tree
from gossamer.core.errors import ConfigError, require, wrong
from gossamer.core.exchange import Arrival, Assignment, Context, Download, LocalTrainingInfo, Section, Sections
from gossamer.core.method import Method
from gossamer.core.solver import Gradient, Hyperparams, SolverMemory
from gossamer.core.types import Clock, Params, State
from gossamer.methods.composition import compose
from gossamer.methods.recipes import Averaging, Training, pick, recipe
from gossamer.parts.codecs.dense import Dense
from gossamer.parts.servers.mean import Mean, Sum
from gossamer.parts.solvers.sgd import SGD
from gossamer.parts.views.full import Full

__all__ = ["Scaffold", "ScaffoldSGD", "scaffold"]

Gradients = tuple[Params, Params]  # named, because the compiler reads annotations too, and trips over brackets


@dataclass(frozen=True)
class ScaffoldSGD(SolverMemory, SGD):
    """SGD whose gradients are corrected by the difference of two control variates.

    Args:
        option: which control variate a client takes next: 1 (a gradient of all samples) or 2 (the mean of its steps)
    """

    option: Literal[1, 2] = 2
    sections: ClassVar[tuple[Section, ...]] = (Section("control_change", "model"),)

    def __post_init__(self) -> None:
        super().__post_init__()
        require(
            (self.option in (1, 2), wrong(self, "option", "must be 1 or 2")),
            (not self.momentum, wrong(self, "momentum", "must be 0: steps are to be gradients")),
        )

    def bind(self, context: Context) -> "ScaffoldSGD":
        """Refuse a server that has no control variate."""
        if "control" not in {section.name for section in context.exchange.server.sections}:
            raise ConfigError("ScaffoldSGD needs a server that sends a control variate: use Scaffold()")
        return self

    def init(self, context: Context) -> State:
        """A control variate of 0."""
        like = context.network.outline()
        return {"control": {name: torch.zeros_like(like[name]).contiguous() for name in context.trained}}

    def begin(self, start: Params, sections: Sections, memory: State, steps: int) -> State:
        """As SGD, with both control variates, and how far all steps would go with a gradient of 1."""
        carry, control = super().begin(start, sections, memory, steps), memory["control"]
        far = torch.zeros((), dtype=next(iter(control.values())).dtype, device=tree.device(control))
        return {**carry, "control": dict(control), "shared": dict(sections["control"]), "far": far}

    def step(self, gradient: Gradient, start: Params, carry: State, hyperparams: Hyperparams) -> State:
        """A step of SGD with a corrected gradient."""

        def corrected(params: Params) -> Gradients:
            grads, forward = gradient(params)
            shift = tree.subtract(carry["shared"], carry["control"])
            return tree.shift(grads, shift, 1.0), forward

        moved = super().step(corrected, start, carry, hyperparams)
        return {
            **moved,
            "control": carry["control"],
            "shared": carry["shared"],
            "far": carry["far"] + hyperparams["rate"],
        }

    def end(self, carry: State, info: LocalTrainingInfo) -> tuple[State, Sections]:
        """The next control variate, and how it differs from that before."""
        old: Params = carry["control"]
        if self.option == 1:
            new = info.start_gradient()
        else:
            steps = {name: (info.start[name] - carry["params"][name]) / carry["far"] for name in old}
            new = tree.add(tree.subtract(old, carry["shared"]), steps)
        return {"control": tree.clone(old), "next": tree.clone(new)}, {"control_change": tree.subtract(new, old)}

    def settle(self, memory: State, delivered: bool) -> State:
        """The next control variate counts once the server has it."""
        return {"control": memory["next" if delivered else "control"]} if "next" in memory else memory

    def skipped_state(self, memory: State) -> State:
        """What is not held stays as it is."""
        return {"control": memory["control"], "next": memory["control"]}


@dataclass
class Sums:
    """The sums of a round: of changes, and of changes of control variates."""

    changes: Sum
    controls: Params


@dataclass(frozen=True)
class Scaffold(Mean):
    """Averages changes, and keeps the mean of all clients' control variates, which it sends along."""

    sections: ClassVar[tuple[Section, ...]] = (Section("control", "model"),)

    def bind(self, context: Context) -> "BoundScaffold":
        """With the number of clients, and the names of what is trained; refuses a solver without control variates."""
        if "control_change" not in {section.name for section in context.exchange.solver.sections}:
            raise ConfigError("Scaffold needs clients with control variates: use ScaffoldSGD()")
        bound = super().bind(context)
        return BoundScaffold(**vars(bound), clients=context.clients, trained=context.trained)


@dataclass(frozen=True)
class BoundScaffold(Scaffold):
    """The same with the number of clients, and the names of what is trained."""

    clients: int = field(kw_only=True)
    trained: tuple[str, ...] = field(kw_only=True)

    def init(self, params: Params) -> State:
        """The model, and a control variate of 0."""
        return {"params": params, "control": {name: torch.zeros_like(params[name]) for name in self.trained}}

    def download(self, state: State, assignment: Assignment) -> Download:
        """The model and the control variate."""
        return Download((state["params"],), {"control": state["control"]})

    def begin(self, state: State, assigned: Mapping[int, Assignment]) -> Sums:  # type: ignore[override]
        """Nothing yet."""
        return Sums(self.empty(state["params"]), {n: torch.zeros_like(c) for n, c in state["control"].items()})

    def fold(self, acc: Sums, arrival: Arrival) -> Sums:  # type: ignore[override]
        """Add one client's change, times its weight, and that of its control variate."""
        self.add(
            acc.changes, arrival, self.weigh(arrival)
        )  # first, as a message that cannot be decoded is refused here
        arrival.part.add(acc.controls, arrival.sections["control_change"], 1.0)
        return acc

    def finish(self, state: State, acc: Sums, clock: Clock) -> State:  # type: ignore[override]
        """Move the model and the control variate; statistics of the network take the mean as it is."""
        if acc.changes.weight == 0:
            return state
        params: Params = state["params"]
        rates = {name: self.server_lr if name in self.trained else 1.0 for name in params}
        moved = {name: params[name].add(mean, alpha=rates[name]) for name, mean in acc.changes.mean().items()}
        control = {n: c + acc.controls[n] / self.clients for n, c in state["control"].items()}
        return {**state, "params": self.projected(moved), "control": control}


@recipe(weights="uniform")
def scaffold(*, option: Literal[1, 2] = 2, server_lr: float = 1.0, **fields: Unpack[Averaging]) -> Method:
    """Steps corrected by control variates, against client drift (Karimireddy et al., 2020, https://arxiv.org/abs/1910.06378)."""
    solver = ScaffoldSGD(**pick(Training, fields), option=option)
    return compose(Full(), solver, Dense(), Scaffold(fields["weights"], server_lr=server_lr))
