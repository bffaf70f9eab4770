"""Federated averaging and its variants: proximal, personalized and fine-tuned, with local and central baselines."""

from typing import Unpack

from gossamer.core.errors import require, wrong_argument
from gossamer.core.method import Method
from gossamer.methods.composition import compose
from gossamer.methods.recipes import Averaging, Training, pick, recipe
from gossamer.parts.codecs.dense import Dense
from gossamer.parts.servers.mean import Mean, Weighting
from gossamer.parts.solvers.personal import Ditto, PerFedAvg, PFedMe
from gossamer.parts.solvers.sgd import SGD
from gossamer.parts.views.entries import Full

__all__ = ["centralised", "ditto", "fedavg", "fedavg_tuned", "fedprox", "fedsgd", "local", "per_fedavg", "pfedme"]


@recipe
def fedavg(*, server_lr: float = 1.0, **fields: Unpack[Averaging]) -> Method:
    """Federated averaging: clients train, the server averages their updates.

    McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized Data, AISTATS 2017,
    https://arxiv.org/abs/1602.05629

    Args:
        server_lr: server learning rate, the factor of the mean update
    """
    return compose(Full(), SGD(**pick(Training, fields)), Dense(), Mean(fields["weights"], server_lr=server_lr))


@recipe
def fedsgd(lr: float = 0.3, weights: Weighting = "samples") -> Method:
    """Federated SGD: one full-batch gradient step per client and round.

    McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized Data, AISTATS 2017,
    https://arxiv.org/abs/1602.05629
    """
    return compose(Full(), SGD(lr, steps=1, batch=None), Dense(), Mean(weights))


@recipe
def fedprox(*, mu: float = 0.01, server_lr: float = 1.0, **fields: Unpack[Averaging]) -> Method:
    """FedAvg with a proximal term that pulls clients towards the global model.

    Li et al., Federated Optimization in Heterogeneous Networks, MLSys 2020, https://arxiv.org/abs/1812.06127

    Args:
        mu: strength of the proximal term; 0 is FedAvg
        server_lr: server learning rate, the factor of the mean update
    """
    server = Mean(fields["weights"], server_lr=server_lr)
    return compose(Full(), SGD(**pick(Training, fields), proximal=mu), Dense(), server)


@recipe
def local(**fields: Unpack[Training]) -> Method:
    """Local training: every client trains its own model, without communication."""
    return compose(Full(), SGD(**fields), send="nothing")


@recipe
def centralised(**fields: Unpack[Training]) -> Method:
    """Centralized training: all samples in one place, as an upper bound for comparison."""
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
    """FedAvg with a personal model per client, regularized towards the global model.

    Li et al., Ditto: Fair and Robust Federated Learning Through Personalization, ICML 2021,
    https://arxiv.org/abs/2012.04221

    Args:
        epochs: local epochs of the global model per round
        personal_epochs: local epochs of the personal model per round
        lam: regularization of the personal model towards the global model; 0 trains it independently
    """
    solver = Ditto(lr, epochs, batch=batch, personal_epochs=personal_epochs, lam=lam)
    return compose(Full(), solver, Dense(), Mean(weights))


@recipe
def fedavg_tuned(*, tune_epochs: int = 1, **fields: Unpack[Averaging]) -> Method:
    """FedAvg, then each client fine-tunes the global model on its own samples.

    Yu et al., Salvaging Federated Learning by Local Adaptation, 2020, https://arxiv.org/abs/2002.04758

    Args:
        tune_epochs: local epochs of fine-tuning
    """
    require((tune_epochs >= 1, wrong_argument("tune_epochs", tune_epochs, "must be at least 1")))
    return fedavg(**fields).with_parts(tune=SGD(fields["lr"], tune_epochs, batch=fields["batch"]))


@recipe
def per_fedavg(*, inner: float = 0.05, **fields: Unpack[Averaging]) -> Method:
    """A global model that adapts to each client in one local step (first-order MAML).

    Fallah et al., Personalized Federated Learning: A Meta-Learning Approach, NeurIPS 2020,
    https://arxiv.org/abs/2002.07948

    Args:
        inner: learning rate of the inner step and of the final adaptation step; 0 disables both
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
    """Personal models, regularized towards the global model by Moreau envelopes.

    Dinh et al., Personalized Federated Learning with Moreau Envelopes, NeurIPS 2020, https://arxiv.org/abs/2006.08848

    Args:
        steps: local steps of the global model per round
        beta: server learning rate; 1 replaces the global model by the mean of the client models
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
