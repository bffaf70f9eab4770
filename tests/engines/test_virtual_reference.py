"""Events, times, staleness, energy and models under a schedule, against a simulation of events written by hand."""

from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from gossamer import fedavg, simulate
from gossamer.tasks.task import Task
from helpers.event_reference import Problem, Reference, Round, Rules
from helpers.toy_devices import ToyDevices

CLIENTS, COHORT, ROUNDS, FEATURES, CLASSES = 20, 6, 8, 5, 3
SECOND = 10**9
LR, EPOCHS, BATCH, SERVER_LR = 0.2, 2, 8, 0.7


def polynomial(exponent: float, most: int | None = None, mix: float = 1.0) -> Any:
    return lambda s: None if most is not None and s > most else mix * (1 + s) ** -exponent


SCHEDULES: dict[str, Rules] = {
    "sync": Rules(6),
    "deadline:9s,over=1.3": Rules(8, goal=6, deadline=9 * SECOND),
    "deadline:6s": Rules(6, deadline=6 * SECOND),
    "deadline:9s,over=1.3,late=fold": Rules(8, goal=6, deadline=9 * SECOND, keeps=True),
    "deadline:5s,late=fold": Rules(6, deadline=5 * SECOND, keeps=True),
    "fedbuff:buffer=4,concurrency=9,staleness=0.5,max_staleness=1": Rules(
        9, goal=4, refills=True, keeps=True, factor=polynomial(0.5, 1)
    ),
    "fedbuff:buffer=9,concurrency=3": Rules(3, goal=9, refills=True, keeps=True, factor=polynomial(0.5)),
    "fedbuff:buffer=20,concurrency=5": Rules(5, goal=20, refills=True, keeps=True, factor=polynomial(0.5)),
    "fedasync:staleness=0.5": Rules(6, goal=1, refills=True, keeps=True, factor=polynomial(0.5, mix=0.6), mixes=True),
}
CHANNELS = {
    "always there": ToyDevices(),
    "work lost": ToyDevices(leaving=True, lossy=True),
    "work lost, coarse times": ToyDevices(leaving=True, lossy=True, coarse=True),
    "work paused": ToyDevices(leaving=True, pausing=True, lossy=True),
    "work paused, coarse times": ToyDevices(leaving=True, pausing=True, lossy=True, coarse=True),
}


@cache
def problem() -> tuple[Problem, Task]:
    """A task, and the same task for the reference."""
    draw = np.random.default_rng(0)
    sizes = [4 + 3 * client % 11 for client in range(CLIENTS)]
    x, y = draw.normal(size=(sum(sizes), FEATURES)), draw.integers(CLASSES, size=sum(sizes))
    ends = np.cumsum(sizes)
    rows = [np.arange(end - size, end) for size, end in zip(sizes, ends, strict=True)]
    torch.manual_seed(0)
    net = nn.Linear(FEATURES, CLASSES).double()
    data = torch.from_numpy(x), torch.from_numpy(y)
    task = Task.of(net, data, (data[0][:9], data[1][:9]), split=rows)
    weight, bias = net.weight.detach().numpy(), net.bias.detach().numpy()
    bytes_ = message(task)
    return Problem([(x[r], y[r]) for r in rows], weight, bias, LR, EPOCHS, BATCH, bytes_, SERVER_LR), task


def message(task: Task) -> int:
    """Return the bytes of a message, which are the same in both directions."""
    record = simulate(method(), task, rounds=1, per_round=1).metrics[0]
    up, down = (sum(record[name].values()) for name in ("bytes_up", "bytes_down"))
    assert up == down
    return int(up)


def method() -> Any:
    return fedavg(lr=LR, epochs=EPOCHS, batch=BATCH, server_lr=SERVER_LR)


def check(record: dict[str, Any], model: dict[str, torch.Tensor], ours: Round, before: int) -> None:
    """Compare a round with that of the reference."""
    tasks, columns = record["tasks"], ours.columns()
    assert {name: tasks[name] for name in columns} == columns
    assert record["time"] == ours.time / SECOND
    assert record["delay"] == pytest.approx((ours.time - before) / SECOND, abs=1e-9)
    assert record["clients"] == sorted(columns["client"])
    assert sum(record["bytes_down"].values()) == ours.down
    assert sum(record["bytes_up"].values()) == ours.up
    assert dict.fromkeys(ours.energy, 0.0) | record["energy"] == pytest.approx(ours.energy, abs=1e-9)
    wasted = record["spent_in_vain"]
    assert (wasted["joules"], wasted["seconds"]) == pytest.approx(ours.wasted, abs=1e-9)
    np.testing.assert_allclose(model["weight"], ours.weight, rtol=0, atol=1e-9)
    np.testing.assert_allclose(model["bias"], ours.bias, rtol=0, atol=1e-9)


@pytest.mark.parametrize("devices", CHANNELS)
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_rounds_are_those_of_the_reference(schedule: str, devices: str) -> None:
    channel, models = CHANNELS[devices], list[dict[str, torch.Tensor]]()

    def keep(record: dict[str, Any], run: Any) -> None:
        models.append({name: tensor.clone() for name, tensor in run.server["params"].items()})

    ours, task = problem()
    expected = Reference(ours, SCHEDULES[schedule], channel, ROUNDS).run()
    given: dict[str, Any] = {"rounds": ROUNDS, "eval_every": ROUNDS, "per_round": COHORT, "anomalies": False}
    result = simulate(method(), task, schedule=schedule, channel=channel, callbacks=keep, **given)
    before = 0
    for record, model, round_ in zip(result.metrics, models, expected, strict=True):
        check(record, model, round_, before)
        before = round_.time
