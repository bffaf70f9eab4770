"""Progressive sparsification: how many weights are pruned after each round, and which.

Stripelis et al., Federated Progressive Sparsification (Purge, Merge, Tune)+, 2022, https://arxiv.org/abs/2204.12430. In
round t of T, counted from 1, the sparsity is

    s_t = S (1 - (1 - (F floor(t / F) - t_0) / (T - t_0))**n)

with the final sparsity S, the first round t_0, a pruning every F rounds, and the exponent n. It is 0 before t_0. A
larger exponent prunes more in early rounds. Weights of smallest magnitude are pruned, over all tensors with two or more
dimensions together. The authors prune biases and norms too; here they are never pruned.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from gossamer.core.errors import require, wrong
from gossamer.core.fields import CheckedFields
from gossamer.core.types import Params


@dataclass(frozen=True)
class Progressive(CheckedFields):
    """The sparsity after each round.

    Args:
        sparsity: fraction of the weights that are zero after the last round
        first: round, counted from 1, up to which nothing is pruned
        every: number of rounds from one pruning to the next
        exponent: larger values prune more in early rounds
    """

    sparsity: float = 0.95
    first: int = 1
    every: int = 1
    exponent: float = 3.0

    def __post_init__(self) -> None:
        require(
            (0 <= self.sparsity < 1, wrong(self, "sparsity", "must be in [0, 1)")),
            (self.first >= 1, wrong(self, "first", "must be at least 1")),
            (self.every >= 1, wrong(self, "every", "must be at least 1")),
            (self.exponent > 0, wrong(self, "exponent", "must be positive")),
        )

    def at(self, round_: int, rounds: int) -> float:
        """Return the sparsity after round ``round_`` of ``rounds``, counted from 0."""
        now = (round_ + 1) // self.every * self.every
        if now <= self.first:
            # A run that ends with its first pruning has the final sparsity.
            return self.sparsity if now == self.first == rounds else 0.0
        left = 1 - (now - self.first) / (rounds - self.first)
        return self.sparsity * (1 - math.pow(left, self.exponent))


def weights_of(params: Params) -> Params:
    """Return the tensors that are pruned."""
    return {name: tensor for name, tensor in params.items() if tensor.dim() >= 2 and tensor.is_floating_point()}


def pruned(params: Params, count: Tensor) -> Params:
    """Return the tensors with ``count`` weights set to zero, those of smallest magnitude."""
    weights = weights_of(params)
    if not weights:
        return params
    magnitudes = torch.cat([tensor.abs().reshape(-1) for tensor in weights.values()]).sort().values
    # The smallest magnitude that is kept. With a count of 0 no magnitude is below it.
    smallest = magnitudes.gather(0, count.to(torch.int64).clamp(max=len(magnitudes) - 1).view(1))
    return {**params, **{name: torch.where(tensor.abs() < smallest, 0, tensor) for name, tensor in weights.items()}}


def pruned_to(params: Params, share: float | Tensor) -> Params:
    """Return the tensors with a fraction of the weights set to zero, rounded down to a whole number of weights."""
    some = next(iter(params.values()))
    total = sum(tensor.numel() for tensor in weights_of(params).values())
    return pruned(params, (torch.as_tensor(share, dtype=some.dtype, device=some.device) * total).floor())
