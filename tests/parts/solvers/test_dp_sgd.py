"""DP-SGD: gradients of samples against a loop, exact Poisson sampling, bounded contributions, the noise, refusals."""

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from gossamer import DPSGD, METHODS, SGD, ConfigError, Method, Options, RunError, Task, fedavg, simulate
from gossamer.core import tree
from gossamer.core.exchange import GLOBAL
from gossamer.core.privacy import Guarantee, Participation
from gossamer.core.random import key, tensor
from gossamer.core.random.normal import normal, system_normal
from gossamer.core.types import Params
from gossamer.engines.client import BatchSchedule, ClientTask
from gossamer.engines.run import Stage
from gossamer.engines.simulation import Simulation
from gossamer.tasks.memory import client_memory
from gossamer.tasks.nets import build
from gossamer.tasks.objective import Objective
from gossamer.tasks.operations import FlopCounter
from gossamer.tasks.random_layers import Numbers
from gossamer.testing import tiny_task
from helpers.random_nets import RANDOM_NETS

DOUBLE = torch.float64


def drawn(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(*shape, dtype=DOUBLE, generator=torch.Generator().manual_seed(seed))


def task_of(model: Callable[[], nn.Module], x: Any, y: Tensor, clients: int = 2) -> Task:
    return Task.of(lambda: model().double(), (x, y), (x, y), clients=clients)


class Grouped(nn.Sequential):
    """Convolutions with group norm."""

    def __init__(self) -> None:
        super().__init__(nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(), nn.Flatten(), nn.Linear(16, 3))


class Tokens(nn.Module):
    """Scores of five classes for every token."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.output = nn.Embedding(5, 4), nn.Linear(4, 5)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.output(torch.tanh(self.embedding(x)).cumsum(1))
        return scores


class Two(nn.Module):
    """A network with two inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(3, 3), nn.Linear(2, 3)

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        scores: Tensor = self.left(a) * self.right(b)
        return scores


CLASSES = torch.arange(12) % 3
TOKENS = torch.randint(5, (12, 4), generator=torch.Generator().manual_seed(3))
TASKS: dict[str, Callable[[], Task]] = {
    "convolutions": lambda: task_of(Grouped, drawn(12, 1, 4, 4), CLASSES),
    "tokens": lambda: task_of(Tokens, TOKENS, TOKENS.roll(1, 1).where(TOKENS != 2, torch.tensor(-100))),
    "two inputs": lambda: task_of(Two, {"a": drawn(12, 3), "b": drawn(12, 2, seed=2)}, CLASSES),
    "recurrent": lambda: task_of(lambda: build("lstm", (4,), 5), TOKENS, CLASSES),
    "dropout": lambda: task_of(RANDOM_NETS["dense"], drawn(12, 6), CLASSES),
}


def objective_of(task: Task) -> Objective:
    found = Objective(task, "cpu", key(0))
    found.check_per_sample()
    found.train_mode(alone=True)
    return found


@pytest.mark.parametrize("name", TASKS)
def test_gradients_of_samples_are_those_of_batches_of_one(name: str) -> None:
    objective = objective_of(TASKS[name]())
    params = {**objective.initial(), **objective.local()}
    step = torch.tensor(3)
    numbers = Numbers(tensor(key(5)), step) if objective.random.layers else None
    x, y = objective.samples.read(torch.arange(12))
    losses, grads, changed = objective.sample_gradients(params, x, y, numbers=numbers)
    assert not changed
    for i in range(12):
        own = None if numbers is None else Numbers(tensor(key(5)), step + (i << 32))
        loss, slow, _ = objective.gradient(params, *objective.samples.read(torch.tensor([i])), numbers=own)
        torch.testing.assert_close(losses[i], loss, rtol=0, atol=1e-12)
        for each in objective.trained:
            torch.testing.assert_close(grads[each][i], slow[each], rtol=0, atol=1e-12, msg=each)


def test_samples_of_a_batch_have_masks_of_their_own_in_random_layers() -> None:
    task = task_of(RANDOM_NETS["dense"], torch.ones(12, 6, dtype=DOUBLE), torch.zeros(12, dtype=torch.int64))
    objective = objective_of(task)
    numbers = Numbers(tensor(key(5)), torch.tensor(0))
    losses, _, _ = objective.sample_gradients(
        objective.initial(), *objective.samples.read(torch.arange(12)), None, numbers
    )
    assert len(set(losses.tolist())) > 6


def test_gradients_of_samples_take_the_operations_of_a_batch() -> None:
    """Of linear layers: torch's counter ignores groups in the backward pass of convolutions, which count as more."""
    objective = objective_of(tiny_task(clients=1))
    x, y = objective.samples.read(torch.arange(12))
    counts = []
    for compute in (objective.gradient, objective.sample_gradients):
        with FlopCounter() as counter:
            compute(objective.initial(), x, y)
        counts.append(counter.get_total_flops())
    assert counts[0] == counts[1] > 0


# Sampling


@given(samples=st.integers(1, 200), batch=st.integers(1, 40), seed=st.integers(0, 9))
@settings(max_examples=50, deadline=None)
def test_every_drawn_sample_has_a_row(samples: int, batch: int, seed: int) -> None:
    solver = DPSGD(steps=3, batch=batch)
    rows = solver.rows(samples)
    for each in solver.draw(samples, key(seed)):
        assert len(set(each.rows.tolist())) == len(each.rows) <= samples
        assert each.drawn <= len(each.rows)
        assert len(each.rows) == samples or len(each.rows) % rows == 0
        if batch >= samples:
            assert each.drawn == samples


def test_samples_are_drawn_independently_with_one_probability() -> None:
    samples, batch, steps = 40, 10, 4000
    plan = DPSGD(steps=steps, batch=batch).draw(samples, key(2))
    taken = np.zeros((steps, samples))
    for row, each in zip(taken, plan, strict=True):
        row[each.rows[: each.drawn]] = 1
    sizes = taken.sum(1)
    bound = 5 * math.sqrt(0.25 * 0.75 / steps)
    assert np.abs(taken.mean(0) - 0.25).max() < bound
    assert abs(sizes.var() - samples * 0.25 * 0.75) < 5 * math.sqrt(2 / steps) * sizes.var()
    pairs = np.cov(taken.T) / (0.25 * 0.75)
    assert np.abs(pairs - np.eye(samples)).max() < 6 / math.sqrt(steps)
    after = ((taken[1:] - 0.25) * (taken[:-1] - 0.25)).mean() / (0.25 * 0.75)
    assert abs(after) < 5 / math.sqrt(steps * samples)


def test_a_small_rate_gives_empty_batches_which_only_add_noise() -> None:
    solver = DPSGD(steps=20, batch=1, lr=1.0, noise_multiplier=0.0)
    assert any(each.drawn == 0 for each in solver.draw(30, key(1)))
    result = simulate(fedavg().with_parts(solver=solver), tiny_task(), rounds=1)
    assert math.isfinite(result.metrics[-1]["train_loss"])


# Clipping


@given(st.lists(st.floats(-1e6, 1e6), min_size=4, max_size=4), st.floats(1e-3, 1e3))
def test_a_gradient_is_shortened_to_the_bound_and_keeps_its_direction(values: list[float], clip: float) -> None:
    grads = torch.tensor(values, dtype=DOUBLE)
    bounded, size = grads * DPSGD(clip=clip).weight(grads), float(grads.norm())
    assert float(bounded.norm()) <= clip * (1 + 1e-12)
    factor = min(1.0, clip / size) if size else 1.0
    torch.testing.assert_close(bounded, grads * factor, rtol=1e-12, atol=0)


class Cubic(nn.Linear):
    """Scores of the third power, which may exceed the largest number."""

    def __init__(self) -> None:
        super().__init__(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x**3)


@pytest.mark.parametrize("far", [1e90, 1e300])
def test_a_sample_whose_gradient_is_not_finite_spoils_no_sum(far: float) -> None:
    x = drawn(12, 6)
    x[3] = far
    _, _, change = trained(DPSGD(lr=1.0, steps=1, batch=None, noise_multiplier=0.0), task_of(Cubic, x, CLASSES, 1))
    assert 0 < float(tree.norm(change)) <= 1


# One step


def last(method: Method, task: Task, **more: Any) -> dict[str, Tensor]:
    state: dict[str, Tensor] = simulate(method, task, rounds=1, executor="one-by-one", **more).model.state_dict()
    return state


def test_without_noise_and_bound_it_is_sgd_on_the_same_batches() -> None:
    task = tiny_task(dtype=DOUBLE)
    common: dict[str, Any] = {
        "lr": 0.3,
        "epochs": 3,
        "batch": None,
        "momentum": 0.9,
        "weight_decay": 0.1,
        "proximal": 0.2,
    }
    private = last(fedavg().with_parts(solver=DPSGD(clip=1e9, noise_multiplier=0.0, **common)), task)
    for name, value in last(fedavg().with_parts(solver=SGD(**common)), task).items():
        torch.testing.assert_close(private[name], value, rtol=0, atol=1e-12)


def trained(solver: DPSGD, task: Task, client: int = 0, seed: int = 0) -> tuple[Simulation, ClientTask, Params]:
    """The change of a client in a round, with what it did."""
    simulation = Simulation(fedavg().with_parts(solver=solver), task, Options(rounds=1, seed=seed))
    stage = Stage(simulation.method.training, 0, {client: GLOBAL})
    client_task, _ = simulation.client_task(stage, client, {})
    job = simulation.client.read_download(client_task)
    return simulation, client_task, simulation.client.train(client_task, job).change


def test_a_round_is_that_of_a_loop_over_samples() -> None:
    solver = DPSGD(lr=0.5, steps=6, batch=5, clip=0.4, noise_multiplier=0.0)
    simulation, client_task, change = trained(solver, tiny_task(dtype=DOUBLE))
    objective = simulation.objective
    batches = BatchSchedule(simulation.client, client_task)
    start = objective.initial()
    params, counts = dict(start), batches.counts or []
    assert len(set(counts)) > 1
    for rows, count in zip(batches.rows, counts, strict=True):
        total = {name: torch.zeros_like(value) for name, value in start.items()}
        for row in rows[:count]:
            _, grads, _ = objective.gradient(params, *objective.samples.read(torch.tensor([row])))
            size = math.sqrt(sum(float(grad.square().sum()) for grad in grads.values()))
            total = {name: total[name] + grad * min(1.0, 0.4 / size) for name, grad in grads.items()}
        params = {name: value - 0.5 * total[name] / 5 for name, value in params.items()}
    for name, value in params.items():
        torch.testing.assert_close(start[name] + change[name], value, rtol=0, atol=1e-12)


def test_one_sample_moves_the_sum_of_a_step_by_at_most_the_bound() -> None:
    """Two clients differ by one sample of a full batch, with a large gradient: lr 1, so the change is the gradient."""
    task, solver = (
        tiny_task(clients=1, dtype=DOUBLE),
        DPSGD(lr=1.0, steps=1, batch=None, clip=0.7, noise_multiplier=0.0),
    )
    x, y = task.data.train.x, task.data.train.y
    assert isinstance(x, Tensor)
    for index in range(5):
        far = x.clone()
        far[index] *= 1e4
        changes = []
        for samples in (far, torch.cat((far[:index], far[index + 1 :]))):
            own = y if len(samples) == len(y) else torch.cat((y[:index], y[index + 1 :]))
            _, _, change = trained(solver, Task.of(task.model, (samples, own), (x, y), clients=1))
            changes.append({name: value * len(samples) for name, value in change.items()})
        assert 0.69 < float(tree.norm(tree.subtract(*changes))) <= 0.7 + 1e-9


def noise(client: int, seed: int, steps: int, task: Task) -> Params:
    """The noise of a client's round, in standard deviations."""
    with_noise, without = (
        trained(DPSGD(lr=1.0, steps=steps, batch=None, clip=1e-9, noise_multiplier=z), task, client, seed)[2]
        for z in (1e9, 0.0)
    )
    samples = int(task.split.sizes()[client])
    return {name: (value - without[name]) * samples for name, value in with_noise.items()}


def test_noise_has_the_stated_deviation_and_differs_by_step_client_and_seed() -> None:
    generator = torch.Generator().manual_seed(1)
    x, y = torch.randn(40, 60, generator=generator, dtype=DOUBLE), torch.arange(40) % 2
    task = task_of(lambda: nn.Linear(60, 100), x, y, clients=2)
    flat = {
        name: torch.cat([value.flatten() for value in noise(*given, task).values()])
        for name, given in {"": (0, 0, 1), "client": (1, 0, 1), "seed": (0, 1, 1), "steps": (0, 0, 2)}.items()
    }
    n, once = len(flat[""]), flat[""]
    assert abs(once.std() - 1) < 5 / math.sqrt(2 * n)
    assert abs(once.mean()) < 5 / math.sqrt(n)
    assert abs(once.pow(4).mean() - 3) < 5 * math.sqrt(96 / n)
    second = flat["steps"] - once  # the noise of the second step: that of the first is the same
    assert abs(second.std() - 1) < 5 / math.sqrt(2 * n)
    for other in (flat["client"], flat["seed"], second):
        assert abs((once * other).mean()) < 5 / math.sqrt(n)


@pytest.mark.parametrize("dtype", [torch.float32, DOUBLE])
@pytest.mark.parametrize("system", [False, True])
def test_normal_numbers_are_normal(dtype: torch.dtype, system: bool) -> None:
    n = 103_003
    found = system_normal(n, torch.device("cpu")) if system else normal(tensor(key(3)), torch.tensor(0), n, dtype)
    assert (len(found), found.dtype) == (n, DOUBLE if system else dtype)
    values = found.double().sort().values
    exact = torch.special.ndtr(values)
    steps = torch.arange(n, dtype=DOUBLE)
    distance = max(float((exact - steps / n).max()), float(((steps + 1) / n - exact).max()))
    assert distance * math.sqrt(n) < 2.2  # Kolmogorov: exceeded once in 10,000 runs
    assert values.abs().max() < 9.5


def test_secure_noise_is_new_in_every_run_and_asks_for_executors_without_recording() -> None:
    task = tiny_task()
    secure = fedavg().with_parts(solver=DPSGD(steps=2))
    first, second = (last(secure, task, secure_noise=True) for _ in range(2))
    assert not torch.equal(first["0.weight"], second["0.weight"])
    for executor in ("stacked", "compiled"):
        with pytest.raises(ConfigError, match=r"operating system's generator.*one-by-one"):
            simulate(secure, task, rounds=1, executor=executor, secure_noise=True)


def test_batches_follow_from_the_key_only_if_noise_does() -> None:
    """Amplification by sampling counts on nobody knowing a batch, so it has the same source as the noise."""
    plain, secure = (DPSGD(steps=4, batch=30).filled(secure_noise=secure) for secure in (False, True))
    assert not plain.eager
    assert secure.eager
    for solver, same in ((plain, True), (secure, False)):
        first, second = ([each.rows[: each.drawn].tolist() for each in solver.draw(200, key(1))] for _ in range(2))
        assert (first == second) == same
    sizes = [drawn.drawn for _ in range(200) for drawn in secure.draw(200, key(1))]
    assert np.mean(sizes) == pytest.approx(30, abs=4 * math.sqrt(30 * 0.85 / len(sizes)))
    assert np.var(sizes) == pytest.approx(30 * 0.85, rel=0.2)


def test_the_least_work_of_a_client_does_not_depend_on_batches_that_are_drawn_twice() -> None:
    """A schedule asks for it before training, whose batches are others if they come from the operating system."""
    method = fedavg().with_parts(solver=DPSGD(steps=5, batch=2))
    simulation = Simulation(method, tiny_task(), Options(rounds=1, secure_noise=True))
    client_task, _ = simulation.client_task(Stage(simulation.method.training, 0, {0: GLOBAL}), 0, {})
    job = simulation.client.read_download(client_task)
    least = {simulation.client.least_flops(client_task).done for _ in range(20)}
    spent = [BatchSchedule(simulation.client, client_task).flops(job).done for _ in range(20)]
    assert len(least) == 1
    assert least.pop() <= min(spent)


# Refusals


class Remembering(nn.Linear):
    """A layer that keeps the mean of its inputs."""

    def __init__(self) -> None:
        super().__init__(6, 3)
        self.mean: Tensor
        self.register_buffer("mean", torch.zeros(6))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.mean.copy_(x.detach().mean(0))
        return super().forward(x)


REFUSED: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "batch norm": (lambda: nn.Sequential(nn.Linear(6, 3), nn.BatchNorm1d(3)), "layer 1 is a BatchNorm.*GroupNorm"),
    "static norm": (
        lambda: nn.Sequential(nn.Linear(6, 3), nn.BatchNorm1d(3, track_running_stats=False)),
        "layer 1 is a BatchNorm.*GroupNorm",
    ),
    "buffer": (Remembering, "the buffer mean from the samples"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_networks_that_mix_or_keep_samples_are_refused(name: str) -> None:
    model, reason = REFUSED[name]
    with pytest.raises(ConfigError, match=reason):
        simulate(fedavg().with_parts(solver=DPSGD()), task_of(model, drawn(12, 6), CLASSES), rounds=1)


def test_losses_that_depend_on_the_labels_of_other_samples_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"DPSGD does not support labels own.*--labels all"):
        simulate(METHODS["heterofl"]().with_parts(solver=DPSGD()), tiny_task(), rounds=1)


@pytest.mark.parametrize(("name", "reason"), [("ifca", "by the loss"), ("fedspa", "by a gradient")])
def test_methods_that_read_samples_outside_of_the_steps_are_refused(name: str, reason: str) -> None:
    quiet = DPSGD(steps=2, noise_multiplier=0.0)  # with noise, the run makes a statement, and is refused before
    with pytest.raises(RunError, match=f"{reason} of a client's samples, which DPSGD does not protect"):
        simulate(METHODS[name]().with_parts(solver=quiet), tiny_task(), rounds=1, executor="one-by-one")


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"clip": None}, "DPSGD.clip must be a number"),
        ({"clip": 0.0}, "DPSGD.clip must be a positive number"),
        ({"noise_multiplier": -1.0}, "DPSGD.noise_multiplier must not be negative"),
        ({"lr": 0.0}, "DPSGD.lr must be a positive number"),
    ],
)
def test_wrong_fields_are_refused(fields: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        DPSGD(**fields)


# Memory and the guarantee


def test_memory_counts_a_gradient_per_row() -> None:
    objective = objective_of(TASKS["convolutions"]())
    params, solver = objective.initial(), DPSGD(batch=4)
    model = sum(params[name].nbytes for name in objective.trained)
    rows = solver.rows(10**6)
    plain = client_memory(objective, params, rows, copies=1)
    assert rows == 8
    assert objective.memory(params, solver) == plain.total + rows * model


@dataclass(frozen=True)
class Size(Guarantee):
    """A stand-in whose epsilon is known."""

    value: float = 0.0

    def epsilon(self, rounds: int, delta: float, again: int = 0) -> float:
        return self.value


def test_the_guarantee_is_that_of_the_most_exposed_client(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def dp_sgd(noise_multiplier: float, batch: int, participation: Participation, *, steps: int) -> Size:
        calls.append((noise_multiplier, batch, participation.samples, steps))
        return Size("example", "add-remove", "", "", "", float(steps) if len(calls) == 2 else 0.0)

    monkeypatch.setitem(sys.modules, "gossamer.parts.privacy", SimpleNamespace())
    monkeypatch.setitem(sys.modules, "gossamer.parts.privacy.accounting", SimpleNamespace(dp_sgd=dp_sgd))
    who = Participation(10, 5, "fixed", 100, samples=20)
    found = DPSGD(epochs=2, batch=16, noise_multiplier=0.8).guarantee(who)
    assert calls == [(0.8, 16, 20, 4), (0.8, 16, 33, 6), (0.8, 16, 49, 8), (0.8, 16, 65, 10)]
    assert found.unit == "example"
    assert found.epsilon(100, 1e-5) == 6.0
    calls.clear()
    DPSGD(steps=7, batch=16).guarantee(who)
    DPSGD(epochs=3, batch=None).guarantee(who)
    assert calls == [(1.0, 16, 20, 7), (1.0, 20, 20, 3)]
    with pytest.raises(ConfigError, match=r"DPSGD.noise_multiplier must be positive"):
        DPSGD(noise_multiplier=0.0).guarantee(who)


def test_one_step_more_may_cost_more_than_more_samples_gain() -> None:
    """The fewest samples are not the most exposed: 17 samples take two steps at rate 16/17, 16 samples one step."""
    pytest.importorskip("dp_accounting")
    pytest.importorskip("gossamer.parts.privacy.accounting")
    who, fewest = Participation(10, 10, "all", 10, samples=16), DPSGD(steps=1, batch=16)
    assert DPSGD(epochs=1, batch=16).guarantee(who).epsilon(10, 1e-5) > fewest.guarantee(who).epsilon(10, 1e-5) + 5
