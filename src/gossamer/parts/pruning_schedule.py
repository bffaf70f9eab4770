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
from gossamer.core.types import Layout, Params


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
    return {name: tensor for name, tensor in params.items() if is_weight(tensor.shape)}


def is_weight(shape: torch.Size) -> bool:
    """Return whether a tensor of this shape is pruned."""
    return len(shape) >= 2


def pieces(layout: Layout, vector: Tensor) -> list[tuple[bool, Tensor]]:
    """Return the tensors behind a vector ``[..., n]`` as pieces of it, each with whether it is pruned."""
    cut = vector.split(layout.counts, -1)
    return [(is_weight(shape), piece) for (_, shape), piece in zip(layout.shapes, cut, strict=True)]


def pruned(params: Tensor, layout: Layout, count: Tensor) -> Tensor:
    """Return a vector ``[..., n]`` with ``count`` ``[..., 1]`` weights set to zero, those of smallest magnitude."""
    magnitudes = [piece.abs() for weight, piece in pieces(layout, params) if weight]
    if not magnitudes:
        return params
    ordered = torch.cat(magnitudes, -1).sort(-1).values
    # The smallest magnitude that is kept. With a count of 0 no magnitude is below it.
    least = ordered.gather(-1, count.to(torch.int64).clamp(max=ordered.shape[-1] - 1))
    return torch.cat([torch.where(t.abs() < least, 0, t) if weight else t for weight, t in pieces(layout, params)], -1)


def weights_in(layout: Layout) -> int:
    """Return the number of weights of a model."""
    return sum(shape.numel() for _, shape in layout.shapes if is_weight(shape))


def count_of(share: float | Tensor, layout: Layout, like: Tensor) -> Tensor:
    """Return a fraction of the weights, rounded down to a whole number of them, as ``[..., 1]``."""
    share = torch.as_tensor(share, dtype=like.dtype, device=like.device)
    return (share * weights_in(layout)).floor().expand_as(like[..., :1])


def pruned_to(params: Params, share: float) -> Params:
    """Return the tensors with a fraction of the weights set to zero, rounded down to a whole number of weights."""
    layout = Layout.of(params)
    vector = layout.flatten(params)
    return layout.unflatten(pruned(vector, layout, count_of(share, layout, vector)))
