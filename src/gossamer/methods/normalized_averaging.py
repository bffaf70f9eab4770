"""FedNova: clients that take unequal numbers of steps count as if they took the same (Wang et al., 2020).

https://arxiv.org/abs/2007.07481

The change of client k is -lr times a sum of its gradients with the weights a_k: ones for plain SGD, larger for early
gradients with momentum. It tells |a_k|_1, which is the number of its steps for plain SGD, and the server normalises:

    w <- w + (sum_k p_k |a_k|_1) (sum_k p_k D_k / |a_k|_1)        with p_k that add up to 1

If all clients take the same number of steps this is FedAvg.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Unpack

import torch

from gossamer.core import tree
from gossamer.core.errors import ConfigError, PayloadError, require, wrong
from gossamer.core.exchange import Arrival, Assignment, Context, LocalTrainingInfo, Section, Sections
from gossamer.core.method import Method
from gossamer.core.solver import Gradient, Hyperparams
from gossamer.core.types import Clock, Params, State
from gossamer.methods.composition import compose
from gossamer.methods.recipes import Averaging, Training, pick, recipe
from gossamer.parts.codecs.dense import Dense
from gossamer.parts.servers.mean import Mean, Sum
from gossamer.parts.solvers.sgd import SGD
from gossamer.parts.views.full import Full

__all__ = ["FedNova", "FedNovaSGD", "fednova"]


@dataclass(frozen=True)
class FedNovaSGD(SGD):
    """SGD that tells the server how much its gradients weigh in its change."""

    sections: ClassVar[tuple[Section, ...]] = (Section("length"),)

    def __post_init__(self) -> None:
        super().__post_init__()
        require((not self.proximal, wrong(self, "proximal", "must be 0, as gradients alone are summed")))

    def begin(self, start: Params, sections: Sections, memory: State, steps: int) -> State:
        """As SGD, with the weight of the last gradient and the sum of all."""
        zero = torch.zeros((), dtype=torch.float64, device=tree.device(start))
        return {**super().begin(start, sections, memory, steps), "last": zero, "length": zero.clone()}

    def step(self, gradient: Gradient, start: Params, carry: State, hyperparams: Hyperparams) -> State:
        """As SGD; with momentum an early gradient is in every later step."""
        last = carry["last"] * self.momentum + 1
        moved = super().step(gradient, start, carry, hyperparams)
        return {**moved, "last": last, "length": carry["length"] + last}

    def end(self, carry: State, info: LocalTrainingInfo) -> tuple[State, Sections]:
        """The sum of the weights."""
        return {}, {"length": carry["length"]}


@dataclass
class Normalised:
    """The sums of a round: of changes, those of trained tensors over their lengths; and of lengths."""

    changes: Sum
    lengths: float = 0.0


@dataclass(frozen=True)
class FedNova(Mean):
    """Averages changes over their lengths, and moves the model by the mean length.

    Args:
        over: cohort: lengths are those of all who arrived
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        require((self.over == "cohort", wrong(self, "over", "must be cohort")), self.fixed_rate())

    def bind(self, context: Context) -> "BoundFedNova":
        """With the names of what is trained; refuses a solver that does not tell its length."""
        if "length" not in {section.name for section in context.exchange.solver.sections}:
            raise ConfigError("FedNova needs clients that tell how long their steps are: use FedNovaSGD()")
        return BoundFedNova(**vars(super().bind(context)), trained=context.trained)


@dataclass(frozen=True)
class BoundFedNova(FedNova):
    """The same with the names of what is trained: others are statistics, and averaged."""

    trained: tuple[str, ...] = field(kw_only=True)

    def begin(self, state: State, assigned: Mapping[int, Assignment]) -> Normalised:  # type: ignore[override]
        """Nothing yet."""
        return Normalised(self.empty(state["params"]))

    def fold(self, acc: Normalised, arrival: Arrival) -> Normalised:  # type: ignore[override]
        """Add one client's change over its length."""
        length, weight = arrival.sections["length"], self.weigh(arrival)
        if length <= 0:
            raise PayloadError(f"length must be positive, got {length}")
        change = arrival.change(acc.changes.vector.device)
        trained = {name: change.pop(name) for name in self.trained}
        arrival.part.add(acc.changes.total, trained, weight / length)
        arrival.part.add(acc.changes.total, change, weight)
        acc.changes.weight += weight
        acc.lengths += weight * length
        return acc

    def finish(self, state: State, acc: Normalised, clock: Clock) -> State:  # type: ignore[override]
        """Move the model by the mean length."""
        weight = acc.changes.weight
        if weight == 0:
            return state
        params, far = state["params"], acc.lengths / weight
        rates = {name: far if name in self.trained else 1.0 for name in params}
        moved = {name: params[name].add(mean, alpha=rates[name]) for name, mean in acc.changes.mean().items()}
        return {**state, "params": self.projected(moved)}


@recipe
def fednova(*, momentum: float = 0.0, **fields: Unpack[Averaging]) -> Method:
    """Changes over their numbers of steps, for clients of unequal size (Wang et al., 2020, https://arxiv.org/abs/2007.07481)."""
    solver = FedNovaSGD(**pick(Training, fields), momentum=momentum)
    return compose(Full(), solver, Dense(), FedNova(fields["weights"]))
