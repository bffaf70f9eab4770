"""PERM's theorems: their terms, their rates, and the error of mixing weights on small problems."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from gossamer import ConfigError
from gossamer.analysis.theory import MixtureSetting, single_loop_gap, two_stage_gap, weights_error, weights_shift
from gossamer.core.random import fold, key, uniform
from gossamer.parts.servers.mixing import waterfill

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


def test_mistakes_are_reported() -> None:
    for wrong in ({"clients": 0}, {"steps": 0}, {"convexity": 4.0}, {"lam": 0.0}, {"samples": (3, 2)}):
        with pytest.raises(ConfigError, match=next(iter(wrong))):
            replace(PLAIN, **wrong)
    with pytest.raises(ConfigError, match="rounds must be at least 1"):
        weights_error(PLAIN, 0, 1)
    with pytest.raises(ConfigError, match="failure must be between 0 and 1"):
        two_stage_gap(PLAIN, 1, 1, failure=0.0)
    with pytest.raises(ConfigError, match="epochs and batch"):
        single_loop_gap(PLAIN, 1, 1, 0)
