"""The classics against loops that are written by hand from their papers, in float64."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

from gossamer import (
    SGD,
    Bernoulli,
    Clusters,
    ConfigError,
    Dense,
    FedDyn,
    FedDynSGD,
    FedNova,
    FedNovaSGD,
    Full,
    Lossy,
    Mean,
    Method,
    Result,
    RunError,
    Scaffold,
    ScaffoldSGD,
    Task,
    compose,
    fedavg,
    fedavgm,
    feddyn,
    fednova,
    ifca,
    perm,
    scaffold,
    simulate,
)
from gossamer.core.random import fold, key
from gossamer.engines.options import Options
from gossamer.engines.simulation import Simulation
from gossamer.methods import METHODS
from gossamer.parts.codecs import OnWeights, TopK
from gossamer.parts.solvers.sgd import Descent
from gossamer.tasks.data import load
from gossamer.tasks.nets import build
from gossamer.tasks.objective import Objective
from gossamer.tasks.task import deal
from gossamer.testing import tiny_task

Params = dict[str, Tensor]
ROUNDS, PER_ROUND, CLIENTS, LR = 5, 3, 5, 0.1
TASK = tiny_task(CLIENTS, torch.float64)


class ByHand:
    """The task as plain tensors, and a gradient of it."""

    def __init__(self, task: Task = TASK) -> None:
        self.task = task
        self.module: nn.Module = task.model()
        self.first = Objective(task, "cpu", key(0)).initial()

    def samples(self, client: int) -> tuple[Tensor, Tensor]:
        rows = torch.from_numpy(self.task.split.train(client))
        return self.task.data.train.x[rows], self.task.data.train.y[rows]

    def gradient(self, params: Params, client: int, batch: np.ndarray | None = None) -> Params:
        x, y = self.samples(client)
        if batch is not None:
            x, y = x[torch.from_numpy(batch)], y[torch.from_numpy(batch)]
        leaves = {name: tensor.clone().requires_grad_() for name, tensor in params.items()}
        loss = nn.functional.cross_entropy(functional_call(self.module, leaves, (x,)), y)
        return dict(zip(leaves, torch.autograd.grad(loss, list(leaves.values())), strict=True))

    def zeros(self) -> Params:
        return {name: torch.zeros_like(tensor) for name, tensor in self.first.items()}

    def batches(self, solver: Descent, number: int, client: int) -> list[np.ndarray]:
        """The order of samples is an input: what is checked is what is done with them."""
        at = fold(fold(fold(key(0), "round", number), "client", client), "batches")
        return solver.plan(len(self.task.split.train(client)), at)


def run(method: Method, **more: Any) -> Result:
    return simulate(method, TASK, rounds=ROUNDS, per_round=PER_ROUND, **more)


def check_same(result: Result, wanted: Params) -> None:
    found = dict(result.model.named_parameters())
    for name, tensor in wanted.items():
        torch.testing.assert_close(found[name].detach(), tensor, rtol=1e-9, atol=1e-9)


def cohorts(result: Result) -> list[list[int]]:
    return [record["clients"] for record in result.metrics]


@pytest.mark.parametrize("option", [1, 2])
@pytest.mark.parametrize("server_lr", [1.0, 0.7])
def test_scaffold(option: Any, server_lr: float) -> None:
    result = run(scaffold(lr=LR, steps=4, batch=None, option=option, server_lr=server_lr))
    hand = ByHand()
    w, c, own = dict(hand.first), hand.zeros(), {client: hand.zeros() for client in range(CLIENTS)}
    for cohort in cohorts(result):
        moves, changes = [], []
        for k in cohort:
            y = dict(w)
            for _ in range(4):
                g = hand.gradient(y, k)
                y = {n: y[n] - LR * (g[n] - own[k][n] + c[n]) for n in y}
            at_start = hand.gradient(w, k)
            new = at_start if option == 1 else {n: own[k][n] - c[n] + (w[n] - y[n]) / (4 * LR) for n in y}
            moves.append({n: y[n] - w[n] for n in y})
            changes.append({n: new[n] - own[k][n] for n in y})
            own[k] = new
        w = {n: w[n] + server_lr * sum(m[n] for m in moves) / len(cohort) for n in w}
        c = {n: c[n] + sum(d[n] for d in changes) / CLIENTS for n in w}
    check_same(result, w)


def test_feddyn() -> None:
    alpha = 0.3
    result = run(feddyn(lr=LR, steps=4, batch=None, alpha=alpha))
    hand = ByHand()
    w, h, own = dict(hand.first), hand.zeros(), {client: hand.zeros() for client in range(CLIENTS)}
    for cohort in cohorts(result):
        ends = []
        for k in cohort:
            v = dict(w)
            for _ in range(4):
                g = hand.gradient(v, k)
                v = {n: v[n] - LR * (g[n] - own[k][n] + alpha * (v[n] - w[n])) for n in v}
            own[k] = {n: own[k][n] - alpha * (v[n] - w[n]) for n in v}
            ends.append(v)
        h = {n: h[n] - alpha / CLIENTS * sum(v[n] - w[n] for v in ends) for n in w}
        w = {n: sum(v[n] for v in ends) / len(ends) - h[n] / alpha for n in w}
    check_same(result, w)


@pytest.mark.parametrize("momentum", [0.0, 0.8])
def test_fednova(momentum: float) -> None:
    method = fednova(lr=LR, epochs=2, batch=8, momentum=momentum)
    result, hand = run(method), ByHand()
    assert isinstance(method.solver, FedNovaSGD)
    w = dict(hand.first)
    for number, cohort in enumerate(cohorts(result)):
        sizes = {k: len(hand.task.split.train(k)) for k in cohort}
        p = {k: n / sum(sizes.values()) for k, n in sizes.items()}
        lengths, changes = {}, {}
        for k in cohort:
            v, velocity, weights = dict(w), hand.zeros(), []
            for batch in hand.batches(method.solver, number, k):
                g = hand.gradient(v, k, batch)
                velocity = {n: momentum * velocity[n] + g[n] for n in v}
                v = {n: v[n] - LR * velocity[n] for n in v}
                weights.append(1.0)
            steps = len(weights)
            lengths[k] = sum(sum(momentum**later for later in range(steps - step)) for step in range(steps))
            changes[k] = {n: v[n] - w[n] for n in v}
        far = sum(p[k] * lengths[k] for k in cohort)
        w = {n: w[n] + far * sum(p[k] * changes[k][n] / lengths[k] for k in cohort) for n in w}
    assert len({*lengths.values()}) > 1, "clients must take unequal numbers of steps for this to mean anything"
    check_same(result, w)


SECOND: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "fedadagrad": lambda v, d: v + d**2,
    "fedadam": lambda v, d: 0.95 * v + 0.05 * d**2,
    "fedyogi": lambda v, d: v - 0.05 * d**2 * torch.sign(v - d**2),
}


@pytest.mark.parametrize("name", SECOND)
def test_adaptive_servers(name: str) -> None:
    beta1, tau, server_lr = 0.6, 0.01, 0.05
    more = {} if name == "fedadagrad" else {"beta2": 0.95}
    method = METHODS[name](lr=LR, steps=3, batch=None, server_lr=server_lr, beta1=beta1, tau=tau, **more)
    result, hand = run(method), ByHand()
    w, m = dict(hand.first), hand.zeros()
    v = {n: torch.full_like(t, tau**2) for n, t in w.items()}
    for cohort in cohorts(result):
        d = mean_change(hand, w, cohort)
        m = {n: beta1 * m[n] + (1 - beta1) * d[n] for n in w}
        v = {n: SECOND[name](v[n], d[n]) for n in w}
        w = {n: w[n] + server_lr * m[n] / (v[n].sqrt() + tau) for n in w}
    check_same(result, w)


def test_fedavgm() -> None:
    result, hand = run(fedavgm(lr=LR, steps=3, batch=None, server_lr=0.5, beta1=0.7)), ByHand()
    w, m = dict(hand.first), hand.zeros()
    for cohort in cohorts(result):
        d = mean_change(hand, w, cohort)
        m = {n: 0.7 * m[n] + d[n] for n in w}
        w = {n: w[n] + 0.5 * m[n] for n in w}
    check_same(result, w)


def mean_change(hand: ByHand, w: Params, cohort: list[int]) -> Params:
    """FedAvg's: three steps on all samples, weighted by their number."""
    total, weight = hand.zeros(), 0
    for k in cohort:
        y = dict(w)
        for _ in range(3):
            g = hand.gradient(y, k)
            y = {n: y[n] - LR * g[n] for n in y}
        samples = len(hand.task.split.train(k))
        total, weight = {n: total[n] + samples * (y[n] - w[n]) for n in w}, weight + samples
    return {n: tensor / weight for n, tensor in total.items()}


def test_fednova_is_fedavg_where_all_take_as_many_steps() -> None:
    check_same(run(fednova(lr=LR, steps=3)), dict(run(fedavg(lr=LR, steps=3)).model.named_parameters()))


def test_the_control_variate_is_the_mean_of_clients_own_though_messages_are_lost() -> None:
    simulation = Simulation(scaffold(steps=2), TASK, Options(rounds=6, per_round=4, channel=Lossy(0.4), seed=1))
    result = simulation.run(None, lambda record: None)
    assert sum(len(record["lost"]) for record in result.metrics) > 2
    layout = simulation.method.training.solver.layout
    zeros = torch.zeros(layout.size, dtype=torch.float64)
    own = [simulation.clients.get(c).get("solver", {}).get("control", zeros) for c in range(CLIENTS)]
    control = layout.flatten(simulation.server["control"])
    torch.testing.assert_close(control, torch.stack(own).mean(0), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", ["scaffold", "feddyn"])
def test_sub_models_have_their_part_of_what_is_remembered(name: str) -> None:
    method = METHODS[name](steps=2).with_parts(view=Bernoulli((0.5,)), codec=OnWeights(TopK(0.5)))
    simulation = Simulation(method, TASK, Options(rounds=3, per_round=3))
    result = simulation.run(None, lambda record: None)
    assert not any(record["failures"] for record in result.metrics)
    memory = simulation.clients.get(result.metrics[0]["clients"][0])["solver"]
    sizes = {vector.numel() for vector in memory.values()}
    assert sizes == {sum(p.numel() for p in result.model.parameters())}


def test_parts_that_do_not_go_together_are_refused() -> None:
    pairs: Mapping[str, Method] = {
        "use Scaffold": compose(Full(), ScaffoldSGD(), Dense(), Mean()),
        "use ScaffoldSGD": compose(Full(), SGD(), Dense(), Scaffold()),
        "use FedNovaSGD": compose(Full(), SGD(), Dense(), FedNova()),
        "same alpha": compose(Full(), FedDynSGD(proximal=0.2), Dense(), FedDyn(alpha=0.1)),
    }
    for reason, method in pairs.items():
        with pytest.raises(ConfigError, match=reason):
            simulate(method, TASK, rounds=1)
    with pytest.raises(ConfigError, match=r"FedNovaSGD\.proximal"):
        FedNovaSGD(proximal=0.1)
    with pytest.raises(ConfigError, match=r"Clusters\.clusters"):
        Clusters(clusters=1)


# IFCA.


def test_ifca_averages_each_model_over_the_clients_that_chose_it() -> None:
    simulation = Simulation(ifca(lr=LR, steps=3, batch=None), TASK, Options(rounds=3, per_round=4))
    hand = ByHand()
    objective = Objective(TASK, "cpu", key(0))
    models = [objective.initial(number) for number in range(2)]
    result = simulation.run(None, lambda record: None)
    for record in result.metrics:
        chosen: list[list[int]] = [[], []]
        for k in record["clients"]:
            x, y = hand.samples(k)
            losses = [float(nn.functional.cross_entropy(functional_call(hand.module, m, (x,)), y)) for m in models]
            chosen[int(np.argmin(losses))].append(k)
        assert [*record["figures"]["clusters"].values()] == [len(clients) for clients in chosen]
        for number, cohort in enumerate(chosen):
            change = mean_change(hand, models[number], cohort) if cohort else hand.zeros()
            models[number] = {n: t + change[n] for n, t in models[number].items()}
    for wanted, found in zip(models, simulation.method.global_models(simulation.server), strict=True):
        for name, tensor in wanted.items():
            torch.testing.assert_close(found[name], tensor, rtol=1e-9, atol=1e-9)


@pytest.mark.slow
def test_ifca_finds_two_populations_and_serves_each_as_well_as_perm() -> None:
    data = load("two-populations", clients=20, key=key(0))
    task = Task(lambda: build("logistic", data.shape, 2), data, deal(data, "natural", 20, 0))
    simulation = Simulation(ifca(epochs=1), task, Options(rounds=30, eval_every=30))
    found = simulation.run(None, lambda record: None).summary()["personal_accuracy"]
    models = simulation.method.global_models(simulation.server)
    chosen = [simulation.client.best(models, task.split.train(client))[0] for client in range(20)]
    assert {*chosen[:10]} != {*chosen[10:]}
    assert len({*chosen[:10]}) == len({*chosen[10:]}) == 1
    other = simulate(perm(epochs=1), task, rounds=30, eval_every=30).summary()["personal_accuracy"]
    assert found >= other - 0.02


def test_ifca_has_no_global_model_and_names_client_models() -> None:
    result = run(ifca(steps=2))
    with pytest.raises(RunError, match=r"result\.client_model\(i\)"):
        _ = result.model
    assert isinstance(result.client_model(0), nn.Module)


def test_ifca_accuracy_is_that_of_clients_own_choices_by_samples() -> None:
    simulation = Simulation(ifca(steps=2), TASK, Options(rounds=2))
    result = simulation.run(None, lambda record: None)
    right = total = 0
    for client in range(CLIENTS):
        rows = torch.from_numpy(TASK.split.test(client))
        scores = result.client_model(client)(TASK.data.test.x[rows])
        right += int((scores.argmax(1) == TASK.data.test.y[rows]).sum())
        total += len(rows)
    assert result.accuracy == pytest.approx(right / total)


def test_ifca_needs_models_that_differ() -> None:
    module = nn.Linear(6, 3)
    data = TASK.data
    task = Task.of(lambda: module, (data.train.x.float(), data.train.y), (data.test.x.float(), data.test.y), clients=3)
    with pytest.raises(ConfigError, match="always builds the same weights"):
        simulate(ifca(), task, rounds=1)


# Resuming.


@pytest.mark.parametrize("name", ["scaffold", "feddyn", "fedadam", "ifca"])
def test_what_server_and_clients_remember_is_kept(name: str, tmp_path: Path) -> None:
    method = METHODS[name](steps=2)
    whole = run(method, out=tmp_path / "whole")

    def stop(record: dict[str, Any], run: Any) -> None:
        if record["round"] == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(method, out=tmp_path / "broken", callbacks=[stop])
    run(method, out=tmp_path / "broken", resume=True)
    first, second = (
        (tmp_path / where / "checkpoints/5/server.safetensors").read_bytes() for where in ("whole", "broken")
    )
    assert first == second
    assert len(whole.metrics) == ROUNDS
