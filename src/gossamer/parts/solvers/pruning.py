"""SGD with gradual magnitude pruning within a round: after each step, the smallest weights are set to zero.

The schedule is that of Zhu and Gupta, To prune, or not to prune, 2017, https://arxiv.org/abs/1710.01878, over the steps
of one round. Every round starts again without pruning. FedSparsify, in contrast, prunes over the rounds of a run: see
``gossamer.parts.pruning_schedule``.

After step t of T in a round, the sparsity is at least

    sparsity (1 - (1 - t / T)**3)

over all tensors with two or more dimensions together. Norms and biases are never pruned. A pruned weight can become
nonzero again in a later step. After the last step of the round, the sparsity is ``sparsity``.
"""

from dataclasses import dataclass

import torch

from gossamer.core.errors import require, wrong
from gossamer.core.exchange import Sections
from gossamer.core.solver import Gradient, Hyperparams
from gossamer.core.types import Params, State
from gossamer.parts.pruning_schedule import pruned, weights_of
from gossamer.parts.solvers.sgd import SGD


@dataclass(frozen=True)
class PruningSGD(SGD):
    """SGD with gradual magnitude pruning.

    Args:
        sparsity: fraction of the weights that are zero at the end of each round
    """

    sparsity: float = 0.97

    def __post_init__(self) -> None:
        super().__post_init__()
        require((0 <= self.sparsity < 1, wrong(self, "sparsity", "must be in [0, 1)")))

    def begin(self, start: Params, sections: Sections, memory: State, steps: int) -> State:
        """Return the state of SGD with the number of steps taken and planned."""
        some = next(iter(start.values()))
        taken, of = (torch.tensor(n, dtype=torch.float64, device=some.device) for n in (0, steps))
        return {**super().begin(start, sections, memory, steps), "step": taken, "steps": of}

    def step(self, gradient: Gradient, start: Params, carry: State, hyperparams: Hyperparams) -> State:
        """Take a step of SGD, then prune."""
        moved = super().step(gradient, start, carry, hyperparams)
        taken = carry["step"] + 1
        share = self.sparsity * (1 - (1 - taken / carry["steps"]) ** 3)
        total = sum(tensor.numel() for tensor in weights_of(moved["params"]).values())
        params = pruned(moved["params"], (share * total).round())
        return {**moved, "params": params, "step": taken, "steps": carry["steps"]}
