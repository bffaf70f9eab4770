"""PERM's objective, the learning rate of its theorem, and its convergence: Lemma 3 and Theorems 1 to 3 as functions.

From Deng, Kamani, Mahdavinia and Mahdavi, "Distributed personalized empirical risk minimization",
https://arxiv.org/abs/2310.17761. Client i's objective is ``Phi_i(v) = sum_j a_i(j) f_j(v)``, where f_j is the mean loss
of client j. The paper's Equation 3 has another factor 1/N, but its proofs do not. Models rotate over clients for R
epochs of N visits with K steps each. Theorem 2: with the rate ``step_size``, ``Phi_i`` approaches its minimum up to
terms of order 1/R^2, as SGD with random reshuffling, and 1/R times the gradient variance within a client.

The theorems state orders of magnitude. The functions return their right-hand sides with all constants and logarithmic
factors set to 1, term by term, so that rates and terms can be compared. Lemma 3 has explicit constants.

Two places where the paper disagrees with itself are settled as its proofs have them: kappa_g is n_max / (2 lambda) (not
1 / (lambda n_min), as Theorem 1 says), and Lemma 3 bounds the squared distance of the weights, with 4 L^2 (as Section 3
has it, not 4 L). kappa_g is the inverse of the strong convexity of the weights' objective. Its condition number, which
determines the steps of projected gradient descent, is n_max / n_min.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.func import grad

from gossamer.analysis.theory.submodels import Loss, Smooth
from gossamer.core.errors import require, wrong


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


@dataclass(frozen=True)
class MixtureSetting:
    """The constants of the assumptions (Section 3.1), and of the objective of the weights (Equation 2).

    Args:
        clients: number of clients, N
        steps: local steps per round, K
        smoothness: L of every client's loss
        convexity: mu of every client's loss
        diameter: D of the domain
        gradient: G, the largest norm of a client's gradient in the domain
        noise: delta^2, the largest variance of a stochastic gradient
        dissimilarity: mean over j of |grad f_i - grad f_j|^2 at the global optimum
        spread: zeta, the largest squared distance of a client's gradient from the mean gradient in the domain
        lam: regularization of the weights, lambda
        samples: the smallest and the largest number of samples of a client
    """

    clients: int
    steps: int
    smoothness: float
    convexity: float
    diameter: float
    gradient: float
    noise: float
    dissimilarity: float
    spread: float
    lam: float
    samples: tuple[int, int]

    def __post_init__(self) -> None:
        fewest, most = self.samples
        require(
            (self.clients >= 1, wrong(self, "clients", "must be at least 1")),
            (self.steps >= 1, wrong(self, "steps", "must be at least 1")),
            (0 < self.convexity <= self.smoothness, wrong(self, "convexity", "must be positive, at most smoothness")),
            (self.lam > 0, wrong(self, "lam", "must be positive")),
            (0 < fewest <= most, wrong(self, "samples", "must be the smallest and the largest number")),
        )

    @property
    def condition(self) -> float:
        """Return kappa = L / mu."""
        return self.smoothness / self.convexity

    @property
    def weight_sensitivity(self) -> float:
        """Return kappa_g = n_max / (2 lambda): how far weights move if distances change by 1."""
        return self.samples[1] / (2 * self.lam)

    @property
    def model_sensitivity(self) -> float:
        """Return kappa_Phi = sqrt(N) G / mu: how far a client's optimal model moves if its weights change by 1."""
        return math.sqrt(self.clients) * self.gradient / self.convexity

    def descent_error(self, steps: int) -> float:
        """Return exp(-T n_min / n_max): the error of the weights after T projected gradient steps, squared.

        The paper writes exp(-T / kappa_g). The condition number of its problem is n_max / n_min.
        """
        return math.exp(-steps * self.samples[0] / self.samples[1])


def weights_shift(dissimilarities: Tensor, distance: float, smoothness: float, sensitivity: float) -> float:
    """Return Lemma 3's bound on the squared distance of optimal weights at w and at the global optimum w*.

    Args:
        dissimilarities: |grad f_i(w*) - grad f_j(w*)|^2 for each client j
        distance: |w - w*|
        smoothness: L
        sensitivity: kappa_g
    """
    terms = 2 * dissimilarities.double() + 4 * smoothness**2 * distance**2
    return float(4 * smoothness**2 * sensitivity**2 * distance**2 * terms.sum())


def weights_error(setting: MixtureSetting, rounds: int, descent: int) -> dict[str, float]:
    """Return the terms of Theorem 1: the squared error of the weights after R rounds of FedAvg and T descent steps.

    ``start``, ``drift`` and ``noise`` are errors of the global model: from its start, from local steps on different
    losses, and from stochastic gradients. The error falls as 1 / R.
    """
    require((rounds >= 1, f"rounds must be at least 1, got {rounds}"))
    factor = setting.weight_sensitivity**2 * setting.dissimilarity * setting.smoothness**2
    mu, work = setting.convexity, rounds * setting.steps
    # The squared distance of the global model to the optimum (Lemma 6), times the factor.
    return {
        "descent": setting.descent_error(descent),
        "start": factor * (setting.diameter**2 / work),
        "drift": factor * (setting.condition * setting.spread**2 / (mu * rounds) ** 2),
        "noise": factor * (setting.noise / (mu**2 * setting.clients * work)),
    }


def two_stage_gap(setting: MixtureSetting, epochs: int, descent: int, failure: float = 0.05) -> dict[str, float]:
    """Return the terms of Theorem 2: the excess of a client's objective with ``perm-two-stage``.

    There are R rounds of FedAvg and then R epochs. The bound holds with probability 1 - ``failure``. ``order`` is the
    error of visiting clients in random order, and falls as 1 / R^2. ``weights`` is that of the weights (Theorem 1
    without its term of the start).
    """
    error = weights_error(setting, epochs, descent)
    del error["start"]
    mu, smooth = setting.convexity, setting.smoothness
    order = (smooth**4 + setting.clients) / (mu**4 * epochs**2) * smooth * _concentration(setting, failure)
    return {
        "start": setting.diameter**2 * smooth / (setting.clients * setting.steps * epochs**2),
        "noise": smooth * setting.noise / (mu**2 * epochs),
        "order": order,
        "weights": setting.model_sensitivity**2 * smooth * sum(error.values()),
    }


def single_loop_gap(
    setting: MixtureSetting, epochs: int, descent: int, batch: int, failure: float = 0.05
) -> dict[str, float]:
    """Return the terms of Theorem 3: the excess of a client's objective with ``perm`` after R epochs.

    ``batch`` is the number of samples of a gradient that compares clients, M. Its noise does not fall with R, which is
    why the paper asks for large batches.
    """
    require((epochs >= 1 and batch >= 1, f"epochs and batch must be at least 1, got {epochs} and {batch}"))
    mu, smooth, kappa = setting.convexity, setting.smoothness, setting.condition
    order = (kappa**4 * smooth + setting.clients * smooth / mu**2) / epochs**2 * _concentration(setting, failure)
    spread = (kappa * setting.weight_sensitivity) ** 2 * setting.dissimilarity
    weights = {
        "tracking": spread * smooth**2 * setting.diameter * setting.gradient / epochs,
        "descent": epochs**2 * setting.descent_error(descent),
        "batch": spread * smooth * setting.noise / (mu**2 * batch),
    }
    return {
        "start": smooth * setting.diameter**2 / (setting.clients * setting.steps * epochs**3),
        "noise": smooth * setting.noise / (mu * epochs),
        "order": order,
        **{name: setting.model_sensitivity**2 * smooth * term for name, term in weights.items()},
    }


def _concentration(setting: MixtureSetting, failure: float) -> float:
    """Return G^2 N log(1/p), the concentration of partial sums over a random order (Lemma 10)."""
    require((0 < failure < 1, f"failure must be between 0 and 1, got {failure}"))
    return setting.gradient**2 * setting.clients * math.log(1 / failure)
