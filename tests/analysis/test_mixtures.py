"""What PERM minimises, and how fast."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gossamer import ConfigError, Task
from gossamer.analysis.theory import Mixture, step_size, task_losses
from gossamer.core.random import fold, key, uniform
from gossamer.engines.options import Options
from gossamer.engines.simulation import Simulation
from gossamer.methods import perm_two_stage
from gossamer.parts.servers.mixing import square
from helpers.runs import personal_model

RIDGE, CLIENTS, EACH, ENTRIES, STEPS = 0.3, 4, 24, 4, 2
ZERO = torch.zeros(ENTRIES, dtype=torch.float64)


class Logistic(nn.Module):
    """A score and the ridge's term, which a mixed loss must include."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(ZERO.clone())

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack((x @ self.w, (RIDGE / 2 * self.w.square().sum()).expand(len(x))), 1)


def loss(output: Tensor, y: Tensor) -> Tensor:
    return F.softplus((1 - 2 * y) * output[:, 0]).mean() + output[:, 1].mean()


def correct(output: Tensor, y: Tensor) -> Tensor:
    return (output[:, 0] > 0).long() == y


def problem() -> Task:
    """Clients with a line each."""

    def centred(name: str, *shape: int) -> Tensor:
        return 2 * uniform(fold(key(0), name), math.prod(shape), dtype=torch.float64).view(shape) - 1

    x, line = 2 * centred("x", CLIENTS, EACH, ENTRIES), centred("line", CLIENTS, ENTRIES, 1)
    y = ((x @ line)[..., 0] > 0).long().view(-1)
    samples = x.view(-1, ENTRIES), y
    made = Task.of(Logistic, samples, samples, clients=CLIENTS, loss=loss, metrics={"accuracy": correct})
    starts = np.arange(CLIENTS + 1) * EACH
    return replace(made, split=replace(made.split, train_index=np.arange(len(y)), train_start=starts))


def distance(epochs: int, batch: int | None, seeds: int) -> float:
    """Mean squared distance of clients' models from the optima of their mixtures."""
    task, found = problem(), []
    losses, _ = task_losses(task)
    rate = step_size(epochs, CLIENTS, STEPS, RIDGE) / 2
    method = perm_two_stage(lr=rate, steps=STEPS, batch=batch, warmup=0, lambda_=30.0, bound=None)
    for seed in range(seeds):
        options = Options(rounds=epochs * CLIENTS, executor="one-by-one", seed=seed, eval_every=10**6)
        run = Simulation(method, task, options)
        run.run(None, lambda record: None)
        mixed = square(run.server["mixing"], CLIENTS)
        for client in range(CLIENTS):
            optimum = Mixture(losses, mixed[client]).optimum(ZERO)
            found.append(float((personal_model(run, client)["w"] - optimum).square().sum()))
    return sum(found) / len(found)


@pytest.mark.slow
@pytest.mark.parametrize(("batch", "order"), [(None, 2), (4, 1)])
def test_models_come_nearer_to_their_optima_at_the_order_that_is_proved(batch: int | None, order: int) -> None:
    """The squared distance falls with R^-2 by all samples, and with R^-1 by some of them: from R = 6 to 36."""
    few, many = distance(6, batch, 2), distance(36, batch, 2)
    assert -math.log(many / few) / math.log(6) == pytest.approx(order, abs=0.4)


def test_a_mixture_is_least_where_its_gradient_is_nothing() -> None:
    losses, _ = task_losses(problem())
    mixture = Mixture(losses, torch.tensor([0.5, 0.5, 0.0, 0.0], dtype=torch.float64))
    optimum = mixture.optimum(ZERO)
    apart = 1e-5 * torch.eye(ENTRIES, dtype=torch.float64)
    slopes = [float(mixture.value(optimum + step) - mixture.value(optimum - step)) / 2e-5 for step in apart]
    assert slopes == pytest.approx([0.0] * ENTRIES, abs=1e-9)
    assert float(mixture.value(optimum)) < float(mixture.value(ZERO))


def test_the_last_step_brings_a_model_nearer() -> None:
    """One gradient step of size 1 / L never leads upwards."""
    losses, _ = task_losses(problem())
    mixture = Mixture(losses, torch.full((CLIENTS,), 1 / CLIENTS, dtype=torch.float64))
    largest = float(torch.linalg.eigvalsh(mixture.hessian(ZERO)).max())  # of a logistic loss it is largest at zero
    w = torch.ones(ENTRIES, dtype=torch.float64)
    assert float(mixture.value(mixture.output(w, largest))) < float(mixture.value(w))
    assert float(mixture.output(w, largest, radius=0.1).norm()) <= 0.1 + 1e-12


def test_mistakes_are_reported() -> None:
    with pytest.raises(ConfigError, match="4 losses"):
        Mixture(task_losses(problem())[0], torch.ones(3))
    with pytest.raises(ConfigError, match="at least 1"):
        step_size(0, 1, 1, 1.0)
    with pytest.raises(ConfigError, match="convexity"):
        step_size(1, 1, 1, 0.0)
