"""What is proved of sub-model training: closed forms, slow loops over masks, orders, and a run that obeys."""

import itertools
import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from gossamer import SGD, Bernoulli, Dense, Full, Mean, Task, Windows, compose
from gossamer.analysis.theory import (
    DataSpread,
    Loss,
    Masked,
    Masks,
    SubmodelSetting,
    excess_risk,
    project,
    random_distance,
    random_distance_printed,
    random_divergence,
    random_rate,
    random_stability,
    random_stability_printed,
    random_stationarity,
    residual,
    rolling_distance,
    rolling_divergence,
    rolling_rate,
    rolling_stability,
    rolling_stability_printed,
    rolling_stationarity,
    shift,
    task_losses,
)
from gossamer.core.errors import ConfigError
from gossamer.core.random import fold, key, uniform
from gossamer.engines import Options
from gossamer.engines.simulation import Simulation
from gossamer.tasks.data import Data, Samples, Split
from gossamer.tasks.metrics import metrics_of
from reproduce.common import store
from reproduce.submodel import theory as script
from reproduce.submodel.theory_problem import posed

SETTING = SubmodelSetting(
    smoothness=3.0,
    convexity=0.5,
    gradient=2.0,
    radius=1.5,
    deviation=0.4,
    shares=(0.5, 1.0),
    entries=6,
    steps=4,
    heterogeneity=0.7,
    dissimilarity=0.9,
    spread=0.2,
    windows=3,
)


def noise(label: str, *shape: int) -> Tensor:
    return 2 * uniform(fold(key(4), label), math.prod(shape), dtype=torch.float64).view(shape) - 1


def quadratics(clients: int, entries: int) -> tuple[list[Loss], Tensor, Tensor]:
    """Losses 1/2 (w - c)' A (w - c), with their A and c."""
    root = noise("root", clients, entries, entries)
    hessians = root @ root.mT + torch.eye(entries)
    centres = noise("centre", clients, entries)

    def loss(i: int) -> Loss:
        return lambda w: (w - centres[i]) @ hessians[i] @ (w - centres[i]) / 2

    return [loss(i) for i in range(clients)], hessians, centres


def expected_quadratic(a: Tensor, c: Tensor, p: float, w: Tensor) -> Tensor:
    """E over masks in closed form: two entries are both held with chance p^2, one with itself with chance p."""
    thinned = p**2 * a + (p - p**2) * torch.diag(torch.diag(a))
    return w @ thinned @ w / 2 - p * (a @ c) @ w + c @ a @ c / 2


# Masks.


@settings(max_examples=10, deadline=None)
@given(st.lists(st.floats(0.05, 1.0), min_size=1, max_size=3), st.integers(1, 6))
def test_enumerated_masks_hold_each_entry_with_the_clients_chance(shares: list[float], entries: int) -> None:
    masks = Masks.bernoulli(shares, entries)
    held = (masks.chances[..., None] * masks.held).sum(1)
    torch.testing.assert_close(held, torch.tensor(shares, dtype=torch.float64)[:, None].expand(-1, entries))
    assert masks.dropped == pytest.approx(entries * (1 - sum(shares) / len(shares)))


def test_drawn_masks_hold_about_as_much() -> None:
    masks = Masks.drawn([0.3, 0.8], 50, 2000, key(1))
    shares = masks.held.mean((1, 2)).tolist()
    assert shares == pytest.approx([0.3, 0.8], abs=5 * (0.25 / 100_000) ** 0.5)


def test_windows_are_what_the_view_gives() -> None:
    like = {"a": torch.zeros(3), "b": torch.zeros(2, 3)}
    found = Masks.of_view(Windows((0.5, 1.0), offsets=4, min_dim=1), like, clients=2)
    assert torch.equal(found.held, Masks.windows([5, 9], 9, 4).held)
    assert found.held[0, 1].tolist() == [0, 0, 1, 1, 1, 1, 1, 0, 0]


def test_masks_of_a_view_are_drawn_as_a_run_draws_them() -> None:
    like = {"a": torch.zeros(40), "b": torch.zeros(20, 30)}
    masks = Masks.of_view(Bernoulli((0.4,)), like, clients=2, draws=20, key=key(3))
    assert masks.held[:, :, :40].min() == 1  # a tensor of one dimension is held whole
    assert masks.held[:, :, 40:].mean().item() == pytest.approx(0.4, abs=5 * (0.24 / 24_000) ** 0.5)
    assert not torch.equal(masks.held[0], masks.held[1])
    assert Masks.of_view(Full(), like, 2).dropped == 0


def test_sizes_and_distances_of_masks_as_worked_out_by_hand() -> None:
    half = Masks.windows([2], 4, 4)  # 1100 and 0011 have nothing in common
    assert (half.largest, half.farthest, half.dropped) == (2, 4, 2)
    nearly = Masks.windows([3], 4, 4)  # 1110 and 0111
    assert (nearly.largest, nearly.farthest) == (3, 2)
    both = Masks.windows([2, 4], 6, 6)  # 110000 and 001111
    assert (both.largest, both.farthest, both.dropped) == (4, 6, 3)
    assert both.coverage.tolist() == pytest.approx([0.5] * 6)
    assert Masks.full(3, 5).farthest == 0
    assert Masks.bernoulli([1.0, 1.0], 5).largest == 5
    assert Masks.bernoulli([1.0, 1.0], 5).farthest == 0  # masks of chance zero do not count
    assert Masks.bernoulli([0.5], 5).farthest == 5


# Masked objectives.


def test_random_masks_of_quadratics_have_the_closed_form() -> None:
    losses, a, c = quadratics(3, 5)
    shares, w = [0.2, 0.6, 1.0], noise("w", 5)
    masked = Masked(losses, Masks.bernoulli(shares, 5))

    def wanted(at: Tensor) -> Tensor:
        return torch.stack([expected_quadratic(a[i], c[i], p, at) for i, p in enumerate(shares)]).mean()

    torch.testing.assert_close(masked.value(w), wanted(w))
    torch.testing.assert_close(masked.gradient(w), torch.func.grad(wanted)(w))
    torch.testing.assert_close(masked.gradient(w), torch.func.grad(masked.value)(w))
    assert masked.gradient_norm(w) == pytest.approx(float(torch.func.grad(wanted)(w).norm()))
    hessian = torch.func.jacrev(torch.func.grad(wanted))(w)
    least = torch.linalg.solve(hessian, hessian @ w - torch.func.grad(wanted)(w))
    torch.testing.assert_close(masked.optimum(torch.zeros(5, dtype=torch.float64)), least)


def test_drawn_masks_have_the_same_mean() -> None:
    losses, _, _ = quadratics(2, 5)
    w, shares, draws = noise("w", 5), [0.4, 0.7], 4000
    exact, drawn = Masked(losses, Masks.bernoulli(shares, 5)), Masked(losses, Masks.drawn(shares, 5, draws, key(8)))
    away = drawn.gradient(w) - exact.gradient(w)
    assert float(away.norm()) <= 4 * math.sqrt(exact.spread(w) / draws)
    assert float(away.norm()) > 0


def test_windows_are_a_mean_over_windows_and_clients() -> None:
    losses, _, _ = quadratics(2, 4)
    w, masks = noise("w", 4), Masks.windows([1, 3], 4, 4)
    wanted = sum(float(losses[i](masks.held[i, j] * w)) for i in range(2) for j in range(4)) / 8
    assert float(Masked(losses, masks).value(w)) == pytest.approx(wanted)


def test_heterogeneity_dissimilarity_and_spread_against_a_loop_over_all_draws() -> None:
    losses, a, c = quadratics(2, 2)
    w, shares = noise("w", 2), (0.3, 0.8)
    masked = Masked(losses, Masks.bernoulli(shares, 2))
    every = list(itertools.product((0.0, 1.0), repeat=2))

    def chance(mask: tuple[float, ...], p: float) -> float:
        return math.prod(p if held else 1 - p for held in mask)

    def slope(i: int, mask: tuple[float, ...]) -> Tensor:
        m = torch.tensor(mask, dtype=torch.float64)
        return m * (a[i] @ (m * w - c[i]))

    own = [[(chance(m, p), slope(i, m)) for m in every] for i, p in enumerate(shares)]
    whole = sum((q * g for client in own for q, g in client), torch.zeros(2, dtype=torch.float64)) / 2
    torch.testing.assert_close(masked.gradient(w), whole)
    assert masked.heterogeneity(w) == pytest.approx(sum(q * float(g @ g) for client in own for q, g in client) / 2)
    apart = sum(q * float((g - whole).square().sum()) for client in own for q, g in client) / 2
    assert masked.dissimilarity(w) == pytest.approx(apart)
    pairs = [(q * r, (g + h) / 2) for q, g in own[0] for r, h in own[1]]
    variance = sum(q * float((g - whole).square().sum()) for q, g in pairs)
    assert masked.spread(w) == pytest.approx(variance)
    assert masked.spread(w) <= masked.heterogeneity(w) / 2


def test_with_everything_held_all_objectives_are_the_plain_one() -> None:
    losses, _, _ = quadratics(3, 4)
    w, plain = noise("w", 4), Masked(losses, Masks.full(3, 4))
    torch.testing.assert_close(plain.value(w), torch.stack([loss(w) for loss in losses]).mean())
    for masks in (Masks.bernoulli([1.0] * 3, 4), Masks.windows([4] * 3, 4, 2), Masks.drawn([1.0] * 3, 4, 5, key(0))):
        masked = Masked(losses, masks)
        torch.testing.assert_close(masked.value(w), plain.value(w))
        torch.testing.assert_close(masked.gradient(w), plain.gradient(w))
        assert masked.spread(w) == pytest.approx(0, abs=1e-20)


def test_masked_objectives_are_as_convex_as_the_share_held() -> None:
    """Proposition 1, and Proposition 2 as it should be: s / d of mu, and not mu."""
    ridge = 0.3
    losses: list[Loss] = [lambda w: ridge / 2 * w.square().sum()]
    for masks in (Masks.bernoulli([0.4], 5), Masks.windows([2], 5, 5)):
        torch.testing.assert_close(Masked(losses, masks).hessian(noise("w", 5)), 0.4 * ridge * torch.eye(5).double())


def test_the_output_is_one_more_step_back_into_the_ball() -> None:
    losses, _, _ = quadratics(2, 3)
    masked, w = Masked(losses, Masks.bernoulli([0.5, 0.5], 3)), noise("w", 3)
    step = w - masked.gradient(w) / 7
    torch.testing.assert_close(masked.output(w, 7.0), step)
    assert float(masked.output(w, 7.0, radius=0.01).norm()) == pytest.approx(0.01)
    torch.testing.assert_close(project(step, 100.0), step)
    assert project(torch.zeros(3), 1.0).tolist() == [0, 0, 0]
    assert masked.value(masked.output(w, 100.0)) < masked.value(w)


def some_task() -> Task:
    x = noise("x", 12, 3).float()
    y = (x[:, 0] > 0).long()
    return Task.of(lambda: nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)), (x, y), (x, y), clients=3)


def test_the_losses_of_a_task_are_those_that_clients_train() -> None:
    task = some_task()
    losses, like = task_losses(task, decay=0.1)
    run = Simulation(compose(Full(), SGD()), task, Options(rounds=1))
    layout = run.objective.layout
    w = layout.flatten(like)
    for client in range(3):
        rows = torch.from_numpy(task.split.train(client))
        value, grads, _ = run.objective.gradient(like, *run.objective.batch(rows, None))
        torch.testing.assert_close(losses[client](w), value + 0.05 * w.square().sum())
        torch.testing.assert_close(torch.func.grad(losses[client])(w), layout.flatten(grads) + 0.1 * w)
    masked = Masked(losses, Masks.of_view(Bernoulli((0.5,), min_dim=1), like, 3, draws=4))
    torch.testing.assert_close(masked.gradient(w), torch.func.grad(masked.value)(w))


# Bounds.


def test_nothing_is_left_where_everything_is_held() -> None:
    whole = replace(SETTING, shares=(1.0, 1.0))
    assert residual(whole) == shift(whole) == 0
    assert excess_risk(whole, 0.1) == pytest.approx(5 * 3.0 / 2 * 0.1)
    left = [residual(replace(SETTING, shares=(p, p))) for p in (0.999, 0.99, 0.9, 0.5, 0.1)]
    assert left == sorted(left)
    assert left[1] / left[0] == pytest.approx(10, rel=0.03)  # it goes as 1 - p


def test_the_residual_as_worked_out_by_hand() -> None:
    moved = (2 * 2.0**2 + 2 * 1.5**2 * 3.0**2) * 6 * 0.25
    assert residual(SETTING) == pytest.approx((5 * 3 / (2 * 0.375**2) + 4 / 3) * moved)
    assert shift(SETTING) == pytest.approx(math.sqrt(moved) / 0.375)


def test_the_masked_optimum_is_within_the_distance_of_lemma_2() -> None:
    losses, a, c = quadratics(2, 4)
    zero, radius = torch.zeros(4, dtype=torch.float64), 2.0
    eigenvalues = torch.linalg.eigvalsh(a)
    mu, smooth = float(eigenvalues.min()), float(eigenvalues.max())
    steepest = float(max((a[i] @ c[i]).norm() for i in range(2))) + smooth * radius
    best = Masked(losses, Masks.full(2, 4)).optimum(zero)
    for p in (0.25, 0.5, 0.75, 1.0):
        setting = SubmodelSetting(smooth, mu, steepest, radius, 0.0, (p, p), 4, 1)
        for masks in (Masks.bernoulli([p, p], 4), Masks.windows([int(4 * p)] * 2, 4, 4)):
            masked = Masked(losses, masks)
            found = masked.optimum(zero)
            assert float(found.norm()) < radius
            assert float((found - best).norm()) <= shift(setting) + 1e-9
            plain = Masked(losses, Masks.full(2, 4))
            above = float(plain.value(masked.output(found, smooth)) - plain.value(best))
            assert above <= excess_risk(setting, 0.0) + 1e-9


def test_theorem_1_as_printed_and_repaired() -> None:
    rounds, rate, start = 4000, 1e-4, 2.0
    mean, least, move = 0.5 * 0.75, 0.5 * 0.5, 4e-4
    printed = random_distance_printed(SETTING, rounds, start, rate)
    assert printed["start"] == pytest.approx((1 - least * move) ** rounds * start)
    assert printed["noise"] == pytest.approx(1e-4 * 0.16 / (least * 2))
    assert printed["drift"] == pytest.approx(10 * (3 / least) * move**2 * (4 * 0.7 + 0.16))
    repaired = random_distance(SETTING, rounds, start, rate)
    assert repaired["start"] == pytest.approx((1 - mean * move / 2) ** rounds * start)
    assert repaired["masks"] == pytest.approx(12 * move * 0.2 / mean)
    assert repaired["noise"] == pytest.approx(6e-4 * 0.16 / (mean * 2))
    assert repaired["drift"] == pytest.approx((3 / mean * move) ** 2 * (90 * 0.7 + 22.5 * 0.16 / 4))
    assert random_distance(replace(SETTING, steps=1), rounds, start, rate)["drift"] == 0


def test_bounds_on_distances_fall_at_the_stated_order() -> None:
    """With R four times as large, and the logarithm taken out: 1/R for masks and noise, 1/R^2 for drift and order."""
    few, many = 10**6, 4 * 10**6
    log = math.log(4 * few) / math.log(4 * many)
    first, second = (random_distance(SETTING, rounds, 1.0) for rounds in (few, many))
    assert second["masks"] * log == pytest.approx(first["masks"] / 4)
    assert second["noise"] * log == pytest.approx(first["noise"] / 4)
    assert second["drift"] * log**2 == pytest.approx(first["drift"] / 16)
    plain = [random_distance_printed(SETTING, rounds, 1.0) for rounds in (few, many)]
    assert plain[1]["start"] == pytest.approx(plain[0]["start"] / 16, rel=1e-3)
    log = math.log(few) / math.log(many)
    first, second = (rolling_distance(SETTING, epochs, 1.0) for epochs in (few, many))
    assert second["order"] * log**2 == pytest.approx(first["order"] / 16)
    assert second["drift"] * log**2 == pytest.approx(first["drift"] / 16)
    assert second["noise"] * log == pytest.approx(first["noise"] / 4, rel=1e-2)
    assert second["start"] == pytest.approx(first["start"] / 16, rel=1e-3)


def test_bounds_on_gradients_fall_at_the_stated_order() -> None:
    for bound in (random_stationarity, rolling_stationarity):
        first, second = (bound(SETTING, count, 1.0) for count in (100, 400))
        assert second["start"] == pytest.approx(first["start"] / 2)
        assert second["noise"] == pytest.approx(first["noise"] / 2)
        assert second["drift"] == pytest.approx(first["drift"] / 4)
    first, second = (random_stationarity(SETTING, count, 1.0) for count in (100, 400))
    assert second["masks"] == pytest.approx(first["masks"] / 2)
    first, second = (rolling_stationarity(SETTING, count, 1.0) for count in (100, 400))
    assert second["order"] == pytest.approx(first["order"] / 4)
    assert first["start"] == pytest.approx(3.0 / math.sqrt(3 * 4 * 100))
    assert first["drift"] == pytest.approx(16 * 0.9 / 100)
    assert random_stationarity(SETTING, 100, 1.0)["start"] == pytest.approx(4 * 3.0 / math.sqrt(400))


def test_rates_are_those_of_the_theorems() -> None:
    assert random_rate(SETTING, 50) == pytest.approx(math.log(200**2) / (0.375 * 200))
    assert rolling_rate(SETTING, 50) == pytest.approx(4 * math.log(50**2) / (0.375 * 3 * 4 * 50))


def test_divergences_as_worked_out_by_hand() -> None:
    data = DataSpread(distance=0.5, lipschitz=2.0, gradient=3.0, weight=1.0)
    assert random_divergence((1.0, 1.0), 10, 2.0, data) == pytest.approx(2 * 10 * 1.0)
    assert random_divergence((0.5, 0.5), 10, 2.0, data) == pytest.approx(2 * 5 * 1.0 + 4 * 10 * 0.5 * 13)
    masks = Masks.windows([2], 4, 4)
    assert rolling_divergence(masks.largest, masks.farthest, 2.0, data) == pytest.approx(2 * 2 * 1.0 + 4 * 4 * 13)


def test_measured_divergences_are_below_lemmas_12_and_13() -> None:
    """Quadratic losses |w - c_i|^2 / 2 have entries of gradients that are 1-Lipschitz in the sample c_i."""
    centres = torch.tensor([[1.0, -0.5, 0.25, 2.0], [-0.5, 0.5, 1.0, 0.0], [0.0, 1.0, -1.0, 0.5]], dtype=torch.float64)
    losses = [lambda w, c=c: (w - c).square().sum() / 2 for c in centres]
    w = torch.tensor([0.3, -0.7, 0.1, 0.9], dtype=torch.float64)
    apart = max(float((a - b).norm()) for a in centres for b in centres)
    data = DataSpread(apart, 1.0, float((w.abs() + centres.abs()).max()), float(w.abs().max()))
    for shares in ((0.5, 0.5, 0.5), (1.0, 0.25, 0.5), (1.0, 1.0, 1.0)):
        masked = Masked(losses, Masks.bernoulli(shares, 4))
        assert 0 < masked.divergence(w) <= random_divergence(shares, 4, 1.0, data)
    windows = Masked(losses, Masks.windows([2, 2, 1], 4, 4))
    largest = windows.largest_divergence(w)
    assert windows.divergence(w) <= largest
    assert largest <= rolling_divergence(windows.masks.largest, windows.masks.farthest, 1.0, data)


def test_the_divergence_is_that_of_all_pairs_of_masks_one_by_one() -> None:
    losses = [lambda w: w.square().sum() / 2, lambda w: (w - 1).square().sum()]
    w = torch.tensor([0.5, -1.0, 2.0], dtype=torch.float64)
    masked = Masked(losses, Masks.bernoulli([0.5, 0.75], 3))
    each, chances = masked.gradients(w), masked.masks.chances
    pairs = [(i, j, a, b) for i in range(2) for j in range(2) for a in range(8) for b in range(8)]
    squares = {pair: float((each[pair[0], pair[2]] - each[pair[1], pair[3]]).square().sum()) for pair in pairs}
    means = [
        sum(chances[i, a] * chances[j, b] * s for (p, q, a, b), s in squares.items() if (p, q) == (i, j))
        for i in range(2)
        for j in range(2)
    ]
    assert masked.divergence(w) == pytest.approx(float(max(means)))
    assert masked.largest_divergence(w) == pytest.approx(max(squares.values()))


def test_theorem_5_as_worked_out_by_hand() -> None:
    """N = 2, K = 4, R = 50, n = 8: sqrt(N n) = 4, so the rate is 0.02, and every weight is 1 / 4."""
    terms = random_stability(SETTING, 50, 8, divergence=2.25, start=1.5)
    assert terms["divergence"] == pytest.approx(2 * 1.5 / 4)
    assert terms["noise"] == pytest.approx(2 * 0.4 / 4)
    slope = 16 * 3 * 1.5 / 4 + 32 * 3 * 0.02 * 0.16 / 2 + 160 * 9 * 0.0064 * (4 * 0.7 + 0.16) + 96 * 3 * 0.08 * 0.2
    assert terms["gradient"] == pytest.approx(2 * math.sqrt(slope) / 4)
    assert terms["drift"] == pytest.approx(2 * 3 * math.sqrt(5 * 0.0064 * (4 * slope + 9 + 0.16)) / 4)
    more = random_stability(SETTING, 50, 32, divergence=2.25, start=1.5)
    assert more["divergence"] == pytest.approx(terms["divergence"] / 2)  # 1 / sqrt(N n) at the theorem's rate
    rate = random_stability(SETTING, 50, 32, divergence=2.25, start=1.5, rate=0.02)
    assert rate["divergence"] == pytest.approx(terms["divergence"] / 4)  # 1 / (N n) at a fixed rate
    assert random_stability(replace(SETTING, steps=1), 50, 8, 2.25, 1.5)["drift"] == 0


def test_theorem_6_as_worked_out_by_hand() -> None:
    """R = 3, K = 4, T = 10, n = 8: the rate is 4 / 120, and every weight is 1 / 4."""
    terms, move = rolling_stability(SETTING, 10, 8, divergence=2.25, start=1.5), 4 / 120 * 3 * 4
    assert terms["divergence"] == pytest.approx(1.5 / 4)
    assert terms["noise"] == pytest.approx(0.4 / 4 * (1 + 3 * move / math.sqrt(2)))
    slope = sum(rolling_stationarity(SETTING, 10, 1.5, 4 / 120).values())
    assert terms["gradient"] == pytest.approx(math.sqrt(slope) / 4)
    log = math.log(2 * 3 * 4 / 0.05)
    assert terms["order"] == pytest.approx(math.sqrt(3 * move**2 * (1 + 9 * move**2) * 4 * log) / 4)
    drift = math.sqrt(3 * 4 * move**2 * (0.9 + 0.16))
    assert terms["drift"] == pytest.approx((1 + move * math.sqrt(3 / 4)) * drift / 4)


def test_theorems_5_and_6_as_printed() -> None:
    data = DataSpread(distance=0.5, lipschitz=2.0, gradient=3.0, weight=1.0)
    printed = random_stability_printed(SETTING, 8, data)  # the pair of shares 1 and 1 is the largest
    assert printed == pytest.approx({"masks": 6 * (1 + 18) / 4, "rest": math.sqrt(0.7 + 0.16) / 4})
    rolling = rolling_stability_printed(SETTING, 8, 2, 4, data)
    assert rolling == pytest.approx({"masks": (2 * 1 + 2 * 6) / 4, "rest": math.sqrt(0.7 + 0.16) / 4})


def test_half_masks_have_a_larger_bound_than_full_ones() -> None:
    """So Theorem 5 does not say that every smaller share is more stable: its term p (1 - p) is largest at 1/2."""
    data = DataSpread(distance=0.5, lipschitz=2.0, gradient=3.0, weight=1.0)
    found = {p: random_divergence((p, p), 10, 2.0, data) for p in (1 / 8, 1 / 4, 1 / 2, 1.0)}
    assert found[1.0] < found[1 / 8] < found[1 / 4] < found[1 / 2]


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        (lambda: Masks.bernoulli([0.0], 3), r"share must be in \(0, 1\], got 0.0"),
        (lambda: Masks.bernoulli([0.5], 17), "17 entries have too many masks"),
        (lambda: Masks.drawn([0.5], 3, 0, key(0)), "draws must be at least 1, got 0"),
        (lambda: Masks.windows([4], 3, 3), "sizes must be from 1 to 3, got 4"),
        (lambda: Masks.windows([1], 3, 0), "offsets must be at least 1"),
        (lambda: Masks.of_view(Windows(drawn=True), {"a": torch.zeros(2, 2)}, 1), "not the same in every epoch"),
        (lambda: Masks(torch.full((1, 1, 2), 0.5), torch.ones(1, 1)), "only zeros and ones"),
        (lambda: Masks(torch.ones(1, 2, 2), torch.ones(1, 2)), "sum to 1"),
        (lambda: Masks(torch.ones(2, 2), torch.ones(2, 2)), r"must be \[clients, masks, entries\]"),
        (lambda: Masked([], Masks.full(2, 3)), "0 losses, but masks of 2 clients"),
        (lambda: Masked([lambda w: w.sum()], Masks.full(1, 2)).optimum(torch.zeros(2)), "is it strongly convex"),
        (lambda: replace(SETTING, smoothness=0.0), "smoothness must be a positive number, got 0.0"),
        (lambda: replace(SETTING, spread=-1.0), "spread must be zero or a positive number, got -1.0"),
        (lambda: replace(SETTING, convexity=4.0), "convexity must be above 0 and at most 3.0, got 4.0"),
        (lambda: replace(SETTING, shares=(0.5, 2.0)), r"shares must be in \(0, 1\], got .*2.0"),
        (lambda: replace(SETTING, shares=()), "one share for each client"),
        (lambda: replace(SETTING, chance=1.0), "chance must be in"),
        (lambda: replace(SETTING, steps=0, windows=0), "steps must be at least 1, got 0\nSubmodelSetting.windows"),
        (lambda: random_distance(SETTING, 3, 1.0), "rate K L must be at most 0.0295: more rounds"),
        (lambda: random_distance(SETTING, 0, 1.0), "rounds must be at least 1, got 0"),
        (lambda: rolling_distance(SETTING, 0, 1.0), "epochs must be at least 1, got 0"),
        (lambda: rolling_stationarity(SETTING, 1, -1.0), "start must not be negative, got -1.0"),
        (lambda: excess_risk(SETTING, -1.0), "distance must not be negative"),
        (
            lambda: random_stability(SETTING, 0, 0, -1.0, 0.0),
            "at least 1, got 0\nsamples must be at least 1, got 0\ndiv",
        ),
        (lambda: rolling_stability(SETTING, 1, 1, 1.0, -1.0), "start must not be negative, got -1.0"),
        (lambda: DataSpread(1.0, -2.0, 1.0, 1.0), "lipschitz must not be negative, got -2.0"),
    ],
)
def test_what_makes_no_sense_is_refused(call: Callable[[], object], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        call()


# A run.


class Point(nn.Module):
    """Weights of two entries, from zero."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(2, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.w


HESSIAN = torch.tensor([[1.0, 0.15], [0.15, 1.0]], dtype=torch.float64)
CENTRE = torch.tensor([1.0, -0.5], dtype=torch.float64)


def quadratic_task() -> Task:
    """One client whose loss is 1/2 (w - c)' A (w - c): half the mean square of two residuals, doubled."""
    x = torch.linalg.cholesky(2 * HESSIAN).mT.contiguous()
    both = Samples(x, x @ CENTRE)
    split = Split(np.arange(2), np.array([0, 2]), np.arange(2), np.array([0, 2]))
    data = Data("quadratic", both, both, 2, "natural", "own")
    return Task(Point, data, split, lambda out, y: (out - y).square().mean() / 2, metrics_of("mse"))


def late_distance(view: Bernoulli | Windows, optimum: Tensor, rounds: int, rate: float, seeds: int) -> float:
    """The mean squared distance to the masked optimum over the second half of the rounds, and over seeds."""
    method, found = compose(view, SGD(rate, steps=1, batch=None), Dense(), Mean("uniform", radius=3.0)), []
    for seed in range(seeds):
        part = replace(view, seed=seed) if isinstance(view, Windows) else view
        options = Options(rounds=rounds, seed=seed, eval_every=rounds)
        run = Simulation(method.with_parts(view=part), quadratic_task(), options)
        for number in range(rounds):
            run.round(number, None)
            if number >= rounds // 2:
                found.append(float((run.model()["w"] - optimum).square().sum()))
    return sum(found) / len(found)


def quadratic_setting(masked: Masked, optimum: Tensor, share: float) -> SubmodelSetting:
    return SubmodelSetting(
        *(1.15, 0.85, 5.0, 3.0, 0.0, (share,), 2, 1),
        heterogeneity=masked.heterogeneity(optimum),
        spread=masked.spread(optimum),
    )


def exact_distance(masks: Masks, optimum: Tensor, rate: float, rounds: int) -> float:
    """E|w_R - w*(p)|^2 from zero: first and second moments of w - w* are linear in those of the round before."""
    held, chances = masks.held[0].numpy(), masks.chances[0].numpy()
    step = np.eye(2) - rate * held[:, :, None] * HESSIAN.numpy() * held[:, None, :]
    best = optimum.numpy()
    push = -rate * held * ((held * best - CENTRE.numpy()) @ HESSIAN.numpy())
    mean, square = -best, np.outer(best, best)
    for _ in range(rounds):
        cross = step @ mean
        each = step @ square @ step.transpose(0, 2, 1) + push[:, :, None] * push[:, None, :]
        each += cross[:, :, None] * push[:, None, :] + push[:, :, None] * cross[:, None, :]
        mean, square = chances @ (cross + push), np.tensordot(chances, each, 1)
    return float(np.trace(square))


def test_theorem_1_holds_repaired_and_not_as_printed() -> None:
    """On a quadratic the expected distance is known: it falls as 1/R, so it is above terms of 1/R^2 in the end."""
    losses, _ = task_losses(quadratic_task())
    masked = Masked(losses, Masks.bernoulli([0.9], 2))
    optimum = masked.optimum(torch.zeros(2, dtype=torch.float64))
    setting, start = quadratic_setting(masked, optimum, 0.9), float(optimum.square().sum())
    exact = {}
    for rounds in (512, 2048, 8192):
        exact[rounds] = exact_distance(masked.masks, optimum, random_rate(setting, rounds), rounds)
        assert exact[rounds] <= sum(random_distance(setting, rounds, start).values())
    assert exact[8192] > 2 * sum(random_distance_printed(setting, 8192, start).values())
    rates = random_rate(setting, 2048) / random_rate(setting, 8192)
    assert exact[2048] / exact[8192] == pytest.approx(rates, rel=0.05)


@pytest.mark.slow
def test_a_run_obeys() -> None:
    """Random masks: 1/R and below the bound; windows: 1/R^2, as R grows fourfold; the excess risk below its bound."""
    losses, _ = task_losses(quadratic_task())
    zero, share = torch.zeros(2, dtype=torch.float64), 0.9
    masked, plain = Masked(losses, Masks.bernoulli([share], 2)), Masked(losses, Masks.full(1, 2))
    optimum = masked.optimum(zero)
    torch.testing.assert_close(plain.optimum(zero), CENTRE)
    setting = quadratic_setting(masked, optimum, share)
    few, many = (
        late_distance(Bernoulli((share,), min_dim=1), optimum, r, random_rate(setting, r), 4) for r in (64, 256)
    )
    predicted = random_rate(setting, 64) / random_rate(setting, 256)
    assert predicted == pytest.approx(3, rel=0.01)
    assert few / many == pytest.approx(predicted, rel=0.4)
    start = float(optimum.square().sum())
    assert many <= sum(random_distance(setting, 256, start).values())
    above = float(plain.value(masked.output(optimum, 1.15)) - plain.value(CENTRE))
    assert 0 < above <= excess_risk(setting, many)

    windows = Masked(losses, Masks.windows([1], 2, 2))
    view, least = Windows((0.5,), offsets=2, min_dim=1), windows.optimum(zero)
    rolling = replace(setting, shares=(0.5,), windows=2)
    few, many = (late_distance(view, least, rounds, random_rate(rolling, rounds), 2) for rounds in (64, 256))
    assert few / many > 6


def test_a_run_that_is_kept_can_be_done_again() -> None:
    wanted = {"masks": "rolling", "noisy": False, "rounds": 64, "seed": 1}
    (found,) = (
        row
        for row in store.read(script.STUDY)[f"{script.STUDY}-distances"]
        if all(row[name] == value for name, value in wanted.items())
    )
    stored, again = dict(found), script.course(posed(found["share"], True), 64, 1)
    assert again.pop("masks") == stored.pop("masks")
    assert again == pytest.approx(stored, rel=1e-6)
