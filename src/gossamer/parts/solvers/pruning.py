"""SGD with gradual magnitude pruning: after each step, the weights of smallest magnitude are set to zero.

Stripelis et al., Federated Progressive Sparsification (Purge, Merge, Tune)+, 2022, https://arxiv.org/abs/2204.12430.

After step t of T in a round, the sparsity is at least

    sparsity (1 - (1 - t / T)**3)

over all tensors with two or more dimensions together. Norms and biases are never pruned. A pruned weight can become
nonzero again in a later step. After the last step of the round, the sparsity is ``sparsity``.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from gossamer.core.errors import require, wrong
from gossamer.core.exchange import Sections
from gossamer.core.solver import Gradient, Hyperparams
from gossamer.core.types import Params, State
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
        return {**moved, "params": pruned(moved["params"], share), "step": taken, "steps": carry["steps"]}


def pruned(params: Params, share: Tensor) -> Params:
    """Return the tensors with the given fraction of weights set to zero, those of smallest magnitude."""
    weights = {name: tensor for name, tensor in params.items() if tensor.dim() >= 2 and tensor.is_floating_point()}
    if not weights:
        return params
    magnitudes = torch.cat([tensor.abs().reshape(-1) for tensor in weights.values()]).sort().values
    count = (share * len(magnitudes)).round().to(torch.int64)
    # The smallest magnitude that is kept. With a count of 0 no magnitude is below it.
    smallest = magnitudes.gather(0, count.clamp(max=len(magnitudes) - 1).view(1))
    return {**params, **{name: torch.where(tensor.abs() < smallest, 0, tensor) for name, tensor in weights.items()}}
