"""Ditto: the global model is FedAvg's, and each client trains and deploys a personalized model in addition."""

import copy
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from gossamer import (
    SGD,
    Bernoulli,
    Ditto,
    Exponential,
    Lossy,
    MaskedNoise,
    Mean,
    Method,
    OnWeights,
    Options,
    PersonalMask,
    Pruned,
    Task,
    WidthSlice,
    ditto,
    fedavg,
    local,
    simulate,
)
from gossamer.core import tree
from gossamer.core.errors import ConfigError
from gossamer.core.jobs import own_key
from gossamer.core.random import Key, fold, key
from gossamer.core.types import Clock, Params
from gossamer.engines.metrics import Ledger
from gossamer.engines.simulation import Simulation
from gossamer.parts.views import View
from gossamer.tasks.data.samples import CropFlip
from gossamer.tasks.memory import solver_copies
from gossamer.testing import check_method, check_solver, tiny_task
from helpers.compare import assert_close, same
from helpers.gradients import Given
from helpers.tasks import batch_norm_task, floats

SOLVERS = {
    "plain": Ditto(lr=0.2, batch=8),
    "everything": Ditto(0.2, 1, None, 8, momentum=0.5, weight_decay=0.1, clip=0.5, schedule=Exponential(0.8), lam=0.9),
    "steps": Ditto(lr=0.2, steps=4, personal_steps=5, batch=8, lam=2.0),
    "personal steps": Ditto(lr=0.2, epochs=1, personal_steps=2, batch=8),
}
NO_INFO: Any = None
"""Ditto uses no ``LocalTrainingInfo``."""


def method(solver: Ditto) -> Method:
    return ditto().with_parts(solver=solver)


def run(method: Method, task: Task, **options: Any) -> Simulation:
    simulation = Simulation(method, task, Options(**{"rounds": 4, "per_round": 2, **options}))
    result = simulation.run(None, lambda record: None)
    assert not any(record["failures"] for record in result.metrics)
    return simulation


def personal(simulation: Simulation) -> dict[int, Params]:
    """The personalized models, by client."""
    remembered = {client: simulation.clients.get(client) for client in range(simulation.task.clients)}
    layout = simulation.method.training.solver.layout
    return {client: layout.unflatten(state["solver"]["personal"]) for client, state in remembered.items() if state}


def cohort(simulation: Simulation, number: int) -> list[int]:
    """The cohort of a round."""
    return simulation.cohort(number, Ledger())


# The algorithm.


class Slow:
    """The algorithm as in the paper: whole modules, one client after the other, PyTorch's optimizer."""

    def __init__(self, solver: Ditto, task: Task, simulation: Simulation) -> None:
        self.solver, self.task, self.simulation = solver, task, simulation
        self.model = simulation.objective.build()
        self.personal: dict[int, nn.Module] = {}

    def round(self, number: int) -> float:
        """One round; the mean loss."""
        sums = {name: torch.zeros_like(tensor) for name, tensor in floats(self.model).items()}
        clients, total, losses = cohort(self.simulation, number), 0, []
        for client in clients:
            samples, received = len(self.task.split.train(client)), copy.deepcopy(self.model)
            mine, theirs = self.personal.setdefault(client, self.simulation.objective.build()), copy.deepcopy(received)
            shared, alone = self.batches(number, client)
            first = self.train(theirs, shared, number, None)
            second = self.train(mine, alone, number, received)
            losses.append(np.mean(first + second))
            for name, tensor in floats(theirs).items():
                sums[name] += samples * (tensor - floats(received)[name])
            total += samples
        self.model.load_state_dict({n: t + sums[n] / total for n, t in floats(self.model).items()}, strict=False)
        return float(np.mean(losses))

    def batches(self, number: int, client: int) -> tuple[list[Tensor], list[Tensor]]:
        clock, round_key = self.simulation.clock(number, client), self.simulation.round_key(number)
        mine, solver = fold(own_key(round_key, clock), "batches"), self.solver
        index = self.task.split.train(client)
        shared = SGD(epochs=solver.epochs, steps=solver.steps, batch=8).plan(len(index), mine)
        alone = SGD(epochs=solver.personal_epochs, steps=solver.personal_steps, batch=8)
        return rows(index, shared), rows(index, alone.plan(len(index), fold(mine, "personal")))

    def train(self, module: nn.Module, batches: Iterable[Tensor], number: int, pull: nn.Module | None) -> list[float]:
        solver, data = self.solver, self.task.data.train
        lr = solver.lr * solver.schedule.factor(number, 4)
        optimiser = torch.optim.SGD(module.parameters(), lr, solver.momentum, weight_decay=solver.weight_decay)
        losses = []
        module.train()
        for batch in batches:
            optimiser.zero_grad()
            loss = nn.functional.cross_entropy(module(data.x[batch]), data.y[batch])
            loss.backward()
            if solver.clip is not None:
                nn.utils.clip_grad_norm_(module.parameters(), solver.clip)
            optimiser.step()
            losses.append(loss.item())
            if pull is not None:
                with torch.no_grad():
                    for v, w in zip(module.parameters(), pull.parameters(), strict=True):
                        v.sub_(lr * solver.lam * (v - w))
        return losses


def rows(index: np.ndarray, plan: list[np.ndarray]) -> list[Tensor]:
    return [torch.from_numpy(index[batch]) for batch in plan]


@pytest.mark.parametrize("name", SOLVERS)
def test_rounds_follow_the_algorithm(name: str) -> None:
    task = batch_norm_task()
    simulation = Simulation(method(SOLVERS[name]), task, Options(rounds=4, per_round=2))
    slow = Slow(SOLVERS[name], task, simulation)
    first: dict[int, int] = {}
    for number in range(4):
        record, loss = simulation.round(number, None), slow.round(number)
        first |= {client: number for client in record["clients"] if client not in first}
        assert not record["failures"]
        assert record["train_loss"] == pytest.approx(loss, abs=1e-9)
        assert_close(floats(slow.model), simulation.model(), atol=1e-9)
        assert set(personal(simulation)) == set(slow.personal)
        for client, module in slow.personal.items():
            assert_close(floats(module), simulation.client_params(client), atol=1e-9)
    assert set(first.values()) > {0}, "somebody came later, when the global model had moved"
    assert max(sum(c in cohort(simulation, r) for r in range(4)) for c in range(4)) > 1, "somebody came back"


def test_the_proximal_term_moves_the_model_towards_the_received_one() -> None:
    """On the loss |v|**2 / 2 in one dimension: v - lr v, and of that the way to w shortened by lr lam."""
    solver, start = Ditto(lr=0.5, steps=1, personal_steps=1, lam=0.4), torch.tensor([2.0])
    carry = solver.begin(start, {}, {"personal": torch.tensor([8.0])}, 2)
    for _ in range(2):
        carry = solver.step(Given(lambda at: (at.clone(), at)), start, carry, solver.hyperparams(Clock(0, 1, 0)))
    assert carry["params"].item() == pytest.approx(1.0)
    memory, sections = solver.end(carry, NO_INFO)
    assert sections == {}
    assert memory["personal"].item() == pytest.approx(4.0 - 0.5 * 0.4 * (4.0 - 2.0))


def test_it_keeps_the_contract_of_solvers() -> None:
    for solver in SOLVERS.values():
        check_solver(solver)


def test_each_epoch_has_another_order() -> None:
    plan = Ditto(batch=7).plan(20, key(1))
    epochs = [np.concatenate(plan[i : i + 3]).tolist() for i in range(0, len(plan), 3)]
    assert len(epochs) == 5
    assert all(sorted(epoch) == list(range(20)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 5


# The personal model.


@dataclass(frozen=True)
class Alone(SGD):
    """SGD on the batches that Ditto's personal model gets."""

    def plan(self, samples: int, key: Key) -> list[np.ndarray]:
        return super().plan(samples, fold(key, "personal"))


def test_without_a_pull_the_personal_model_is_that_of_local_training() -> None:
    """All take part at once, so that all begin from the initial model, as in local training."""
    task = batch_norm_task()
    ours = run(method(Ditto(lr=0.2, batch=8, lam=0)), task, per_round=None)
    theirs = run(local().with_parts(solver=Alone(lr=0.2, epochs=3, batch=8)), task, per_round=None)
    for client in range(4):
        assert_close(ours.client_params(client), theirs.client_params(client), atol=1e-12)


def test_without_a_pull_no_bit_depends_on_what_is_received() -> None:
    solver, alone, hyperparams = Ditto(steps=2, personal_steps=3, lam=0, momentum=0.9), SGD(momentum=0.9), {"rate": 0.1}
    state: dict[str, Any] = {}
    wanted = torch.tensor([1.0, -2.0])
    for received in ([1.0, -2.0], [0.3, 0.7], [5.0, 5.0]):
        start = torch.tensor(received)
        carry = solver.begin(start, {}, state, 5)
        for _ in range(5):
            carry = solver.step(Given(lambda at: (at.sin() / 3, at)), start, carry, hyperparams)
        (state, _), other = solver.end(carry, NO_INFO), alone.begin(wanted, {}, {}, 3)
        for _ in range(3):
            other = alone.step(Given(lambda at: (at.sin() / 3, at)), wanted, other, hyperparams)
        wanted = other["params"]
        assert torch.equal(state["personal"], wanted)


def test_a_stronger_pull_keeps_the_personal_model_nearer() -> None:
    def distance(lam: float) -> float:
        simulation = run(method(Ditto(lr=0.2, batch=8, lam=lam)), batch_norm_task(), rounds=1)
        trained = [name for name, _ in simulation.module().named_parameters()]
        gaps = [tree.subtract(p, {n: simulation.like[n] for n in trained}) for p in personal(simulation).values()]
        return sum(float(tree.norm(gap)) for gap in gaps)

    far, near, nearest = distance(0.0), distance(0.5), distance(4.0)
    assert far > near > nearest > 0


def test_a_client_that_never_took_part_deploys_the_global_model() -> None:
    simulation = Simulation(ditto(), batch_norm_task(), Options(rounds=1, per_round=2))
    assert all(same(simulation.client_params(client), simulation.like) for client in range(4))
    (one, two), idle = cohort(simulation, 0), set(range(4)) - set(cohort(simulation, 0))
    simulation.round(0, None)
    assert all(same(simulation.client_params(client), simulation.model()) for client in idle)
    assert not same(simulation.model(), simulation.like)
    assert not same(simulation.client_params(one), simulation.model())
    assert not same(simulation.client_params(one), simulation.client_params(two))


def test_a_personal_model_goes_on_though_the_message_is_lost() -> None:
    kept, lost = (run(ditto(), batch_norm_task(), rounds=1, channel=Lossy(loss)) for loss in (0.0, 1.0))
    assert same(lost.model(), lost.like)
    assert not same(kept.model(), kept.like)
    assert all(same(model, personal(kept)[client]) for client, model in personal(lost).items())


def test_what_is_remembered_is_the_personal_model_and_no_more() -> None:
    simulation = run(ditto(), batch_norm_task())
    for client, model in personal(simulation).items():
        assert simulation.clients.get(client)["solver"].keys() == {"personal"}
        assert tree.shape(model) == tree.shape(simulation.like)


def test_evaluation_is_on_personal_models() -> None:
    task = tiny_task()
    simulation = Simulation(ditto(lr=0.3), task, Options(rounds=2, per_round=3))
    for number in range(2):
        record = simulation.round(number, None)
    test = task.data.test
    shares: dict[str, list[float]] = {"personal": [], "global": []}
    for client in range(task.clients):
        mine = torch.from_numpy(task.split.test(client))
        for name, params in (("personal", simulation.client_params(client)), ("global", simulation.model())):
            module = simulation.objective.build(params).eval()
            shares[name].append((module(test.x[mine]).argmax(1) == test.y[mine]).double().mean().item())
    assert record["personal_accuracy"] == pytest.approx(np.mean(shares["personal"]))
    assert record["personal_accuracy"] != pytest.approx(np.mean(shares["global"]))
    whole = (simulation.module().eval()(test.x).argmax(1) == test.y).double().mean().item()
    assert record["accuracy"] == pytest.approx(whole)


# The global model.


def random_task() -> Task:
    """Images that are augmented, for a network with dropout and running statistics."""
    draw = torch.Generator().manual_seed(5)
    x, y = torch.randn(60, 1, 6, 6, generator=draw), torch.arange(60) % 3

    def network() -> nn.Module:
        layers = (nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Dropout(0.5), nn.Linear(64, 3))
        return nn.Sequential(*layers)

    task = Task.of(network, (x, y), (x, y), clients=4, split="dirichlet:1")
    return replace(task, data=replace(task.data, augment=CropFlip(1)))


@pytest.mark.parametrize("make", [batch_norm_task, tiny_task, random_task])
@pytest.mark.parametrize(("personal_epochs", "lam"), [(3, 0.5), (1, 0.0), (2, 7.0)])
def test_the_global_model_is_that_of_federated_averaging_to_the_bit(
    make: Any, personal_epochs: int, lam: float
) -> None:
    task = make()
    ours = run(ditto(0.1, 2, personal_epochs, 8, lam=lam), task)
    theirs = run(fedavg(lr=0.1, epochs=2, batch=8), task)
    assert same(ours.model(), theirs.model())
    for record, other in zip(ours.metrics, theirs.metrics, strict=True):
        assert all(record[name] == other[name] for name in ("accuracy", "loss", "bytes_up", "bytes_down"))
        assert record["flops"] * 2 == other["flops"] * (2 + personal_epochs)


def test_its_fields_hold_for_the_global_model_as_in_sgd() -> None:
    fields = {"momentum": 0.5, "weight_decay": 0.1, "clip": 0.5, "proximal": 0.3, "schedule": Exponential(0.8)}
    ours = run(method(Ditto(0.2, 1, None, 8, **fields)), batch_norm_task())  # type: ignore[arg-type]
    theirs = run(fedavg().with_parts(solver=SGD(0.2, 1, None, 8, **fields)), batch_norm_task())  # type: ignore[arg-type]
    assert same(ours.model(), theirs.model())


# Every way to run it.


@pytest.mark.filterwarnings("ignore:.*script_method:DeprecationWarning")  # torch's compiler uses what torch deprecates
@pytest.mark.parametrize("executor", ["side-by-side", "stacked", pytest.param("compiled", marks=pytest.mark.slow)])
def test_executors_agree(executor: str) -> None:
    """On clients of unequal size, which are not all in the same phase, nor all for the first time."""
    task, solver = tiny_task(dtype=torch.float64), replace(SOLVERS["everything"], batch=4)
    assert len(set(task.split.sizes().tolist())) > 1
    wanted = run(method(solver), task, per_round=4)
    found = run(method(solver), task, per_round=4, executor=executor)
    atol = 0 if executor == "side-by-side" else 1e-9
    assert_close(found.model(), wanted.model(), atol)
    assert personal(found).keys() == personal(wanted).keys()
    for client, model in personal(found).items():
        assert_close(model, personal(wanted)[client], atol)
    for record, other in zip(found.metrics, wanted.metrics, strict=True):
        assert all(record[name] == other[name] for name in ("personal_accuracy", "bytes_up", "flops"))
        assert record["train_loss"] == pytest.approx(other["train_loss"], abs=1e-9)


def test_stacked_clients_do_not_remember_each_other() -> None:
    for model in personal(run(ditto(), batch_norm_task(), executor="stacked")).values():
        storages = {tensor.untyped_storage() for tensor in model.values()}
        assert sum(storage.nbytes() for storage in storages) == sum(tensor.nbytes for tensor in model.values())


def test_an_interrupted_run_ends_with_the_same_bytes(tmp_path: Path) -> None:
    check_method(ditto(), tmp_path, batch_norm_task(dtype=torch.float32), rounds=4)


def test_deployed_it_is_the_same(tmp_path: Path) -> None:
    pytest.importorskip("flwr")
    from helpers.flower_runs import agree, deploy, nodes, simulated
    from helpers.local_grid import LocalGrid

    task = tiny_task(clients=4)
    deployed = deploy(ditto(), task, LocalGrid(nodes(ditto(), task, tmp_path)), rounds=3, per_round=2)
    wanted = simulated(ditto(), task, rounds=3, per_round=2)
    agree(deployed, wanted, tmp_path)
    assert len({client for record in wanted.metrics for client in record["clients"]}) == 3, "and one is never asked"
    for record, other in zip(deployed.metrics, wanted.metrics, strict=True):
        figures = ("accuracy", "personal_accuracy", "worst_tenth_accuracy", "bytes_up", "bytes_down", "flops")
        assert all(record[name] == other[name] for name in figures)


def test_memory_counts_the_personal_model() -> None:
    assert solver_copies(Ditto(), {"w": torch.zeros(100)}, "w") == 1


# Mistakes.


@pytest.mark.parametrize(
    ("field", "value"),
    [("personal_epochs", 0), ("personal_steps", 0), ("lam", -0.1), ("lam", float("inf")), ("lam", float("nan"))],
)
def test_a_field_that_cannot_be_is_refused_by_name(field: str, value: float) -> None:
    with pytest.raises(ConfigError, match=rf"Ditto\.{field} must .*, got {value}"):
        Ditto(**{field: value})  # type: ignore[arg-type]


def test_the_recipe_passes_everything_on() -> None:
    made = ditto(0.3, 4, 5, 6, "uniform", 0.7)
    assert made.solver == Ditto(0.3, 4, None, 6, personal_epochs=5, lam=0.7)
    assert made.server == Mean("uniform")
    assert simulate(made, tiny_task(), rounds=1).metrics[0]["bytes_up"]


@pytest.mark.parametrize(
    "view", [Bernoulli(), WidthSlice(), PersonalMask(), Pruned()], ids=lambda view: type(view).__name__
)
def test_it_needs_the_whole_model(view: View) -> None:
    with pytest.raises(ConfigError, match="Ditto needs clients that hold the whole model"):
        simulate(ditto().with_parts(view=view), tiny_task(), rounds=1)


def test_codecs_with_a_surrogate_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"Ditto trains two models and cannot use a codec.*learn_masks=False"):
        simulate(ditto().with_parts(codec=OnWeights(MaskedNoise(learn_masks=True))), tiny_task(), rounds=1)
    simulate(ditto().with_parts(codec=OnWeights(MaskedNoise(learn_masks=False))), tiny_task(), rounds=1)
