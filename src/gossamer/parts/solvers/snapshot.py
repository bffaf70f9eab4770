"""SGD that keeps a snapshot of the weights after the first epoch. Pruning views compare it with the final weights."""

from dataclasses import dataclass

import torch

from gossamer.core import tree
from gossamer.core.errors import require, wrong
from gossamer.core.exchange import Sections
from gossamer.core.solver import Gradient, Hyperparams
from gossamer.core.types import Params, State
from gossamer.parts.solvers.sgd import SGD


@dataclass(frozen=True)
class SnapshotSGD(SGD):
    """SGD by epochs, with the weights after the first epoch stored as ``early``."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require((self.steps is None, wrong(self, "steps", "must be none: the snapshot is taken after an epoch")))

    def begin(self, start: Params, sections: Sections, memory: State, steps: int) -> State:
        """Return the state of SGD with the number of steps until the snapshot."""
        some = next(iter(start.values()))
        first = torch.tensor(max(1, steps // self.epochs), device=some.device)
        return {**super().begin(start, sections, memory, steps), "early": tree.clone(start), "left": first}

    def step(self, gradient: Gradient, start: Params, carry: State, hyperparams: Hyperparams) -> State:
        """Take a step of SGD, and the snapshot after the last step of the first epoch."""
        moved = super().step(gradient, start, carry, hyperparams)
        left = carry["left"] - 1
        early = {name: torch.where(left == 0, moved["params"][name], old) for name, old in carry["early"].items()}
        return {**moved, "early": early, "left": left}
