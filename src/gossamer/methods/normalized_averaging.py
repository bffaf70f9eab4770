"""FedNova: updates normalized by the number of local steps.

Wang et al., Tackling the Objective Inconsistency Problem in Heterogeneous Federated Optimization, NeurIPS 2020,
https://arxiv.org/abs/2007.07481.

The update D_k of client k is -lr times a weighted sum of its gradients. The weights a_k are 1 for plain SGD, and larger
for early gradients with momentum. The client sends |a_k|_1, which is the number of local steps for plain SGD. The
server normalizes by it:

    w <- w + (sum_k p_k |a_k|_1) (sum_k p_k D_k / |a_k|_1)        where the p_k sum to 1

If all clients take the same number of steps, this is FedAvg.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Self, Unpack

import torch
from torch import Tensor

from gossamer.core.errors import ConfigError, PayloadError, require, wrong
from gossamer.core.exchange import Arrival, Assignment, Context, LocalTrainingInfo, Section, Sections
from gossamer.core.method import Method
from gossamer.core.solver import Gradient, Hyperparams
from gossamer.core.types import Clock, State
from gossamer.methods.composition import compose
from gossamer.methods.recipes import Averaging, Training, pick, recipe
from gossamer.parts.codecs.dense import Dense
from gossamer.parts.servers.mean import Sum, WeightedMean
from gossamer.parts.solvers.sgd import PlainDescent
from gossamer.parts.views.entries import Full

__all__ = ["FedNova", "FedNovaSGD", "fednova"]


@dataclass(frozen=True)
class FedNovaSGD(PlainDescent):
    """SGD that sends the total weight of its gradients, |a_k|_1, as the section ``length``."""

    sections: ClassVar[tuple[Section, ...]] = (Section("length"),)

    def __post_init__(self) -> None:
        text = "must be 0: FedNova normalizes sums of gradients"
        require(*self.rules(), (not self.proximal, wrong(self, "proximal", text)))

    def begin(self, start: Tensor, sections: Sections, memory: State, steps: int) -> State:
        """Return the state of SGD with the velocity weight of the last step and the sum of weights."""
        zero = torch.zeros_like(start[..., :1], dtype=torch.float64)
        return {**self.begun(start), "last": zero, "length": zero.clone()}

    def step(self, gradient: Gradient, start: Tensor, carry: State, hyperparams: Hyperparams) -> State:
        """Take a step of SGD, and add its weight. With momentum, a gradient contributes to all later steps."""
        last = carry["last"] * self.momentum + 1
        moved = self.stepped(gradient, start, carry, hyperparams["rate"])
        return {**moved, "last": last, "length": carry["length"] + last}

    def end(self, carry: State, info: LocalTrainingInfo) -> tuple[State, Sections]:
        """Return the sum of the weights for the server."""
        return {}, {"length": carry["length"]}


@dataclass
class Normalised:
    """Accumulator of a round: the sum of updates divided by their lengths, and the sum of lengths."""

    changes: Sum
    lengths: float = 0.0


@dataclass(frozen=True)
class FedNova(WeightedMean):
    """Weighted mean of normalized updates, multiplied by the mean length.

    Args:
        over: denominator of the mean; must be cohort
        trained: the names of the trained tensors; running statistics are averaged without normalization
    """

    trained: tuple[str, ...] = field(default=(), init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        require((self.over == "cohort", wrong(self, "over", "must be cohort")), self.fixed_rate())

    def bind(self, context: Context) -> Self:
        """Return the server with the names of the trained tensors. Refuse a solver that does not send its length."""
        if "length" not in {section.name for section in context.exchange.solver.sections}:
            raise ConfigError("FedNova needs clients that send the length of their updates: use FedNovaSGD()")
        return super().bind(context).filled(trained=context.trained)

    def begin(self, state: State, assigned: Mapping[int, Assignment]) -> Normalised:
        """Return empty sums."""
        return Normalised(self.empty(state["params"]))

    def fold(self, acc: Normalised, arrival: Arrival) -> Normalised:
        """Add one client's update, divided by its length."""
        length, weight = arrival.sections["length"], self.weigh(arrival)
        if length < 1:
            raise PayloadError(f"length must be at least 1, that of one step, got {length}")
        change = arrival.change(acc.changes.vector.device)
        trained = {name: change.pop(name) for name in self.trained}
        arrival.part.add(acc.changes.total, trained, weight / length)
        arrival.part.add(acc.changes.total, change, weight)
        acc.changes.weight += weight
        acc.lengths += weight * length
        return acc

    def finish(self, state: State, acc: Normalised, clock: Clock) -> State:
        """Add the mean of normalized updates, multiplied by the mean length, to the model."""
        weight = acc.changes.weight
        if weight == 0:
            return state
        params, far = state["params"], acc.lengths / weight
        rates = {name: far if name in self.trained else 1.0 for name in params}
        moved = {name: params[name].add(mean, alpha=rates[name]) for name, mean in acc.changes.mean().items()}
        return {**state, "params": self.projected(moved)}


@recipe
def fednova(*, momentum: float = 0.0, **fields: Unpack[Averaging]) -> Method:
    """FedAvg with updates normalized by the number of local steps.

    Wang et al., Tackling the Objective Inconsistency Problem in Heterogeneous Federated Optimization, NeurIPS 2020,
    https://arxiv.org/abs/2007.07481

    Args:
        momentum: heavy-ball momentum, reset in every round
    """
    solver = FedNovaSGD(**pick(Training, fields), momentum=momentum)
    return compose(Full(), solver, Dense(), FedNova(fields["weights"]))
