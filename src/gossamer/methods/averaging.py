"""Averaging, with clients that stay alone, keep a model of their own or tune it: what others are compared with."""

from typing import Unpack

from gossamer.core.errors import require, wrong_argument
from gossamer.core.method import Method
from gossamer.methods.composition import compose
from gossamer.methods.recipes import Averaging, Training, pick, recipe
from gossamer.parts.codecs.dense import Dense
from gossamer.parts.servers.mean import Mean, Weighting
from gossamer.parts.solvers.ditto import Ditto
from gossamer.parts.solvers.per_fedavg import PerFedAvg
from gossamer.parts.solvers.pfedme import PFedMe
from gossamer.parts.solvers.sgd import SGD
from gossamer.parts.views.full import Full

__all__ = ["centralised", "ditto", "fedavg", "fedavg_tuned", "fedprox", "fedsgd", "local", "per_fedavg", "pfedme"]


@recipe
def fedavg(**fields: Unpack[Averaging]) -> Method:
    """Federated averaging (McMahan et al., 2017): clients train, the server averages their changes."""
    return compose(Full(), SGD(**pick(Training, fields)), Dense(), Mean(fields["weights"]))


@recipe
def fedsgd(lr: float = 0.3, weights: Weighting = "samples") -> Method:
    """One full-batch gradient from each client a round: gradient descent, spread out."""
    return compose(Full(), SGD(lr, steps=1, batch=None), Dense(), Mean(weights))


@recipe
def fedprox(*, mu: float = 0.01, **fields: Unpack[Averaging]) -> Method:
    """FedAvg with a pull back to the global model (Li et al., 2020).

    Args:
        mu: strength of the pull; 0 is FedAvg
    """
    return compose(Full(), SGD(**pick(Training, fields), proximal=mu), Dense(), Mean(fields["weights"]))


@recipe
def local(**fields: Unpack[Training]) -> Method:
    """Every client alone: no communication, each goes on from its own model."""
    return compose(Full(), SGD(**fields), send="nothing")


@recipe
def centralised(**fields: Unpack[Training]) -> Method:
    """All samples in one place, no federation: the upper reference."""
    return compose(Full(), SGD(**fields), send="nothing", pooled=True)


@recipe
def ditto(
    lr: float = 0.1,
    epochs: int = 2,
    personal_epochs: int = 3,
    batch: int | None = 16,
    weights: Weighting = "samples",
    lam: float = 0.5,
) -> Method:
    """FedAvg, and at each client a model of its own that is pulled towards the global one (Li et al., 2021)."""
    solver = Ditto(lr, epochs, batch=batch, personal_epochs=personal_epochs, lam=lam)
    return compose(Full(), solver, Dense(), Mean(weights))


@recipe
def fedavg_tuned(*, tune_epochs: int = 1, **fields: Unpack[Averaging]) -> Method:
    """FedAvg, whose clients train the global model some more, alone, before they deploy it.

    Args:
        tune_epochs: passes over its own samples by which a client tunes the global model
    """
    require((tune_epochs >= 1, wrong_argument("tune_epochs", tune_epochs, "must be at least 1")))
    return fedavg(**fields).with_parts(tune=SGD(fields["lr"], tune_epochs, batch=fields["batch"]))


@recipe
def per_fedavg(*, inner: float = 0.05, **fields: Unpack[Averaging]) -> Method:
    """A global model that is good after one step on a client's own samples, first order (Fallah et al., 2020).

    Args:
        inner: rate of the step ahead, and of the one step by which a client tunes the global model; 0: neither
    """
    solver = PerFedAvg(**pick(Training, fields), inner=inner)
    tune = SGD(inner, steps=1, batch=fields["batch"]) if inner else None
    return compose(Full(), solver, Dense(), Mean(fields["weights"]), tune=tune)


@recipe
def pfedme(
    lr: float = 0.05,
    personal_lr: float = 0.05,
    steps: int = 20,
    inner_steps: int = 5,
    batch: int | None = 20,
    weights: Weighting = "samples",
    weight_decay: float = 0.0,
    lam: float = 15.0,
    beta: float = 1.0,
) -> Method:
    """Each client a model of its own near the global one, which follows them (Dinh et al., 2020).

    Args:
        beta: how far the global model moves towards the mean of what clients send: 1 all the way
    """
    solver = PFedMe(
        lr,
        steps=steps,
        batch=batch,
        weight_decay=weight_decay,
        personal_lr=personal_lr,
        inner_steps=inner_steps,
        lam=lam,
    )
    return compose(Full(), solver, Dense(), Mean(weights, server_lr=beta))
