"""Personalized models from the global one: fine-tuned, meta-learned (Per-FedAvg), or kept near it (pFedMe)."""

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from gossamer import (
    SGD,
    Average,
    Bernoulli,
    Clock,
    Ditto,
    Exponential,
    MaskedNoise,
    Mean,
    Method,
    OnWeights,
    Options,
    Part,
    PerFedAvg,
    PersonalMask,
    PFedMe,
    Split,
    Supermask,
    Task,
    ditto,
    fedavg,
    fedavg_tuned,
    local,
    per_fedavg,
    pfedme,
    simulate,
)
from gossamer.core.errors import ConfigError
from gossamer.core.exchange import GLOBAL, Arrival
from gossamer.core.jobs import SILENT, own_key
from gossamer.core.random import Key, fold, key
from gossamer.core.types import Params
from gossamer.engines.client import ClientResult, ClientTask
from gossamer.engines.export import TENSORS, export, stand
from gossamer.engines.metrics import Ledger
from gossamer.engines.simulation import Simulation
from gossamer.parts.solvers import Descent
from gossamer.parts.views import View
from gossamer.tasks.memory import solver_copies
from gossamer.testing import check_server, check_solver, tiny_task
from helpers.compare import assert_close, same
from helpers.gradients import Given
from helpers.narrow import present
from helpers.tasks import batch_norm_task, floats

FIELDS: dict[str, Any] = {"momentum": 0.5, "weight_decay": 0.1, "clip": 0.5, "schedule": Exponential(0.8)}
AHEAD = {
    "plain": PerFedAvg(lr=0.3, epochs=1, batch=8, inner=0.2),
    "everything": PerFedAvg(0.3, 1, None, 8, **FIELDS, inner=0.2),
    "steps": PerFedAvg(lr=0.3, steps=4, batch=8, inner=0.5),
}
NEAR = {
    "plain": PFedMe(lr=0.05, epochs=1, steps=None, batch=8, personal_lr=0.1, inner_steps=3, lam=4),
    "everything": PFedMe(0.05, 1, None, 8, **FIELDS, personal_lr=0.1, inner_steps=3, lam=4),
    "steps": PFedMe(lr=0.02, steps=4, batch=8, inner_steps=2),
}
RECIPES = {"fedavg-tuned": fedavg_tuned(tune_epochs=2), "per-fedavg": per_fedavg(), "pfedme": pfedme(steps=4, batch=7)}
QUADRATIC = torch.tensor([2.0], dtype=torch.float64)
FIGURES = ("accuracy", "personal_accuracy", "worst_tenth_accuracy", "bytes_up", "bytes_down", "flops")


def run(method: Method, task: Task, **options: Any) -> Simulation:
    simulation = Simulation(method, task, Options(**{"rounds": 3, "per_round": 2, **options}))
    result = simulation.run(None, lambda record: None)
    assert not any(record["failures"] for record in result.metrics)
    return simulation


# The algorithms, against slow versions: whole modules, one client after the other, PyTorch's own optimiser.

Batch = tuple[Tensor, Tensor]
Slow = Callable[[Any, nn.Module, list[Batch], float], nn.Module]
"""Trains a module as a solver does, with a factor for learning rates, and returns the personalized model."""


def batches(simulation: Simulation, solver: SGD, at: Key, client: int) -> list[Batch]:
    """What SGD would get with these numbers."""
    index, data = simulation.task.split.train(client), simulation.task.data.train
    plan = solver.plan(len(index), fold(own_key(at, Clock(0, 1, client)), "batches"))
    return [(data.x[index[rows]], data.y[index[rows]]) for rows in plan]


def gradient(module: nn.Module, batch: Batch) -> list[Tensor]:
    module.train()
    loss = nn.functional.cross_entropy(module(batch[0]), batch[1])
    return list(torch.autograd.grad(loss, list(module.parameters())))


def optimiser(solver: Descent, module: nn.Module, lr: float) -> Callable[[list[Tensor]], None]:
    """PyTorch's SGD, with gradients that are found elsewhere."""
    found = torch.optim.SGD(module.parameters(), lr, solver.momentum, weight_decay=solver.weight_decay)

    def step(gradients: list[Tensor]) -> None:
        for parameter, grad in zip(module.parameters(), gradients, strict=True):
            parameter.grad = grad
        if solver.clip is not None:
            nn.utils.clip_grad_norm_(module.parameters(), solver.clip)
        found.step()

    return step


def move(module: nn.Module, by: float, along: list[Tensor]) -> None:
    with torch.no_grad():
        for parameter, way in zip(module.parameters(), along, strict=True):
            parameter.add_(by * way)


def gap(a: nn.Module, b: nn.Module) -> list[Tensor]:
    return [(p - q).detach() for p, q in zip(a.parameters(), b.parameters(), strict=True)]


def lend(statistics: nn.Module, to: nn.Module) -> None:
    for name, buffer in statistics.named_buffers():
        to.get_buffer(name).copy_(buffer)


def slow_ahead(solver: PerFedAvg, model: nn.Module, given: list[Batch], factor: float) -> nn.Module:
    """A copy looks ahead on one batch, and finds there the gradient of the next."""
    step = optimiser(solver, model, solver.lr * factor)
    for first, second in zip(given[::2], given[1::2], strict=True):
        ahead = copy.deepcopy(model)
        move(ahead, -solver.inner, gradient(ahead, first))
        step(gradient(ahead, second))
        lend(ahead, model)
    return model


def slow_near(solver: PFedMe, model: nn.Module, given: list[Batch], factor: float) -> nn.Module:
    """The client's own model goes some steps on a batch, then the other follows."""
    mine = copy.deepcopy(model)
    step = optimiser(solver, mine, solver.personal_lr * factor)
    for batch in given:
        for _ in range(solver.inner_steps):
            pull = gap(mine, model)
            step([grad + solver.lam * way for grad, way in zip(gradient(mine, batch), pull, strict=True)])
        move(model, solver.lr * factor * solver.lam, gap(mine, model))
        lend(mine, model)
    return mine


def slow_round(
    simulation: Simulation, train: Slow, number: int, model: nn.Module, mine: dict[int, nn.Module], steps: SGD
) -> None:
    """All clients of the cohort train a copy, and the mean of their changes is added."""
    solver, cohort, before = simulation.method.training.solver, simulation.cohort(number, Ledger()), floats(model)
    sums = {name: torch.zeros_like(tensor) for name, tensor in before.items()}
    for client in cohort:
        theirs = copy.deepcopy(model)
        given = batches(simulation, steps, simulation.round_key(number), client)
        mine[client] = train(solver, theirs, given, solver.schedule.factor(number, 3))  # type: ignore[attr-defined]
        for name, tensor in floats(theirs).items():
            sums[name] += (tensor - before[name]) / len(cohort)
    model.load_state_dict({name: tensor + sums[name] for name, tensor in before.items()}, strict=False)


@pytest.mark.parametrize("name", AHEAD)
def test_per_fedavg_follows_the_algorithm(name: str) -> None:
    """Of 20 samples in batches of 8 an epoch has 3: so 4 are taken, of which the last is of another epoch."""
    solver, task = AHEAD[name], batch_norm_task()
    simulation = Simulation(per_fedavg().with_parts(solver=solver), task, Options(rounds=3, per_round=2))
    model = simulation.objective.build()
    for number in range(3):
        simulation.round(number, None)
        slow_round(simulation, slow_ahead, number, model, {}, SGD(steps=8 if name == "steps" else 4, batch=8))
        assert_close(floats(model), simulation.model(), atol=1e-12)


@pytest.mark.parametrize("name", NEAR)
def test_pfedme_follows_the_algorithm(name: str) -> None:
    solver, task = NEAR[name], batch_norm_task()
    simulation = Simulation(pfedme().with_parts(solver=solver), task, Options(rounds=3, per_round=2))
    model, mine = simulation.objective.build(), dict[int, nn.Module]()
    for number in range(3):
        simulation.round(number, None)
        slow_round(simulation, slow_near, number, model, mine, SGD(epochs=1, steps=solver.steps, batch=8))
        assert_close(floats(model), simulation.model(), atol=1e-12)
        for client in range(4):
            assert_close(floats(mine.get(client, model)), simulation.client_params(client), atol=1e-12)
    assert 2 < len(mine) < 4, "somebody is new in a later round, somebody never takes part and deploys the global model"


def descend(solver: Descent, batches: int, loss: float = 1.0) -> dict[str, Any]:
    """Batches of the loss ``loss w**2 / 2`` in one dimension, starting at 2."""
    carry = solver.begin(QUADRATIC, {}, {}, batches)
    for _ in range(batches):
        carry = solver.step(Given(lambda at: (loss * at, at)), QUADRATIC, carry, solver.hyperparams(Clock(0, 1, 0)))
    return carry


def test_per_fedavg_takes_the_gradient_ahead_and_applies_it_here() -> None:
    solver = PerFedAvg(lr=0.5, inner=0.25)
    assert descend(solver, 1)["params"].item() == 2, "a look ahead moves nothing"
    assert descend(solver, 2)["params"].item() == 2 - 0.5 * (2 - 0.25 * 2)
    assert descend(solver, 20)["params"].item() == pytest.approx(2 * (1 - 0.5 * 0.75) ** 10, rel=1e-12)


def test_pfedme_settles_where_pull_and_gradient_balance() -> None:
    """With many inner steps v is lam w / (lam + 1), the proximal point, and w goes lr lam of the way there."""
    solver = PFedMe(lr=0.1, personal_lr=0.2, inner_steps=200, lam=3)
    carry = descend(solver, 200)
    near = 3 * 2 / 4
    assert carry["personal"].item() == pytest.approx(near, rel=1e-12)
    assert carry["params"].item() == pytest.approx(2 - 0.1 * 3 * (2 - near), rel=1e-12)
    then = descend(solver, 400)
    assert then["personal"].item() == pytest.approx(carry["params"].item() * 3 / 4, rel=1e-12)


def test_they_keep_the_contract_of_solvers() -> None:
    for solver in (*AHEAD.values(), *NEAR.values(), PerFedAvg(batch=None), PFedMe(inner_steps=1)):
        check_solver(solver)


def test_each_step_of_per_fedavg_has_two_batches() -> None:
    for epochs, steps, wanted in ((1, None, 4), (2, None, 6), (5, None, 16), (5, 3, 6)):
        plan = PerFedAvg(epochs=epochs, steps=steps, batch=7).plan(20, key(1))
        assert len(plan) == wanted
        same = SGD(steps=wanted, batch=7).plan(20, key(1))
        assert all(np.array_equal(a, b) for a, b in zip(plan, same, strict=True))
    assert sorted(np.concatenate(PerFedAvg(epochs=1, batch=7).plan(20, key(1))[:3]).tolist()) == list(range(20))


def test_each_batch_of_pfedme_comes_several_times_in_a_row() -> None:
    plan, once = PFedMe(steps=4, batch=7, inner_steps=3).plan(20, key(1)), SGD(steps=4, batch=7).plan(20, key(1))
    assert len(plan) == 12
    assert all(np.array_equal(batch, once[number // 3]) for number, batch in enumerate(plan))


# Limits.


@dataclass(frozen=True)
class Second(SGD):
    """SGD on every second batch."""

    def plan(self, samples: int, key: Key) -> list[np.ndarray]:
        return PerFedAvg(epochs=self.epochs, batch=self.batch).plan(samples, key)[1::2]


def test_without_a_look_ahead_per_fedavg_is_federated_averaging_to_the_bit() -> None:
    task, made = tiny_task(), per_fedavg(lr=0.2, epochs=2, batch=8, inner=0)
    ours, theirs = (run(m, task) for m in (made, fedavg().with_parts(solver=Second(lr=0.2, epochs=2, batch=8))))
    assert same(ours.model(), theirs.model())
    assert all(same(ours.client_params(client), ours.model()) for client in range(task.clients))
    for record, other in zip(ours.metrics, theirs.metrics, strict=True):
        assert all(record[name] == other[name] for name in ("accuracy", "personal_accuracy", "bytes_up", "bytes_down"))


def test_a_strong_pull_pins_the_personal_model_and_makes_it_federated_averaging() -> None:
    """As lam grows, v approaches w minus 1 / lam times the gradient, and w then follows the gradient."""
    task = tiny_task(dtype=torch.float64)
    wanted = run(fedavg(lr=0.1, steps=5, batch=8), task)
    for lam in (1e3, 1e5):
        solver = PFedMe(lr=0.1, steps=5, batch=8, personal_lr=1 / lam, inner_steps=4, lam=lam)
        assert_close(run(pfedme().with_parts(solver=solver), task).model(), wanted.model(), atol=1 / lam)
        alone = descend(solver, 4)
        assert 2 - alone["personal"].item() == pytest.approx(2 / (lam + 1), rel=1e-9)


# Tuning.


def tuned_slowly(simulation: Simulation, client: int, number: int, solver: SGD) -> Params:
    """The global model, trained as local training would, with a key of the round's own."""
    module, at = simulation.module(), fold(simulation.round_key(number), "tune")
    step = optimiser(solver, module, solver.lr)
    for batch in batches(simulation, solver, at, client):
        step(gradient(module, batch))
    return floats(module)


TUNES = [SGD(0.2, 2, batch=8), SGD(0.3, steps=1, batch=8), SGD(0.1, 1, None, None, momentum=0.9, clip=0.2)]


@pytest.mark.parametrize("tune", TUNES, ids=["epochs", "a step", "all at once"])
def test_a_client_deploys_the_global_model_tuned_on_its_samples(tune: SGD) -> None:
    simulation = run(fedavg(epochs=1, batch=8).with_parts(tune=tune), batch_norm_task())
    for client in range(4):
        assert_close(tuned_slowly(simulation, client, 2, tune), simulation.client_params(client), atol=1e-12)
    assert not same(simulation.client_params(0), simulation.client_params(1))
    assert same(simulation.client_params(0), simulation.client_params(0)), "asked again it is the same"
    assert not same(simulation.client_params(0), simulation.client_params(0, 1)), "after another round it is another"


def test_tuning_is_local_training_from_the_global_model_to_the_bit() -> None:
    task, tune = tiny_task(), SGD(lr=0.1, epochs=2, batch=4)
    simulation = run(fedavg().with_parts(tune=tune), task)
    alone = Simulation(local().with_parts(solver=tune), task, Options(rounds=3))
    for client in range(task.clients):
        clock, at = simulation.clock(2, client), simulation.round_key(2)
        mine = {"own": simulation.model()}
        done = alone.client.do(ClientTask(clock, fold(at, "tune"), SILENT.data, mine, task.split.train(client)))
        assert isinstance(done.result, ClientResult)
        assert same(done.result.state["own"], simulation.client_params(client))


def test_tuning_leaves_no_trace_but_in_personal_figures() -> None:
    task = tiny_task()
    ours, theirs = run(fedavg_tuned(), task), run(fedavg(), task)
    assert same(ours.model(), theirs.model())
    for record, other in zip(ours.metrics, theirs.metrics, strict=True):
        untouched = ("accuracy", "loss", "train_loss", "bytes_up", "bytes_down", "flops", "useful_flops")
        assert all(record[name] == other[name] for name in untouched)
    assert ours.clients.known() == []
    assert ours.metrics[-1]["personal_accuracy"] != theirs.metrics[-1]["personal_accuracy"]


@pytest.mark.parametrize("name", RECIPES)
def test_evaluation_is_on_what_clients_deploy(name: str) -> None:
    task = tiny_task()
    simulation = Simulation(RECIPES[name], task, Options(rounds=2))
    for number in range(2):
        record = simulation.round(number, None)
        shares, test = [], task.data.test
        for client in range(task.clients):
            mine = torch.from_numpy(task.split.test(client))
            module = simulation.objective.build(simulation.client_params(client)).eval()
            assert not same(floats(module), simulation.model())
            shares.append((module(test.x[mine]).argmax(1) == test.y[mine]).double().mean().item())
        assert record["personal_accuracy"] == pytest.approx(np.mean(shares))
        whole = (simulation.module().eval()(test.x).argmax(1) == test.y).double().mean().item()
        assert record["accuracy"] == pytest.approx(whole)


def test_one_step_is_enough_for_a_model_that_was_trained_for_it() -> None:
    """Clients of two kinds, with labels that contradict each other, so that no model is right for both."""
    x, kind = torch.randn(400, 4, generator=torch.Generator().manual_seed(1)), torch.arange(400) % 2
    y = ((x[:, 0] > 0).long() + kind) % 2
    samples = np.concatenate([np.arange(half, 400, 2) for half in (0, 1)]), np.arange(0, 401, 100)
    task = Task.of(lambda: nn.Linear(4, 2), (x, y), (x, y), clients=4).with_split(Split(*samples, *samples))
    record = run(per_fedavg(lr=0.5, steps=10, batch=50, inner=2.0), task, rounds=5, per_round=4).metrics[-1]
    assert record["accuracy"] < 0.6
    assert record["personal_accuracy"] > 0.9


def test_only_own_labels_are_tuned_where_only_they_are_trained() -> None:
    task = batch_norm_task()
    one = replace(task.data.train, y=torch.zeros_like(task.data.train.y))
    task = replace(task, data=replace(task.data, train=one))
    simulation = run(fedavg_tuned(tune_epochs=1).with_parts(labels="own"), task)
    for client in range(4):
        name = "3.bias"
        moved = simulation.client_params(client)[name] - simulation.model()[name]
        assert moved[0] != 0
        assert moved[1] == 0, "no sample has this label"


def test_a_tuned_model_is_exported(tmp_path: Path) -> None:
    task, method = tiny_task(), RECIPES["fedavg-tuned"]
    result = simulate(method, task, rounds=2, out=tmp_path / "run")
    standing, own_accuracies = stand(tmp_path / "run", method, task), []
    for client in range(task.clients):
        exported = export(standing, tmp_path / str(client), client)
        assert not exported.shared
        assert same(load_file(tmp_path / str(client) / TENSORS), standing.client_params(client))
        own_accuracies.append(present(exported.own_score))
    assert np.mean(own_accuracies) == pytest.approx(result.metrics[-1]["personal_accuracy"])
    shared = export(standing, tmp_path / "all")
    assert shared.shared
    assert shared.score == pytest.approx(result.accuracy)


# Every way to run them.


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*script_method:DeprecationWarning")  # torch's compiler uses what torch deprecates
@pytest.mark.parametrize("executor", ["side-by-side", "stacked", pytest.param("compiled", marks=pytest.mark.slow)])
@pytest.mark.parametrize("solver", [replace(AHEAD["everything"], batch=4), replace(NEAR["everything"], batch=4)])
def test_executors_agree(solver: SGD, executor: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """On clients of unequal size, which are not all in the same phase, nor all for the first time.

    Steps are traced as the compiler does it, but not made into machine code, which would take most of a minute.
    """
    traced = torch._dynamo.lookup_backend("aot_eager")
    monkeypatch.setattr(torch._dynamo, "lookup_backend", lambda name: traced)
    task = replace(tiny_task(dtype=torch.float64), model=lambda: nn.Linear(6, 3).double())
    method = fedavg_tuned().with_parts(solver=solver)
    assert len(set(task.split.sizes().tolist())) > 1
    wanted = run(method, task, per_round=4)
    found = run(method, task, per_round=4, executor=executor)
    atol = 0 if executor == "side-by-side" else 1e-9
    assert_close(found.model(), wanted.model(), atol)
    for client in range(task.clients):
        assert_close(found.client_params(client), wanted.client_params(client), atol)
    for record, other in zip(found.metrics, wanted.metrics, strict=True):
        assert all(record[name] == other[name] for name in ("personal_accuracy", "bytes_up", "flops"))
        assert record["train_loss"] == pytest.approx(other["train_loss"], abs=1e-9)


@pytest.mark.parametrize("name", RECIPES)
def test_deployed_it_is_the_same(name: str, tmp_path: Path) -> None:
    pytest.importorskip("flwr")
    from helpers.flower_runs import agree, deploy, nodes, simulated
    from helpers.local_grid import LocalGrid

    method, task = RECIPES[name], tiny_task(clients=4)
    deployed = deploy(method, task, LocalGrid(nodes(method, task, tmp_path)), rounds=3, per_round=2)
    wanted = simulated(method, task, rounds=3, per_round=2)
    agree(deployed, wanted, tmp_path)
    for record, other in zip(deployed.metrics, wanted.metrics, strict=True):
        assert all(record[name] == other[name] for name in FIGURES)


# What they cost.


def test_work_is_counted_batch_by_batch() -> None:
    task = batch_norm_task()
    plain = run(fedavg(steps=1, batch=10), task).metrics[0]["flops"]
    assert run(per_fedavg(steps=3, batch=10), task).metrics[0]["flops"] == 6 * plain
    assert run(pfedme(steps=3, inner_steps=4, batch=10), task).metrics[0]["flops"] == 12 * plain


def test_memory_counts_the_second_model() -> None:
    assert solver_copies(PerFedAvg(), {"w": torch.zeros(100)}, "w") == 1
    assert solver_copies(PFedMe(), {"w": torch.zeros(100)}, "w") == 1


def test_what_is_remembered_is_the_personal_model_and_no_more() -> None:
    simulation = run(pfedme(steps=2), batch_norm_task(), executor="stacked")
    assert simulation.clients.known()
    for client in simulation.clients.known():
        kept = simulation.clients.get(client)["solver"]
        assert kept.keys() == {"personal"}
        assert kept["personal"].numel() == sum(tensor.numel() for tensor in simulation.like.values())
        assert kept["personal"].untyped_storage().nbytes() == kept["personal"].nbytes
    assert run(per_fedavg(steps=2), batch_norm_task()).clients.known() == []


# The server's step.


@pytest.mark.parametrize("step", [1.0, 0.25, 2.0])
@pytest.mark.parametrize("over", ["cohort", "holders"])
def test_the_server_goes_some_of_the_way_to_the_mean(over: Any, step: float) -> None:
    server = Mean("samples", over, server_lr=step)
    check_server(server)
    state = server.init({"w": torch.tensor([1.0, 1.0])})
    acc = server.begin(state, {0: GLOBAL, 1: GLOBAL})
    acc = server.fold(acc, Arrival.of(0, Part(), {"w": torch.tensor([2.0, 0.0])}, 1.0))
    acc = server.fold(acc, Arrival.of(1, Part(), {"w": torch.tensor([6.0, 4.0])}, 3.0))
    (moved,) = server.download(server.finish(state, acc, Clock(0, 1, -1)), GLOBAL).models
    assert moved["w"].tolist() == [1 + step * 5, 1 + step * 3]


@pytest.mark.parametrize("step", [0.0, -1.0, float("inf"), float("nan")])
def test_a_step_of_the_server_that_cannot_be_is_refused(step: float) -> None:
    with pytest.raises(ConfigError, match=rf"Mean\.server_lr must be a positive number, got {step}"):
        Mean(server_lr=step)


def test_a_server_that_takes_models_as_they_are_has_no_step() -> None:
    with pytest.raises(ConfigError, match=r"Average\.server_lr must be 1: this server does not use it, got 0\.5"):
        Average(server_lr=0.5)


# Recipes, and mistakes.


def test_recipes_pass_everything_on() -> None:
    made = fedavg_tuned(lr=0.3, epochs=2, steps=3, batch=4, weights="uniform", tune_epochs=6)
    assert made == fedavg(lr=0.3, epochs=2, steps=3, batch=4, weights="uniform").with_parts(tune=SGD(0.3, 6, batch=4))
    made = per_fedavg(lr=0.3, epochs=2, steps=3, batch=4, weights="uniform", inner=0.7)
    assert (made.solver, made.server) == (PerFedAvg(0.3, 2, 3, 4, inner=0.7), Mean("uniform"))
    assert made.tune == SGD(0.7, steps=1, batch=4)
    made = pfedme(0.3, 0.2, 3, 4, 6, "uniform", 0.001, 7, 0.5)
    near = PFedMe(0.3, steps=3, batch=6, weight_decay=0.001, personal_lr=0.2, inner_steps=4, lam=7)
    assert (made.solver, made.server, made.tune) == (near, Mean("uniform", server_lr=0.5), None)


def test_only_methods_that_tune_declare_it() -> None:
    assert "tune" not in fedavg().describe()
    assert fedavg_tuned().describe()["tune"] == repr(SGD(0.1, 1, batch=16))


@pytest.mark.parametrize(
    ("solver", "field", "value"),
    [
        (PerFedAvg, "inner", -0.1),
        (PerFedAvg, "inner", float("inf")),
        (PerFedAvg, "inner", float("nan")),
        (PFedMe, "personal_lr", 0.0),
        (PFedMe, "inner_steps", 0),
        (PFedMe, "lam", 0.0),
        (PFedMe, "lam", float("nan")),
    ],
)
def test_a_field_that_cannot_be_is_refused_by_name(solver: type, field: str, value: float) -> None:
    with pytest.raises(ConfigError, match=rf"{solver.__name__}\.{field} must .*, got {value}"):
        solver(**{field: value})


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: per_fedavg(inner=-1), r"PerFedAvg\.inner must be finite and not negative, got -1"),
        (lambda: fedavg_tuned(tune_epochs=0), "tune_epochs must be at least 1, got 0"),
    ],
)
def test_of_a_recipe_the_parameter_is_named(make: Callable[[], Method], reason: str) -> None:
    with pytest.raises(ConfigError, match=f"^{reason}$"):
        make()


def test_a_pull_that_leaps_too_far_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"PFedMe\.personal_lr times lam must be below 2, .* got 3"):
        PFedMe(personal_lr=0.1, lam=30)


@pytest.mark.parametrize("view", [Bernoulli(), PersonalMask()], ids=lambda view: type(view).__name__)
def test_whole_models_are_needed(view: View) -> None:
    with pytest.raises(ConfigError, match="PFedMe needs clients that hold the whole model"):
        simulate(pfedme().with_parts(view=view), tiny_task(), rounds=1)
    with pytest.raises(ConfigError, match=r"Method\.tune needs clients that hold the whole model"):
        fedavg_tuned().with_parts(view=view)
    assert per_fedavg().with_parts(view=view, tune=None).view == view, "nothing is kept of a look ahead"


def test_tuning_that_makes_no_sense_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"Method\.tune: with send=nothing there is no global model"):
        local().with_parts(tune=SGD())
    with pytest.raises(ConfigError, match=r"Method\.tune needs the network's own tensors as parameters"):
        fedavg_tuned().with_parts(parametrization=Supermask())
    for solver in (Ditto(), PFedMe()):
        with pytest.raises(ConfigError, match=rf"without client state, got {type(solver).__name__}"):
            fedavg().with_parts(tune=solver)
    with pytest.raises(ConfigError) as refused:
        local().with_parts(tune=Ditto(), parametrization=Supermask())
    assert len(refused.value.mistakes) == 3


def test_codecs_with_a_surrogate_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"PFedMe trains two models and cannot use a codec.*learn_masks=False"):
        simulate(pfedme().with_parts(codec=OnWeights(MaskedNoise(learn_masks=True))), tiny_task(), rounds=1)
    simulate(pfedme().with_parts(codec=OnWeights(MaskedNoise(learn_masks=False))), tiny_task(), rounds=1)


def test_a_personal_model_can_be_tuned_too() -> None:
    simulation = run(ditto().with_parts(tune=SGD(epochs=1)), tiny_task(), per_round=None)
    bare = run(ditto(), tiny_task(), per_round=None)
    for client in range(5):
        clock, at = simulation.clock(2, client), simulation.round_key(2)
        wanted = simulation.client.tuned(bare.client_params(client), clock, at, simulation.task.split.train(client))
        assert same(wanted, simulation.client_params(client))
        assert not same(wanted, bare.client_params(client))
