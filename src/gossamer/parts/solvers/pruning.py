"""SGD that prunes as it goes: the weights of smallest magnitude are set to zero, more of them step by step.

After step t of the round's T the share of weights that are zero is at least

    sparsity (1 - (1 - t / T)**3)

counted over all tensors with two or more dimensions together; norms and biases are never pruned. A weight that was
pruned may grow again in a later step. After the last step the share is ``sparsity``.
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
    """SGD whose weights are pruned by magnitude, gradually.

    Args:
        sparsity: share of the weights that are zero at the end of the round
    """

    sparsity: float = 0.97

    def __post_init__(self) -> None:
        super().__post_init__()
        require((0 <= self.sparsity < 1, wrong(self, "sparsity", "must be in [0, 1)")))

    def begin(self, start: Params, sections: Sections, memory: State, steps: int) -> State:
        """As SGD, with a count of the steps."""
        some = next(iter(start.values()))
        taken, of = (torch.tensor(n, dtype=torch.float64, device=some.device) for n in (0, steps))
        return {**super().begin(start, sections, memory, steps), "step": taken, "steps": of}

    def step(self, gradient: Gradient, start: Params, carry: State, hyperparams: Hyperparams) -> State:
        """A step of SGD, then pruning."""
        moved = super().step(gradient, start, carry, hyperparams)
        taken = carry["step"] + 1
        share = self.sparsity * (1 - (1 - taken / carry["steps"]) ** 3)
        return {**moved, "params": pruned(moved["params"], share), "step": taken, "steps": carry["steps"]}


def pruned(params: Params, share: Tensor) -> Params:
    """The tensors with that share of their weights set to zero, those of smallest magnitude."""
    weights = {name: tensor for name, tensor in params.items() if tensor.dim() >= 2 and tensor.is_floating_point()}
    if not weights:
        return params
    magnitudes = torch.cat([tensor.abs().reshape(-1) for tensor in weights.values()]).sort().values
    many = (share * len(magnitudes)).round().to(torch.int64)
    # The smallest magnitude that stays; of none to be pruned, none is below the smallest.
    least = magnitudes.gather(0, many.clamp(max=len(magnitudes) - 1).view(1))
    return {**params, **{name: torch.where(tensor.abs() < least, 0, tensor) for name, tensor in weights.items()}}
