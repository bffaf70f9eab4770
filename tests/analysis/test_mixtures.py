"""What PERM minimises, and how fast; its theorems: terms, rates, and the error of mixing weights on small problems."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gossamer import ConfigError, Task
from gossamer.analysis.theory import (
    Mixture,
    MixtureSetting,
    single_loop_gap,
    step_size,
    task_losses,
    two_stage_gap,
    weights_error,
    weights_shift,
)
from gossamer.core.random import fold, key, uniform
from gossamer.engines.options import Options
from gossamer.engines.simulation import Simulation
from gossamer.methods import perm_two_stage
from gossamer.parts.servers.mixing import square, waterfill
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


ONES = MixtureSetting(1, 1, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0.5, (1, 1))
PLAIN = MixtureSetting(4, 5, 3.0, 0.5, 2.0, 1.5, 0.2, 0.7, 0.4, 10.0, (20, 40))


def drawn(name: str, *shape: int) -> Tensor:
    return 2 * uniform(fold(key(7), name), math.prod(shape), dtype=torch.float64).view(shape) - 1


def test_with_all_constants_one_every_term_is_one() -> None:
    e = math.e
    assert weights_error(ONES, 1, 1) == {"descent": pytest.approx(1 / e), "start": 1, "drift": 1, "noise": 1}
    assert two_stage_gap(ONES, 1, 1, failure=1 / e) == pytest.approx(
        {"start": 1, "noise": 1, "order": 2, "weights": 2 + 1 / e}
    )
    assert single_loop_gap(ONES, 1, 1, 1, failure=1 / e) == pytest.approx(
        {"start": 1, "noise": 1, "order": 2, "tracking": 1, "descent": 1 / e, "batch": 1}
    )


def test_the_terms_are_those_of_the_paper() -> None:
    """Theorem 1 written out, with kappa = 6 and kappa_g = 2."""
    assert (PLAIN.condition, PLAIN.weight_sensitivity, PLAIN.model_sensitivity) == (6, 2, 6)
    found = weights_error(PLAIN, 10, 4)
    assert found == pytest.approx(
        {
            "descent": math.exp(-2),
            "start": 4 * 0.7 * 9 * 4 / 50,
            "drift": 4 * 0.7 * 9 * 6 * 0.16 / (0.25 * 100),
            "noise": 4 * 0.7 * 9 * 0.2 / (0.25 * 4 * 50),
        }
    )


@pytest.mark.parametrize(
    ("bound", "powers"),
    [
        (lambda r: weights_error(PLAIN, r, 4), {"descent": 0, "start": 1, "drift": 2, "noise": 1}),
        (lambda r: two_stage_gap(PLAIN, r, 10**6), {"start": 2, "noise": 1, "order": 2}),
        (
            lambda r: single_loop_gap(PLAIN, r, 4, 10),
            {"start": 3, "noise": 1, "order": 2, "tracking": 1, "descent": -2, "batch": 0},
        ),
    ],
)
def test_each_term_has_its_rate(bound: Any, powers: dict[str, int]) -> None:
    once, twice = bound(10), bound(20)
    for name, power in powers.items():
        assert once[name] / twice[name] == pytest.approx(2.0**power), name


def quadratics(clients: int, entries: int) -> tuple[Tensor, Tensor]:
    """Losses (w - c)' A (w - c) / 2 with eigenvalues of A between 0.5 and 2."""
    turns = torch.linalg.qr(drawn("turns", clients, entries, entries)).Q
    sizes = 1.25 + 0.75 * drawn("sizes", clients, entries)
    return turns @ torch.diag_embed(sizes) @ turns.mT, drawn("centres", clients, entries)


def weights_at(w: Tensor, curves: Tensor, centres: Tensor, samples: Tensor, lam: float) -> tuple[Tensor, Tensor]:
    """Optimal weights of all clients at a model, and the squared distances of their gradients."""
    gradients = torch.einsum("nij,nj->ni", curves, w - centres)
    apart = (gradients[:, None] - gradients).square().sum(-1)
    return waterfill(apart, samples, lam), apart


@pytest.mark.parametrize("lam", [5.0, 20.0, 50.0])
def test_weights_move_no_more_than_lemma_3_says(lam: float) -> None:
    curves, centres = quadratics(6, 4)
    samples = torch.tensor([10, 20, 30, 15, 25, 30])
    best = torch.linalg.solve(curves.sum(0), torch.einsum("nij,nj->i", curves, centres))
    optimal, apart = weights_at(best, curves, centres, samples, lam)
    moved = 0.0
    for number in range(40):
        away = drawn(f"away {number}", 4) * 10.0 ** (1 - number % 5)
        found, _ = weights_at(best + away, curves, centres, samples, lam)
        for client in range(6):
            shift = float((found[client] - optimal[client]).square().sum())
            moved = max(moved, shift)
            assert shift <= weights_shift(apart[client], float(away.norm()), 2.0, 30 / (2 * lam)) + 1e-18
    assert moved > 1e-4, "weights depend on the model"


def test_the_error_of_weights_falls_at_least_as_fast_as_theorem_1() -> None:
    """FedAvg with exact gradients on quadratics, and the rate of the theorem: from R to 4 R by 4 or more."""
    curves, centres = quadratics(6, 4)
    samples, steps = torch.full((6,), 20), 5
    best = torch.linalg.solve(curves.sum(0), torch.einsum("nij,nj->i", curves, centres))
    optimal, _ = weights_at(best, curves, centres, samples, 10.0)

    def error(rounds: int) -> float:
        rate, w = math.log(rounds * steps) / (0.5 * rounds * steps), torch.ones(4, dtype=torch.float64)
        for _ in range(rounds):
            local = w.expand(6, 4)
            for _ in range(steps):
                local = local - rate * torch.einsum("nij,nj->ni", curves, local - centres)
            w = local.mean(0)
        found, _ = weights_at(w, curves, centres, samples, 10.0)
        return float((found - optimal).square().sum(1).mean())

    errors = [error(rounds) for rounds in (20, 80, 320)]
    assert errors[0] > 0
    assert errors[1] <= errors[0] / 4
    assert errors[2] <= errors[1] / 4


def test_mistakes_in_the_constants_of_bounds_are_reported() -> None:
    for wrong in ({"clients": 0}, {"steps": 0}, {"convexity": 4.0}, {"lam": 0.0}, {"samples": (3, 2)}):
        with pytest.raises(ConfigError, match=next(iter(wrong))):
            replace(PLAIN, **wrong)
    with pytest.raises(ConfigError, match="rounds must be at least 1"):
        weights_error(PLAIN, 0, 1)
    with pytest.raises(ConfigError, match="failure must be between 0 and 1"):
        two_stage_gap(PLAIN, 1, 1, failure=0.0)
    with pytest.raises(ConfigError, match="epochs and batch"):
        single_loop_gap(PLAIN, 1, 1, 0)
