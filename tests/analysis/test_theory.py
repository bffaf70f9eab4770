"""The paper's formulas: closed forms against Monte Carlo, limits, and what must rise with what."""

import doctest
import math
import runpy
from collections.abc import Callable
from dataclasses import replace
from itertools import combinations, product
from typing import Any, cast
from xml.etree import ElementTree

import pytest
import torch

import gossamer.analysis.theory
from gossamer.analysis.theory import (
    BoundSetting,
    masking_error,
    measured_error,
    noise_magnitude,
    nonconvex_bound,
    nonconvex_rate,
    progressive_factor,
    progressive_factor_by_entry,
    strongly_convex_bound,
    strongly_convex_rate,
)
from gossamer.core.codec import Coding
from gossamer.core.errors import ConfigError
from gossamer.core.random import choice, fold, key, uniform
from gossamer.core.random.noise import Kind
from gossamer.core.types import Layout
from gossamer.parts.codecs.dense import Dense
from gossamer.parts.codecs.masked_noise import MaskedNoise, clipped, probability
from helpers.narrow import present
from helpers.paths import ROOT

SETTING = BoundSetting(
    smoothness=3.0,
    gradient=2.0,
    deviation=0.5,
    clients=20,
    cohort=5,
    steps=4,
    error=1.5,
    convexity=0.5,
    heterogeneity=0.1,
)


def change(n: int, size: float) -> torch.Tensor:
    return (uniform(fold(key(5), n), n, dtype=torch.float64) * 2 - 1) * size


# The masking error


@pytest.mark.parametrize("signed", [False, True])
@pytest.mark.parametrize("kind", ["uniform", "gauss", "bernoulli"])
@pytest.mark.parametrize("size", [0.002, 0.02])  # within the noise, mostly, and beyond it
def test_the_error_in_closed_form_is_what_messages_have(signed: bool, kind: Kind, size: float) -> None:
    u, codec = change(400, size), MaskedNoise(signed, kind, alpha=0.01)
    layout = Layout.of({"change": u})
    wanted = [masking_error(u, codec.draw(Coding(layout, fold(key(1), i))), signed) for i in range(200)]
    square = sum(q * q for q in wanted) / len(wanted)
    # 200 messages of 400 entries: a mean of squares of some 80,000 terms, right to about 1 % a deviation.
    assert measured_error(codec, u, key(1), draws=200) ** 2 == pytest.approx(square, rel=0.03)


def test_signed_bernoulli_noise_has_the_error_that_the_module_states() -> None:
    u, alpha = change(100, 0.009), 0.01
    noise = torch.full_like(u, alpha)
    assert masking_error(u, noise) == pytest.approx(math.sqrt(100 * alpha**2 / float(u.square().sum()) - 1))


def test_no_error_bounds_all_changes() -> None:
    noise = torch.full((10,), 0.01)
    errors = [masking_error(change(10, size), noise) for size in (1e-3, 1e-5, 1e-7)]
    assert errors[0] * 50 < errors[1]
    assert errors[1] * 50 < errors[2]


def test_binary_masks_that_fit_have_no_error() -> None:
    noise = torch.tensor([0.01, -0.01, 0.02])
    assert masking_error(noise * torch.tensor([1.0, 0, 1]), noise, signed=False) == pytest.approx(0, abs=1e-6)
    assert masking_error(-noise, noise, signed=True) == 0


def test_a_dense_codec_has_no_error() -> None:
    assert measured_error(Dense(), torch.ones(3), key(0)) == 0


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        (lambda: masking_error(torch.ones(2), torch.ones(3)), "differ in shape"),
        (lambda: masking_error(torch.ones(2), torch.zeros(2)), "noise must not be zero"),
        (lambda: masking_error(torch.zeros(2), torch.ones(2)), "the change is zero"),
        (lambda: measured_error(Dense(), torch.zeros(2), key(0)), "the change is zero"),
        (lambda: measured_error(Dense(), torch.ones(2), key(0), draws=0), "draws must be at least 1, got 0"),
        (lambda: progressive_factor(0), "steps must be at least 1, got 0"),
        (lambda: progressive_factor_by_entry(0), "steps must be at least 1, got 0"),
        (lambda: strongly_convex_bound(SETTING, 0, 1.0), "step must be at least 1, got 0"),
        (lambda: strongly_convex_bound(SETTING, 1, -1.0), "distance must not be negative"),
        (lambda: strongly_convex_bound(replace(SETTING, convexity=None), 1, 1.0), "needs BoundSetting.convexity"),
        (lambda: nonconvex_bound(SETTING, 0, 1.0), "horizon must be at least 1 step, got 0"),
        (lambda: nonconvex_bound(SETTING, 1, -1.0), "gap must not be negative"),
        (lambda: noise_magnitude(SETTING, 0.0), "rate must be positive"),
        (lambda: replace(SETTING, smoothness=0.0), "smoothness must be a positive number, got 0.0"),
        (lambda: replace(SETTING, gradient=math.nan), "gradient must be a positive number, got nan"),
        (lambda: replace(SETTING, error=-1.0), "error must be zero or a positive number, got -1.0"),
        (lambda: replace(SETTING, cohort=21), "cohort must be from 1 to 20, got 21"),
        (lambda: replace(SETTING, steps=0), "steps must be at least 1"),
        (lambda: replace(SETTING, convexity=4.0), "convexity must be above 0 and at most 3.0, got 4.0"),
    ],
)
def test_what_makes_no_sense_is_refused(call: Callable[[], object], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        call()


# Progressive masking


@pytest.mark.parametrize("steps", [1, 2, 7, 100])
def test_factors_are_their_sums(steps: int) -> None:
    ts = range(1, steps + 1)
    assert progressive_factor(steps) == pytest.approx(math.sqrt(sum(t * t for t in ts) / steps**3))
    assert progressive_factor_by_entry(steps) == pytest.approx(math.sqrt(sum(ts) / steps**2))


def test_factors_fall_from_one_to_their_limits() -> None:
    for factor, limit in ((progressive_factor, 1 / 3), (progressive_factor_by_entry, 1 / 2)):
        values = [factor(steps) for steps in range(1, 50)]
        assert values[0] == 1
        assert values == sorted(values, reverse=True)
        assert factor(10**6) == pytest.approx(math.sqrt(limit), rel=1e-5)


@pytest.mark.parametrize("by_entry", [False, True])
def test_progressive_masking_reduces_the_error_by_its_factors(by_entry: bool) -> None:
    """Masking each entry with probability p leaves p of the squared error; mixing in proportion p leaves p squared."""
    n, steps = 2000, 10
    u, noise = change(n, 0.01), torch.full((n,), 0.01, dtype=torch.float64)
    mean, base = 0.0, masking_error(u, noise) ** 2 * float(u.square().sum())
    for number in range(20 * steps):
        p, at = (number % steps + 1) / steps, fold(key(3), number)
        mask = uniform(fold(at, "mask"), n, dtype=torch.float64) < probability(u, noise, signed=True)
        masked = torch.where(mask, noise, -noise)
        chosen = (uniform(fold(at, "chosen"), n) < p).double() if by_entry else p
        used = chosen * masked + (1 - chosen) * clipped(u, noise, signed=True)
        mean += float((used - u).square().sum()) / (20 * steps)
    factor = (progressive_factor_by_entry if by_entry else progressive_factor)(steps)
    assert math.sqrt(mean / base) == pytest.approx(factor, rel=0.01)


# The bounds


def slow_convex_bound(s: BoundSetting, t: int, distance: float) -> float:
    """Theorem 1 as it is printed, symbol for symbol."""
    l, mu, g, q, n, k, big_s = s.smoothness, present(s.convexity), s.gradient, s.error, s.clients, s.cohort, s.steps  # noqa: E741
    kappa = l / mu
    gamma = max(8 * kappa, big_s) - 1
    b = s.deviation**2 / n + 6 * l * s.heterogeneity + 8 * (1 + q**2) * (big_s - 1) ** 2 * g**2
    b += 4 * (q**2 * (n - 1) + n - k) / (k * (n - 1)) * big_s**2 * g**2
    return kappa / (gamma + t) * (2 * b / mu + mu * (gamma + 1) / 2 * distance)


def slow_nonconvex_bound(s: BoundSetting, t: int, gap: float) -> float:
    """Theorem 2 as it is printed."""
    p = s.deviation**2 / s.clients
    ways = (s.error**2 * (s.clients - 1) + s.clients - s.cohort) / (s.cohort * (s.clients - 1))
    p += 4 * ways * s.steps**2 * s.gradient**2
    q = 4 * (1 + s.error**2) * (s.steps - 1) ** 2 * s.gradient**2
    return 2 * s.smoothness * gap / math.sqrt(t) + p / math.sqrt(t) + q / t


@pytest.mark.parametrize("more", [{}, {"error": 0.0}, {"cohort": 20}, {"steps": 1}, {"steps": 90}])
@pytest.mark.parametrize("t", [1, 10, 1000])
def test_bounds_are_as_printed(more: dict[str, Any], t: int) -> None:
    setting = replace(SETTING, **more)
    assert strongly_convex_bound(setting, t, 2.5) == pytest.approx(slow_convex_bound(setting, t, 2.5))
    assert nonconvex_bound(setting, t, 2.5) == pytest.approx(slow_nonconvex_bound(setting, t, 2.5))


def test_without_masking_everybody_and_one_step_are_plain_sgd() -> None:
    plain = replace(SETTING, error=0.0, cohort=20, steps=1, heterogeneity=0.0)
    delay = 8 * 6 - 1
    assert strongly_convex_bound(plain, 9, 2.0) == pytest.approx(
        6 / (delay + 9) * (2 * (0.25 / 20) / 0.5 + 0.5 * 48 / 2 * 2.0)
    )
    assert nonconvex_bound(plain, 16, 2.0) == pytest.approx((2 * 3 * 2.0 + 0.25 / 20) / 4)


def test_one_client_can_only_be_drawn() -> None:
    alone = replace(SETTING, clients=1, cohort=1)
    assert alone.sampling == pytest.approx(4 * 1.5**2 * 16 * 4)


@pytest.mark.parametrize("bound", [strongly_convex_bound, nonconvex_bound])
@pytest.mark.parametrize(
    ("field", "ascending"),
    [
        ("error", (0.0, 0.5, 2.0)),
        ("gradient", (1.0, 2.0, 5.0)),
        ("deviation", (0.0, 1.0, 3.0)),
        ("cohort", (20, 10, 1)),
        ("steps", (1, 2, 20)),
        ("smoothness", (1.0, 3.0, 9.0)),
    ],
)
def test_bounds_rise_with_what_is_harder_and_fall_with_time(
    bound: Callable[[BoundSetting, int, float], float], field: str, ascending: tuple[float, ...]
) -> None:
    values = [bound(replace(SETTING, **cast(Any, {field: value})), 50, 1.0) for value in ascending]
    assert values == sorted(values)
    assert values[0] < values[-1]
    times = [bound(SETTING, t, 1.0) for t in (1, 2, 10, 100, 10**6)]
    assert times == sorted(times, reverse=True)


def test_bounds_fall_at_the_stated_rates() -> None:
    assert strongly_convex_bound(SETTING, 4 * 10**9, 1.0) == pytest.approx(
        strongly_convex_bound(SETTING, 10**9, 1.0) / 4, rel=1e-6
    )
    assert nonconvex_bound(SETTING, 4 * 10**12, 1.0) == pytest.approx(
        nonconvex_bound(SETTING, 10**12, 1.0) / 2, rel=1e-4
    )


def test_rates_are_those_of_the_theorems() -> None:
    assert strongly_convex_rate(SETTING, 1) == pytest.approx(2 / (0.5 * 48))
    assert strongly_convex_rate(SETTING, 1) <= 1 / (4 * 3.0)
    assert all(strongly_convex_rate(SETTING, t) <= 2 * strongly_convex_rate(SETTING, t + 4) for t in range(1, 100))
    assert nonconvex_rate(SETTING, 100) == pytest.approx(1 / 30)
    assert noise_magnitude(SETTING, 0.1) == pytest.approx(2 * 0.1 * 4 * 2)


def descent(setting: BoundSetting, steps: int, start: float) -> tuple[list[float], float]:
    """|grad F|^2 before each step of gradient descent on F(w) = L w^2 / 2 at Theorem 2's rate, and F(start)."""
    w, squares = start, []
    for _ in range(steps):
        squares.append((setting.smoothness * w) ** 2)
        w -= nonconvex_rate(setting, steps) * setting.smoothness * w
    return squares, setting.smoothness * start**2 / 2


def test_gradient_descent_on_a_parabola_reaches_the_second_bound_in_one_step_and_half_of_it_in_many() -> None:
    """The mean of T squares is 1 / (2 - 1 / sqrt(T)) of the bound, but for what is left at the end."""
    plain = replace(SETTING, error=0.0, cohort=20, steps=1, deviation=0.0)
    for horizon in (1, 16, 100, 10_000):
        squares, gap = descent(plain, horizon, 1.7)
        root = math.sqrt(horizon)
        wanted = (1 - (1 - 1 / root) ** (2 * horizon)) / (2 - 1 / root)
        assert sum(squares) / horizon == pytest.approx(wanted * nonconvex_bound(plain, horizon, gap))


def test_the_first_bound_is_reached_before_the_first_step() -> None:
    """With nothing to spread, F = L |w - w*|^2 / 2 at the start is all there is."""
    plain = replace(SETTING, error=0.0, cohort=20, steps=1, deviation=0.0, heterogeneity=0.0)
    assert strongly_convex_bound(plain, 1, 2.5) == pytest.approx(plain.smoothness * 2.5 / 2)


def test_drawing_clients_and_masks_spreads_their_mean_by_a_quarter_of_what_the_bounds_count() -> None:
    """Lemma 3 at a constant rate, over all cohorts and all masks; its 4 is for rates that have halved since."""
    rate, steps, g, clients, cohort, alpha = 0.1, 3, 2.0, 4, 2, 0.8
    slopes = g * torch.tensor([[0.6, 0.8], [-0.6, -0.8], [0.8, -0.6], [-0.8, 0.6]], dtype=torch.float64)
    changes, noise = -rate * steps * slopes, torch.tensor([alpha, -alpha], dtype=torch.float64)
    chance, square = probability(changes, noise, signed=True), 0.0
    signs = [torch.tensor(each, dtype=torch.float64).view(cohort, 2) for each in product((-1, 1), repeat=2 * cohort)]
    for picked in combinations(range(clients), cohort):
        for mask in signs:
            p = torch.where(mask > 0, chance[list(picked)], 1 - chance[list(picked)]).prod()
            square += float(p * ((mask * noise).mean(0) - changes.mean(0)).square().sum()) / math.comb(clients, cohort)
    error = masking_error(changes, noise.expand_as(changes))
    setting = BoundSetting(1.0, g, 0.0, clients, cohort, steps, error=error)
    assert 4 * square == pytest.approx(rate**2 * setting.sampling)


# The example


@pytest.fixture(scope="module")
def example() -> dict[str, Any]:
    return runpy.run_path(str(ROOT / "examples" / "fedmrn_bounds.py"))


def test_the_examples_constants_are_those_of_its_problem(example: dict[str, Any]) -> None:
    problem = example["Problem"].drawn(key(0))
    setting, zero = problem.setting(3.0), torch.zeros(4, dtype=torch.float64)
    hessians = torch.stack(
        [torch.autograd.functional.hessian(lambda w, k=k: problem.losses(w)[k], zero) for k in range(20)]
    )
    bends = torch.linalg.eigvalsh(hessians)
    assert setting.smoothness == pytest.approx(float(bends.max()))  # logistic losses bend most at 0
    assert 0 < setting.convexity < float(bends.min())
    assert problem.slope(problem.best).norm() < 1e-12
    own = problem.losses(problem.least(together=False))
    assert setting.heterogeneity == pytest.approx(float(problem.losses(problem.best).mean() - own.mean()))
    w = torch.linspace(-1.5, 1.5, 4, dtype=torch.float64).requires_grad_()
    (wanted,) = torch.autograd.grad(problem.losses(w).mean(), w)
    each = [problem.slopes(w.detach().expand(20, 4), torch.full((20,), sample)) for sample in range(40)]
    assert torch.allclose(problem.slope(w.detach()), wanted)
    assert torch.allclose(torch.stack(each).mean((0, 1)), wanted)
    assert torch.stack(each).norm(dim=-1).max() <= setting.gradient


def test_the_examples_tables_are_what_its_runs_went_through(example: dict[str, Any]) -> None:
    runs = example["Runs"](example["Problem"].drawn(key(0)), 1e3, 2)
    setting, horizon = runs.setting, 6 * example["STEPS"]
    rows = example["nonconvex"](runs, (6, 24))
    plain, masked = (runs.courses([nonconvex_rate(setting, horizon)] * horizon, each) for each in (False, True))
    squares = [torch.tensor([course.squares for course in each]) for each in (plain, masked)]
    assert squares[0].shape == (2, horizon)
    assert [rows[0][1], rows[0][3]] == pytest.approx([float(each.mean()) for each in squares])
    assert rows[0][5] == max(error for course in masked for error in course.errors) > 0
    gap = runs.problem.gap(torch.zeros(4, dtype=torch.float64))
    assert rows[0][2] == pytest.approx(slow_nonconvex_bound(setting, horizon, gap))
    assert rows[0][4] == pytest.approx(slow_nonconvex_bound(replace(setting, error=rows[0][5]), horizon, gap))
    table = example["convex"](runs, 6)
    distance = float(runs.problem.best.square().sum())
    assert [row[2] for row in table] == pytest.approx(
        [slow_convex_bound(setting, 3 * n, distance) for n in range(1, 7)]
    )
    assert [row[5] for row in table] == sorted(row[5] for row in table)
    lines = ElementTree.fromstring(example["picture"]([table, rows])).iter("{http://www.w3.org/2000/svg}g")
    assert sum("line2d" in line.get("id", "") for line in lines) >= 8


def test_without_masks_the_example_is_federated_averaging(example: dict[str, Any]) -> None:
    """Two rounds by hand: single steps on the samples drawn, then the mean of the cohort drawn."""
    problem = example["Problem"].drawn(key(0))
    rates, at, w = [0.9, 0.8, 0.7, 0.6, 0.5, 0.4], key(7), torch.zeros(4, dtype=torch.float64)
    course = example["Runs"](problem, 1e3, 1).run(rates, at, masked=False)
    for number in range(2):
        mine = fold(at, number)
        picked = (uniform(fold(mine, "samples"), 60) * 40).long().view(3, 20)
        ends = []
        for client in choice(fold(at, "cohort", number), 20, 5).tolist():
            here = w
            for step in range(3):
                x = problem.x[client, picked[step, client]]
                here = here - rates[3 * number + step] * (example["RIDGE"] * here - torch.sigmoid(-x @ here) * x)
            ends.append(here)
        w = torch.stack(ends).mean(0)
        assert torch.allclose(course.weights[number], w)


def test_a_run_that_leaves_its_radius_is_done_again_in_a_wider_one(example: dict[str, Any]) -> None:
    problem, tried = example["Problem"].drawn(key(0)), []

    def work(runs: Any) -> Any:
        tried.append(runs.radius)
        return example["nonconvex"](runs, (10,))

    setting, _ = example["within"](problem, 1, work)
    assert len(tried) > 1
    assert tried[1] == 1.5 * tried[0]
    assert setting == problem.setting(tried[-1])


def test_examples_in_the_module_hold() -> None:
    found = doctest.testmod(gossamer.analysis.theory.masking)
    assert (found.failed, found.attempted > 0) == (0, True)
