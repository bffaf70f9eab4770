"""Methods that send scalars: runs against a plain loop, executors against each other, resumed runs, bytes and FLOPs."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from gossamer import (
    ConfigError,
    Dense,
    Method,
    PayloadError,
    Seeds,
    SumThenDecode,
    Task,
    ZerothOrder,
    compose,
    decomfl,
    fedkseed,
    hiso,
    simulate,
)
from gossamer.core.codec import Coding
from gossamer.core.jobs import own_key, round_key
from gossamer.core.random import directions, fold, key, tensor
from gossamer.core.random.directions import DirectionKind, direction
from gossamer.core.types import Clock, Params
from gossamer.parts.attacks import ATTACKS
from gossamer.parts.views.entries import Full
from gossamer.tasks.objective import Objective
from gossamer.testing import tiny_task

DOUBLE = tiny_task(dtype=torch.float64)


def seeds(solver: ZerothOrder, **fields: Any) -> Method:
    return compose(Full(), solver, Seeds(solver.span.size, solver.directions), SumThenDecode(), **fields)


def weights(result: Any) -> Params:
    state: Params = result.model.state_dict()
    return state


def z_of(kind: DirectionKind, at: Tensor, number: int, params: Params) -> Params:
    """A direction, tensor by tensor in name order."""
    return {
        name: direction(kind, at, torch.tensor(number), params[name].numel(), layer).view(params[name].shape).double()
        for layer, name in enumerate(sorted(params))
    }


def plain(solver: ZerothOrder, task: Task, rounds: int, seed: int) -> Params:
    """The algorithm of DeComFL in a loop over rounds, clients, steps and perturbations."""
    run, objective = key(seed), Objective(task, "cpu", key(seed))
    model, loss = objective.initial(), torch.nn.functional.cross_entropy
    network = task.model().double()
    for number in range(rounds):
        at = round_key(run, number)
        total, samples = torch.zeros(solver.span.size, dtype=torch.float64), 0
        for client in range(task.clients):
            mine, w = own_key(at, Clock(number, rounds, client)), {name: t.clone() for name, t in model.items()}
            rows, scalars = torch.from_numpy(task.split.train(client)), []
            for step, batch in enumerate(solver.plan(len(rows), fold(mine, "batches"))):
                x, y = (each[rows[torch.from_numpy(batch)]] for each in (task.data.train.x, task.data.train.y))

                def value(shift: float, z: Params, w: Params = w, x: Tensor = x, y: Tensor = y) -> Tensor:
                    moved = {name: w[name] + shift * z[name] for name in w}
                    return loss(torch.func.functional_call(network, moved, (x,)), y)

                update = {name: torch.zeros_like(t) for name, t in w.items()}
                for p in range(solver.perturbations):
                    z = z_of(solver.directions, tensor(fold(at, "codec")), step * solver.perturbations + p, w)
                    if solver.difference == "central":
                        c = (value(solver.mu, z) - value(-solver.mu, z)) / (2 * solver.mu)
                    else:
                        c = (value(solver.mu, z) - value(0, z)) / solver.mu
                    scalars.append(c)
                    update = {name: update[name] + c * z[name] for name in w}
                w = {name: t - solver.lr / solver.perturbations * update[name] for name, t in w.items()}
            total += len(rows) * torch.stack(scalars).detach().float().double()
            samples += len(rows)
        for number_of, c in enumerate(total / samples):
            z = z_of(solver.directions, tensor(fold(at, "codec")), number_of, model)
            model = {name: t - solver.lr / solver.perturbations * c * z[name] for name, t in model.items()}
    return {name: tensor.detach() for name, tensor in model.items()}


@pytest.mark.parametrize(
    "solver",
    [
        ZerothOrder(0.05, 1, 3),
        ZerothOrder(0.05, 3, 2, directions="gauss", batch=8),
        ZerothOrder(0.05, 2, 2, difference="forward", batch=None),
    ],
    ids=repr,
)
def test_a_run_is_the_loop_of_its_paper(solver: ZerothOrder) -> None:
    found = weights(simulate(seeds(solver), DOUBLE, rounds=3, seed=4, executor="one-by-one"))
    expected = plain(solver, DOUBLE, 3, 4)
    for name, tensor_ in expected.items():
        assert torch.allclose(found[name], tensor_, rtol=0, atol=1e-8)


@pytest.mark.parametrize("method", [decomfl(steps=1), decomfl(steps=2, perturbations=30), fedkseed(steps=3), hiso()])
def test_the_bits_do_not_depend_on_which_tensors_are_drawn_together(
    method: Method, monkeypatch: pytest.MonkeyPatch
) -> None:
    task, runs = tiny_task(), list[Params]()
    for room in (directions.TOGETHER, 20, 0):
        monkeypatch.setattr(directions, "TOGETHER", room)
        runs.append(weights(simulate(method, task, rounds=2, executor="one-by-one")))
    assert all(torch.equal(tensor_, other[name]) for other in runs[1:] for name, tensor_ in runs[0].items())


def test_norms_of_a_batch_are_trained() -> None:
    """They have no running statistics, and refuse a single sample."""
    data = tiny_task().data
    samples = (data.train.x, data.train.y), (data.test.x, data.test.y)
    norm = nn.BatchNorm1d(4, track_running_stats=False)
    task = Task.of(lambda: nn.Sequential(nn.Linear(6, 4), norm, nn.Linear(4, 3)), *samples, clients=3)
    (record,) = simulate(decomfl(steps=1), task, rounds=1).metrics
    assert not record["failures"]
    assert record["flops"] > 0


def dropout_task() -> Task:
    data = tiny_task(dtype=torch.float64).data

    def network() -> nn.Module:
        layers = nn.Linear(6, 8), nn.Tanh(), nn.Dropout(0.3), nn.GroupNorm(2, 8), nn.Linear(8, 3)
        return nn.Sequential(*layers).double()

    return Task.of(network, (data.train.x, data.train.y), (data.test.x, data.test.y), clients=5, split="dirichlet:1")


@pytest.mark.parametrize(("codec", "kind"), [("seeds", "gauss"), ("dense", "rademacher")])
def test_stacked_clients_compute_what_single_clients_do(codec: str, kind: DirectionKind) -> None:
    solver = ZerothOrder(0.05, 2, 3, directions=kind, batch=8)
    method = seeds(solver) if codec == "seeds" else compose(Full(), solver, Dense())
    one, other = (
        simulate(method, dropout_task(), rounds=2, executor=executor) for executor in ("one-by-one", "stacked")
    )
    for name, tensor_ in weights(one).items():
        assert torch.allclose(tensor_, weights(other)[name], rtol=0, atol=1e-9)
    assert one.metrics[-1]["train_loss"] == pytest.approx(other.metrics[-1]["train_loss"], abs=1e-9)


def test_uploads_are_scalars_and_flops_are_forward_passes() -> None:
    task, solver = tiny_task(), ZerothOrder(0.05, 2, 3, batch=8)
    record = simulate(seeds(solver), task, rounds=1).metrics[0]
    assert record["bytes_up"]["codec.scalars"] == task.clients * 4 * 6
    seen = sum(len(batch) for c in range(task.clients) for batch in solver.plan(len(task.split.train(c)), key(0)))
    assert record["flops"] == 2 * (6 * 8 + 8 * 3) * 6 * seen


def test_one_step_makes_no_copy_of_the_weights() -> None:
    bound = seeds(ZerothOrder(0.05, 1, 2)).bind(Objective(tiny_task(), "cpu", key(0)))
    start = bound.training.solver.layout.flatten(bound.training.context.network.initial())
    assert bound.training.solver.begin(start, {}, {}, 1)["params"] is start
    moving = seeds(ZerothOrder(0.05, 2, 2)).bind(Objective(tiny_task(), "cpu", key(0)))
    assert moving.training.solver.begin(start, {}, {}, 2)["params"].data_ptr() != start.data_ptr()


@pytest.mark.parametrize(
    ("payload", "text"),
    [
        ({}, "expected 2 float32 values named 'scalars'"),
        ({"scalars": torch.zeros(3)}, "got 3 float32"),
        ({"scalars": torch.zeros(2, dtype=torch.float64)}, "got 2 float64"),
        ({"scalars": torch.tensor([0.0, torch.nan])}, "not finite"),
        ({"scalars": torch.full((2,), 3e38)}, "not finite"),
    ],
)
def test_untrusted_scalars_are_refused(payload: dict[str, Tensor], text: str) -> None:
    bound = seeds(ZerothOrder(10.0, 1, 2)).bind(Objective(tiny_task(), "cpu", key(0))).training
    layout = Objective(tiny_task(), "cpu", key(0)).layout
    with pytest.raises(PayloadError, match=text):
        bound.codec.decode(payload, Coding(layout, key(1)))


def test_attacks_on_updates_are_refused() -> None:
    with pytest.raises(ConfigError, match="sends scalars of the solver"):
        simulate(seeds(ZerothOrder()), tiny_task(), rounds=1, attack=ATTACKS["sign-flip"](0.4))


def test_clients_that_were_away_replay_the_scalars_that_they_missed() -> None:
    given: dict[str, Any] = {"steps": 2, "perturbations": 3}
    delta, dense = (
        simulate(method, tiny_task(), rounds=6, per_round=2, seed=3)
        for method in (decomfl(**given), decomfl(**given).with_parts(down=Dense()))
    )
    assert all(torch.equal(tensor_, weights(dense)[name]) for name, tensor_ in weights(delta).items())
    for number, record in enumerate(delta.metrics):
        assert not record["failures"]
        # At most the sum of each earlier round, with its weight and the numbers around it, for two clients.
        assert sum(record["bytes_down"].values()) <= 2 * (150 + number * (6 * 4 + 40))
