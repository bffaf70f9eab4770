"""SGD on the weights that are left: the clients' part of FedSparsify.

Stripelis et al., Federated Progressive Sparsification (Purge, Merge, Tune)+, 2022, https://arxiv.org/abs/2204.12430. A
weight that is zero in the received model stays zero. In FedSparsify-Local, the client prunes its model after the last
step to the sparsity of the round (``gossamer.parts.pruning_schedule``). In FedSparsify-Global, the server prunes.
Before the first pruning no weight is fixed, so that weights initialized to zero are trained.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from gossamer.core.exchange import Sections
from gossamer.core.solver import Gradient, Hyperparams
from gossamer.core.types import Clock, Params, State
from gossamer.parts.pruning_schedule import Progressive, pruned_to, weights_of
from gossamer.parts.solvers.sgd import SGD


@dataclass(frozen=True)
class SparseSGD(SGD):
    """SGD that keeps zero weights at zero, and prunes its result.

    Args:
        pruning: the sparsity after each round
        local: whether the client prunes its model after the last step, instead of the server
    """

    pruning: Progressive = Progressive()
    local: bool = True

    def hyperparams(self, clock: Clock) -> dict[str, float]:
        """Return the learning rate, whether all weights are trained, and the sparsity after the last step."""
        before = self.pruning.at(clock.round - 1, clock.rounds)
        after = self.pruning.at(clock.round, clock.rounds) if self.local else 0.0
        return {**super().hyperparams(clock), "free": float(before == 0), "share": after}

    def begin(self, start: Params, sections: Sections, memory: State, steps: int) -> State:
        """Return the state of SGD with the number of steps that are left."""
        left = torch.tensor(steps, dtype=torch.int64, device=next(iter(start.values())).device)
        return {**super().begin(start, sections, memory, steps), "left": left}

    def step(self, gradient: Gradient, start: Params, carry: State, hyperparams: Hyperparams) -> State:
        """Take a step of SGD, set pruned weights to zero again, and prune after the last step."""
        moved, left = super().step(gradient, start, carry, hyperparams), carry["left"] - 1
        params, free = moved["params"], hyperparams["free"] > 0
        held = {name: torch.where((start[name] != 0) | free, params[name], 0) for name in weights_of(params)}
        return {**moved, "params": _pruned_last({**params, **held}, hyperparams["share"], left), "left": left}


def _pruned_last(params: Params, share: float | Tensor, left: Tensor) -> Params:
    """Prune if no step is left. A compiled step cannot branch: it always prunes, by a share of 0 before the last."""
    if isinstance(share, Tensor):
        return pruned_to(params, torch.where(left == 0, share, 0))
    return pruned_to(params, share) if share and not left else params
