"""SGD against torch's own optimiser and against slow obvious versions; its plans by property."""

import math
from collections import Counter
from typing import Any, cast

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from gossamer import SGD, Clock, ConfigError, Constant, Cosine, Exponential, Steps
from gossamer.core.random import key
from gossamer.core.solver import Gradients
from gossamer.core.specs import parse
from gossamer.core.types import Layout, Params
from gossamer.parts.solvers import LR_SCHEDULES
from helpers.gradients import Given

BATCHES = ([[1.0, 2.0], [3.0, -1.0]], [[0.5, 0.1]])
DATA = [torch.tensor(batch, dtype=torch.float64) for batch in BATCHES * 3]


def loss(w: Tensor, b: Tensor, x: Tensor) -> Tensor:
    return ((x @ w + b - 1) ** 2).mean()


def start() -> Params:
    return {"w": torch.tensor([0.3, -0.7], dtype=torch.float64), "b": torch.tensor([0.2], dtype=torch.float64)}


def ours(solver: SGD, round_: int = 0) -> Params:
    layout = Layout.of(start())
    begin = layout.flatten(start())
    carry = solver.begin(begin, {}, {}, 1)
    for x in DATA:

        def gradient(params: Tensor, x: Tensor = x) -> Gradients:
            leaf = params.clone().requires_grad_()
            held = layout.unflatten(leaf)
            (grads,) = torch.autograd.grad(loss(held["w"], held["b"], x), leaf)
            return grads, params

        carry = solver.step(Given(gradient), begin, carry, solver.hyperparams(Clock(round_, 10, 0)))
    return layout.unflatten(carry["params"])


def torchs(clip: float | None = None, proximal: float = 0.0, **options: Any) -> Params:
    """The same steps with torch.optim.SGD, torch's clipping, and the proximal term written into the loss."""
    begin = start()
    leaves = {name: tensor.clone().requires_grad_() for name, tensor in begin.items()}
    optimiser = torch.optim.SGD(leaves.values(), **options)
    for x in DATA:
        optimiser.zero_grad()
        pull = sum(((leaves[n] - begin[n]) ** 2).sum() for n in leaves)
        (loss(leaves["w"], leaves["b"], x) + proximal / 2 * pull).backward()
        if clip is not None:
            torch.nn.utils.clip_grad_norm_(leaves.values(), clip)
        optimiser.step()
    return leaves


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"momentum": 0.9},
        {"weight_decay": 0.1},
        {"clip": 0.05},
        {"proximal": 0.7},
        {"momentum": 0.8, "weight_decay": 0.05, "clip": 0.5, "proximal": 0.3},
    ],
    ids=lambda fields: "+".join(fields) or "plain",
)
def test_each_term_equals_torchs_own(fields: dict[str, Any]) -> None:
    theirs = torchs(lr=0.1, **fields)
    for name, tensor in ours(SGD(lr=0.1, **fields)).items():
        torch.testing.assert_close(tensor, theirs[name].detach(), rtol=0, atol=1e-12)


def test_a_term_that_is_on_matters() -> None:
    plain = ours(SGD(lr=0.1))["w"]
    for field, value in {"momentum": 0.9, "weight_decay": 0.1, "clip": 0.05, "proximal": 0.7}.items():
        assert not torch.allclose(ours(SGD(lr=0.1, **cast(Any, {field: value})))["w"], plain), field


def test_momentum_starts_at_zero_in_every_round() -> None:
    solver = SGD(momentum=0.9)
    begin = torch.ones(3)
    carry = solver.step(Given(lambda params: (params, params)), begin, solver.begin(begin, {}, {}, 1), {"rate": 0.1})
    assert "velocity" in carry
    info: Any = None  # it asks for nothing
    assert solver.end(carry, info) == ({}, {})


def test_the_schedule_scales_the_learning_rate_by_round() -> None:
    scheduled = SGD(lr=0.1, schedule=Exponential(0.5))
    assert torch.equal(ours(scheduled, round_=2)["w"], ours(SGD(lr=0.1 * 0.25))["w"])


@pytest.mark.parametrize(
    ("schedule", "factors"),
    [
        (Constant(), [1, 1, 1, 1]),
        (Exponential(0.998), [1, 0.998, 0.998**2, 0.998**3]),
        (Steps((1, 3), 0.1), [1, 0.1, 0.1, 0.1**2]),
        (Cosine(), [(1 + math.cos(math.pi * r / 4)) / 2 for r in range(4)]),
    ],
)
def test_schedules(schedule: Any, factors: list[float]) -> None:
    assert [schedule.factor(r, 4) for r in range(4)] == pytest.approx(factors)


def test_schedules_as_they_are_written() -> None:
    assert parse("steps:150+250,0.1", LR_SCHEDULES, "schedule") == Steps((150, 250), 0.1)
    assert parse("exponential:0.998", LR_SCHEDULES, "schedule") == Exponential(0.998)


@given(samples=st.integers(1, 200), batch=st.none() | st.integers(1, 70), epochs=st.integers(1, 4))
def test_every_epoch_has_every_sample_once(samples: int, batch: int | None, epochs: int) -> None:
    solver = SGD(epochs=epochs, batch=batch)
    plan = solver.plan(samples, key(1))
    per_epoch = solver.batches(samples)
    assert len(plan) == epochs * per_epoch
    for epoch in range(epochs):
        mine = plan[epoch * per_epoch : (epoch + 1) * per_epoch]
        assert Counter(int(i) for b in mine for i in b) == Counter(range(samples))
        assert all(len(b) == (batch or samples) for b in mine[:-1])


@given(samples=st.integers(1, 50), batch=st.integers(1, 20), steps=st.integers(1, 30))
def test_a_budget_of_steps_is_kept_to_the_step(samples: int, batch: int, steps: int) -> None:
    plan = SGD(steps=steps, batch=batch).plan(samples, key(1))
    assert len(plan) == steps
    seen = Counter(int(i) for b in plan for i in b)
    assert max(seen.values()) - min(seen.get(i, 0) for i in range(samples)) <= 1


def test_epochs_come_in_different_orders() -> None:
    first, second = SGD(epochs=2, batch=None).plan(50, key(1))
    assert first.tolist() != second.tolist()


def test_what_is_out_of_range_is_listed_all_at_once() -> None:
    with pytest.raises(ConfigError) as refused:
        SGD(lr=-1, epochs=0, steps=0, batch=0, momentum=1, weight_decay=-1, clip=0, proximal=-1)
    assert len(refused.value.mistakes) == 8
    assert refused.value.mistakes[0] == "SGD.lr must be a positive number, got -1"
    for wrong in (lambda: Exponential(0), lambda: Steps((-1,)), lambda: Steps((1,), 2)):
        with pytest.raises(ConfigError):
            wrong()
