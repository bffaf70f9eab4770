"""PERM's objective: for each client a mixture of all clients' losses, and the learning rate of its theorem.

From Deng, Kamani, Mahdavinia and Mahdavi, "Distributed personalized empirical risk minimization",
https://arxiv.org/abs/2310.17761. Client i's objective is ``Phi_i(v) = sum_j a_i(j) f_j(v)``, where f_j is the mean loss
of client j. The paper's Equation 3 has another factor 1/N, but its proofs do not. Models rotate over clients for R
epochs of N visits with K steps each. Theorem 2: with the rate ``step_size``, ``Phi_i`` approaches its minimum up to
terms of order 1/R^2, as SGD with random reshuffling, and 1/R times the gradient variance within a client.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.func import grad

from gossamer.analysis.theory.smooth import Smooth
from gossamer.analysis.theory.submodels import Loss
from gossamer.core.errors import require


@dataclass(frozen=True, eq=False)
class Mixture(Smooth):
    """The objective of one client.

    Args:
        losses: each client's loss, as a function of the vector of model entries
        weights: mixture weight of each client
    """

    losses: Sequence[Loss]
    weights: Tensor

    def __post_init__(self) -> None:
        count = len(self.losses)
        require(
            (self.weights.shape == (count,), f"Mixture: {count} losses, but weights are {list(self.weights.shape)}")
        )

    def value(self, w: Tensor) -> Tensor:
        """Return the objective at model ``w``."""
        return (self.weights * torch.stack([loss(w) for loss in self.losses])).sum()

    def gradient(self, w: Tensor) -> Tensor:
        """Return the mixture of the clients' gradients."""
        return (self.weights[:, None] * torch.stack([grad(loss)(w) for loss in self.losses])).sum(0)


def step_size(epochs: int, clients: int, steps: int, convexity: float) -> float:
    """Return Theorem 2's learning rate: log(N K R^3) / (mu R), divided by the N K steps of an epoch.

    The theorem states it up to a constant, and its proof multiplies it by N K, so it is divided here.
    """
    require(
        (epochs >= 1 and clients >= 1 and steps >= 1, "step_size: epochs, clients and steps must be at least 1"),
        (convexity > 0, f"step_size: convexity must be positive, got {convexity}"),
    )
    return math.log(clients * steps * epochs**3) / (convexity * epochs * clients * steps)
