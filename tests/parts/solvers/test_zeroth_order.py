"""Zeroth-order steps: estimates of the gradient of a quadratic, their variance and bias, and refused settings."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from gossamer import ConfigError, Dense, Seeds, SumThenDecode, Task, WidthSlice, ZerothOrder, compose, simulate
from gossamer.core.codec import Coding
from gossamer.core.method import Method
from gossamer.core.random import key, tensor
from gossamer.core.random.directions import DirectionKind
from gossamer.core.solver import Move, StepKeys
from gossamer.core.types import Clock, Layout, Params
from gossamer.parts.views.entries import Full
from gossamer.testing import tiny_task
from helpers.tasks import batch_norm_task

DOUBLE = torch.float64
D = 12
CURVATURE = torch.linspace(0.5, 3, D, dtype=DOUBLE)
CENTRE = torch.linspace(-1, 1, D, dtype=DOUBLE)
W: Params = {"a": torch.ones(5, dtype=DOUBLE), "b": torch.full((7, 1), -0.5, dtype=DOUBLE)}
GRADIENT = CURVATURE * (torch.cat([W["a"], W["b"].view(-1)]) - CENTRE)
LAYOUT = Layout.of(W)
START = LAYOUT.flatten(W)
LAYERS = {"layers": {"a": 0, "b": 1}, "layout": LAYOUT}
COUNT = 3000


def quadratic(at: Tensor) -> Tensor:
    """F(w) = 1/2 (w - a)' D (w - a)."""
    return 0.5 * (CURVATURE * (at - CENTRE).square()).sum()


class Batch:
    """A loss as a step sees it."""

    def __init__(self, loss: Callable[[Tensor], Tensor], keys: StepKeys) -> None:
        self.loss, self.keys = loss, keys

    def __call__(self, params: Tensor, move: Move | None = None) -> Tensor:
        held = LAYOUT.unflatten(params)
        return self.loss(LAYOUT.flatten({name: move(name, each) if move else each for name, each in held.items()}))


def estimates(kind: DirectionKind, loss: Callable[[Tensor], Tensor] = quadratic, **fields: Any) -> Tensor:
    """One estimate of the gradient per row, from rounds of one direction."""
    solver = ZerothOrder(lr=1.0, perturbations=1, directions=kind, **fields).filled(**LAYERS)
    carry, hyperparams = solver.begin(START, {}, {}, 1), {"factor": torch.tensor(1.0, dtype=DOUBLE)}

    def estimate(at: Tensor) -> Tensor:
        return START - solver.step(Batch(loss, StepKeys(at, at, torch.tensor(0))), START, carry, hyperparams)["params"]

    found: Tensor = torch.vmap(estimate)(torch.stack([tensor(key(number)) for number in range(COUNT)]))
    return found


@pytest.mark.parametrize(("kind", "factor"), [("rademacher", D - 1), ("gauss", D + 1)])
def test_central_differences_of_a_quadratic_are_unbiased_with_the_known_variance(
    kind: DirectionKind, factor: int
) -> None:
    found = estimates(kind, mu=0.3)
    error = found.mean(0) - GRADIENT
    standard_error = found.std(0) / COUNT**0.5
    assert (error.abs() < 4.5 * standard_error).all()
    squares = (found - GRADIENT).square().sum(1)
    expected = factor * GRADIENT.square().sum()
    assert abs(squares.mean() - expected) < 4.5 * squares.std() / COUNT**0.5
    if kind == "gauss":  # the two closed forms can be told apart
        assert abs(squares.mean() - (D - 1) * GRADIENT.square().sum()) > 1 / D * expected


def test_forward_differences_add_half_of_mu_times_the_curvature() -> None:
    mu = 0.5
    central, forward = (estimates("rademacher", mu=mu, difference=which) for which in ("central", "forward"))
    # For signs, z'Dz is the trace, so that each forward quotient is larger by mu/2 trace(D).
    excess = (forward - central).abs()
    assert torch.allclose(excess, torch.full_like(excess, float(mu / 2 * CURVATURE.sum())))
    # This is independent of the sign of z: the mean stays unbiased, with a larger variance.
    error = forward.mean(0) - GRADIENT
    assert (error.abs() < 4.5 * forward.std(0) / COUNT**0.5).all()


def test_a_cubic_term_biases_central_differences_by_mu_squared() -> None:
    def cubic(at: Tensor) -> Tensor:
        return at[0] ** 3

    found = estimates("rademacher", cubic, mu=0.5)
    # ((w + mu z)^3 - (w - mu z)^3) / 2mu = 3 w^2 z + mu^2 z^3, with w = 1.
    assert float(found[:, 0].mean()) == pytest.approx(3 + 0.25)


def test_clipped_quotients_are_bounded() -> None:
    found = estimates("rademacher", clip=0.1)
    assert float(found.abs().max()) == pytest.approx(0.1)
    assert float(estimates("rademacher").abs().max()) > 1


def test_scalars_of_all_steps_and_the_model_after_them() -> None:
    solver = ZerothOrder(lr=0.1, steps=3, perturbations=2, mu=1e-3).filled(**LAYERS)
    carry, start = solver.begin(START, {}, {}, 3), START.clone()
    for step in range(3):
        keys = StepKeys(tensor(key(1)), tensor(key(2)), torch.tensor(step))
        carry = solver.step(Batch(quadratic, keys), START, carry, solver.hyperparams(Clock(0, 1, 0)))
    assert carry["scalars"].shape == (6,)
    assert (carry["scalars"] != 0).all()
    assert torch.equal(START, start)
    codec = Seeds(6).filled(layers={"a": 0, "b": 1}, solver=solver)
    payload = codec.encode_carry(carry, Coding(LAYOUT, key(1)))
    change = carry["params"] - START
    assert torch.allclose(codec.decode(payload, Coding(LAYOUT, key(1))), change, rtol=0, atol=1e-6)


def seeds(solver: ZerothOrder, **fields: Any) -> Method:
    return compose(Full(), solver, Seeds(solver.span.size, solver.directions), SumThenDecode(), **fields)


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"lr": 0.0}, "lr must be a positive number"),
        ({"mu": -1.0}, "mu must be a positive number"),
        ({"steps": 0}, "steps must be at least 1"),
        ({"perturbations": 0}, "perturbations must be at least 1"),
        ({"clip": 0.0}, "clip must be a positive number"),
    ],
)
def test_wrong_fields_are_refused(fields: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        ZerothOrder(**fields)


@pytest.mark.parametrize(
    ("method", "task", "text"),
    [
        (seeds(ZerothOrder()), batch_norm_task(), "the forward pass changes the buffer 1.running_mean"),
        (compose(WidthSlice(), ZerothOrder(), Dense()), tiny_task(), "use Full"),
        (
            compose(Full(), ZerothOrder(), Seeds(11), SumThenDecode()),
            tiny_task(),
            "count must be that of ZerothOrder, 10",
        ),
        (
            compose(Full(), ZerothOrder(), Seeds(10, "gauss")),
            tiny_task(),
            "directions must be those of ZerothOrder, rad",
        ),
        (seeds(ZerothOrder(), send="model"), tiny_task(), "Seeds encodes a change of the model, got send='model'"),
    ],
)
def test_what_does_not_fit_is_refused_before_training(method: Method, task: Task, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        simulate(method, task, rounds=1)
