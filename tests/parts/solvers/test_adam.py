"""Adam: torch's own steps, the warm-up and the schedule."""

import pytest
import torch

from gossamer import Adam, ConfigError, Cosine
from gossamer.core.solver import Gradients
from gossamer.core.types import Clock
from helpers.gradients import Given

STEPS, LR = 6, 0.02


def gradient(params: torch.Tensor) -> Gradients:
    return params**3 - 1, params


def moved(solver: Adam, round_: int = 0) -> torch.Tensor:
    start = torch.linspace(-2, 2, 5, dtype=torch.float64)
    carry = solver.begin(start, {}, {}, STEPS)
    for _ in range(STEPS):
        carry = solver.step(Given(gradient), start, carry, solver.hyperparams(Clock(round_, 4, 0)))
    result: torch.Tensor = carry["params"]
    return result


def by_torch(rates: list[float]) -> torch.Tensor:
    w = torch.linspace(-2, 2, 5, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.Adam([w], lr=1.0)
    for rate in rates:
        optimizer.param_groups[0]["lr"] = rate
        w.grad = w.detach() ** 3 - 1
        optimizer.step()
    return w.detach()


def test_steps_are_those_of_torch() -> None:
    torch.testing.assert_close(moved(Adam(LR)), by_torch([LR] * STEPS), rtol=1e-12, atol=0)


def test_the_rate_rises_over_the_warm_up_and_follows_the_schedule() -> None:
    rising = [LR * min(1, step / 4) for step in range(1, STEPS + 1)]
    torch.testing.assert_close(moved(Adam(LR, warmup=4)), by_torch(rising), rtol=1e-12, atol=0)
    halved = [rate / 2 for rate in rising]
    torch.testing.assert_close(moved(Adam(LR, warmup=4, schedule=Cosine()), 2), by_torch(halved), rtol=1e-12, atol=0)
    with pytest.raises(ConfigError, match=r"Adam\.warmup must not be negative, got -1"):
        Adam(warmup=-1)
