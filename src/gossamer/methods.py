"""The recipes: each a handful of lines that reads like its paper.

A recipe is a function with typed, defaulted parameters that returns a :class:`~gossamer.method.Method`. Its
parameters are flags of ``gossamer run``; what they mean is told by its docstring, or by that of the part they go to.
"""

from collections.abc import Callable

from gossamer.codecs import Dense
from gossamer.method import Method
from gossamer.servers import Mean, Weights
from gossamer.solvers import SGD
from gossamer.views import Full


def fedavg(
    lr: float = 0.1, epochs: int = 5, steps: int | None = None, batch: int | None = 16, weights: Weights = "samples"
) -> Method:
    """Federated averaging (McMahan et al., 2017): clients train, the server averages their changes."""
    return Method(Full(), SGD(lr, epochs, steps, batch), Dense(), Mean(weights))


def fedsgd(lr: float = 0.5, weights: Weights = "samples") -> Method:
    """One full-batch gradient from each client a round: gradient descent, spread out."""
    return Method(Full(), SGD(lr, steps=1, batch=None), Dense(), Mean(weights))


def fedprox(
    lr: float = 0.1,
    epochs: int = 5,
    steps: int | None = None,
    batch: int | None = 16,
    weights: Weights = "samples",
    mu: float = 0.01,
) -> Method:
    """FedAvg with a pull back to the global model (Li et al., 2020).

    mu: strength of the pull; 0 is FedAvg
    """
    return Method(Full(), SGD(lr, epochs, steps, batch, proximal=mu), Dense(), Mean(weights))


def local(lr: float = 0.1, epochs: int = 5, steps: int | None = None, batch: int | None = 16) -> Method:
    """Every client alone: no communication, each goes on from its own model."""
    return Method(Full(), SGD(lr, epochs, steps, batch), send="nothing")


def centralised(lr: float = 0.1, epochs: int = 5, steps: int | None = None, batch: int | None = 16) -> Method:
    """All samples in one place, no federation: the upper reference."""
    return Method(Full(), SGD(lr, epochs, steps, batch), send="nothing", pooled=True)


METHODS: dict[str, Callable[..., Method]] = {
    "fedavg": fedavg,
    "fedsgd": fedsgd,
    "fedprox": fedprox,
    "local": local,
    "centralised": centralised,
}
"""Recipes by the name that the command line uses."""
