"""What PERM minimises: for each client a mixture of all clients' losses, and how fast it does.

From Deng, Kamani, Mahdavinia and Mahdavi, "Distributed personalized empirical risk minimization". Client i's objective
is ``Phi_i(v) = sum_j a_i(j) f_j(v)``, with f_j the mean loss of client j (the paper's Equation 3 has one more 1/N, but
its proofs have not). Models go round for R epochs of N visits with K steps each. Theorem 2 promises that with steps as
``step_size`` has them ``Phi_i`` comes to its least value up to terms of the order 1/R^2, as for SGD that takes its
components in random order, and 1/R times the variance of the gradients within a client.
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
        losses: each client's loss, of a vector of the model's entries
        weights: how much each counts
    """

    losses: Sequence[Loss]
    weights: Tensor

    def __post_init__(self) -> None:
        count = len(self.losses)
        require(
            (self.weights.shape == (count,), f"Mixture: {count} losses, but weights are {list(self.weights.shape)}")
        )

    def value(self, w: Tensor) -> Tensor:
        """The objective at some weights of the model."""
        return (self.weights * torch.stack([loss(w) for loss in self.losses])).sum()

    def gradient(self, w: Tensor) -> Tensor:
        """The mixture of the clients' gradients."""
        return (self.weights[:, None] * torch.stack([grad(loss)(w) for loss in self.losses])).sum(0)


def step_size(epochs: int, clients: int, steps: int, convexity: float) -> float:
    """Theorem 2's learning rate: log(N K R^3) / (mu R), shared among the N K steps of an epoch.

    The theorem has it up to a constant, and its proof multiplies it by N K: so it is divided here.
    """
    require(
        (epochs >= 1 and clients >= 1 and steps >= 1, "step_size: epochs, clients and steps must be at least 1"),
        (convexity > 0, f"step_size: convexity must be positive, got {convexity}"),
    )
    return math.log(clients * steps * epochs**3) / (convexity * epochs * clients * steps)
