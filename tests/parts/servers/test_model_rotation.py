"""PERM: rotation of personalized models, and mixing weights between clients."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from gossamer import METHODS, ConfigError, Full, Lossy, Method, PayloadError, Task, WidthSlice, compose
from gossamer.core.exchange import GLOBAL, Arrival, Assignment
from gossamer.core.jobs import own_key
from gossamer.core.random import fold, key, uniform
from gossamer.core.types import Clock, Params, Part
from gossamer.core.wire import Body, address, unpack
from gossamer.engines.client import Client, ClientResult, ClientTask
from gossamer.engines.options import Options
from gossamer.engines.run import Stage
from gossamer.engines.simulation import Simulation
from gossamer.fleet.device import Device
from gossamer.fleet.fleet import Fleet
from gossamer.methods import fedavg, perm, perm_two_stage
from gossamer.parts.codecs import Dense, Feedback, OnWeights, TopK
from gossamer.parts.servers import GradientSimilarity, ModelRotation
from gossamer.parts.servers.mixing import Pairs, draw, even, square
from gossamer.parts.servers.model_rotation import PATIENCE
from gossamer.parts.solvers import SGD, GradientProbe
from gossamer.testing import check_method, check_solver, check_value, tiny_task
from helpers.narrow import present
from helpers.runs import personal_model

N = 5
LENGTH = 4
"""The rounds of an epoch with lambda 3."""
PLAIN: dict[str, Any] = {"warmup": 0, "bound": None, "steps": 2, "batch": 8}


def task(clients: int = N) -> Task:
    return tiny_task(clients, torch.float64)


def ran(method: Method, on: Task, rounds: int, **options: Any) -> Simulation:
    """A run in memory, after its last round."""
    run = Simulation(method, on, Options(rounds=rounds, **{"executor": "one-by-one", **options}))
    run.run(None, lambda record: None)
    return run


def weights(run: Simulation) -> Tensor:
    return square(run.server.get("mixing", {}), run.task.clients)


def close(a: Params, b: Params, within: float = 1e-10) -> bool:
    return a.keys() == b.keys() and all(torch.allclose(a[name], b[name], rtol=0, atol=within) for name in a)


# The gradient by which clients are compared.


def test_a_probe_is_a_solver_and_a_value() -> None:
    check_value(GradientProbe(8))
    check_solver(GradientProbe(8))


@pytest.mark.parametrize("executor", ["one-by-one", "side-by-side", "stacked"])
def test_the_global_model_descends_the_mean_gradient(executor: str) -> None:
    """Warm-up rounds, all samples: gradient descent on the mean of the clients' mean losses, by autograd."""
    on = task()
    run = ran(perm(global_lr=0.3, warmup=9, lambda_=1.0), on, 3, executor=executor)
    module = Simulation(fedavg(), on, Options(rounds=1)).module()
    for _ in range(3):
        module.zero_grad()
        for client in range(N):
            rows = torch.from_numpy(on.split.train(client))
            (on.loss(module(on.data.train.x[rows]), on.data.train.y[rows]) / N).backward()
        with torch.no_grad():
            for parameter in module.parameters():
                parameter.sub_(0.3 * present(parameter.grad))
    assert close(run.model(), {name: p.detach() for name, p in module.named_parameters()})


def test_the_noise_of_a_gradient_is_its_variance() -> None:
    """Batches of 8 from many samples: the reported noise is the mean distance of their gradients from the mean."""
    on = tiny_task(1, torch.float64)
    samples = on.split.train(0)
    run = Simulation(compose(Full(), GradientProbe(8), server=GradientSimilarity()), on, Options(rounds=1))
    client, exchange, reported, found = Client(run.method, run.objective), run.method.training, [], []
    for number in range(400):
        clock, at = Clock(number, 1, 0), fold(run.key, number)
        common = exchange.make_common(run.server, clock, at)
        data = exchange.make_download(run.server, clock, at, GLOBAL, None, common).data
        client_task = ClientTask(clock, at, data, {}, samples)
        job = client.read_download(client_task)
        trained = client.train(client_task, job)
        reported.append(float(unpack(client.make_upload(job, trained).sent.data).payload["@noise"]))
        found.append(torch.cat([change.flatten() for change in trained.change.values()]))
    gradients = torch.stack(found)
    finite = 1 - 8 / len(samples)  # batches are drawn without putting back; halves of a batch are not
    variance = float((gradients - gradients.mean(0)).square().sum(1).mean()) / finite
    assert sum(reported) / len(reported) == pytest.approx(variance, rel=0.1)


def test_without_noise_less_is_computed_and_the_gradient_is_the_same() -> None:
    with_noise, without = (ran(perm(warmup=9, probe=8, lambda_=lam), task(), 1) for lam in (None, 1.0))
    assert with_noise.metrics[0]["flops"] == 1.5 * without.metrics[0]["flops"]
    assert close(with_noise.model(), without.model(), within=0)
    assert torch.equal(with_noise.server["compared"]["apart"], without.server["compared"]["apart"])


def test_statistics_of_norms_are_averaged_and_not_compared() -> None:
    server = GradientSimilarity(lr=0.5, lam=1.0).filled(clients=2, trained=("w",))
    state = server.init({"mean": torch.zeros(3), "w": torch.zeros(2)})
    acc = server.begin(state, {0: GLOBAL, 1: GLOBAL})
    for client, (mean, w) in enumerate([([1.0, 2.0, 3.0], [1.0, 0.0]), ([7.0, 8.0, 9.0], [4.0, 4.0])]):
        change = {"mean": torch.tensor(mean), "w": torch.tensor(w)}
        acc = server.fold(acc, Arrival.of(client, Part(), change, 4.0))
    after = server.finish(state, acc, Clock(0, 1, -1))
    assert after["compared"]["apart"].tolist() == [[0, 25], [25, 0]]
    assert after["compared"]["samples"].tolist() == [4, 4]
    assert after["params"]["mean"].tolist() == [4, 5, 6]
    assert after["params"]["w"].tolist() == [0.5 * 2.5, 0.5 * 2]


# Rotation.


def timetable(run: Simulation, mixed: Tensor, epochs: int) -> list[dict[int, int]]:
    """The model of each host, round by round, where weights stay as they are and all clients are present."""
    pairs = Pairs(*np.nonzero(mixed.numpy() > 0))
    tables = [draw(pairs, len(mixed), fold(run.key, "shuffle", epoch)) for epoch in range(epochs)]
    return [{host: model for host, model in enumerate(column) if model >= 0} for table in tables for column in table.T]


def replayed(run: Simulation, mixed: Tensor, epochs: int) -> list[Params]:
    """Every model after some epochs, by a plain loop over rounds, models and batches."""
    on, solver, count = run.task, run.method.training.solver, run.task.clients
    assert isinstance(solver, SGD)
    length = int(torch.maximum((mixed > 0).sum(0), (mixed > 0).sum(1)).max())
    models = [{name: tensor.clone() for name, tensor in run.server["origin"].items()} for _ in range(count)]
    for number, visits in enumerate(timetable(run, mixed, epochs)):
        for host, model in visits.items():
            clock, at = run.clock_and_key(Stage(run.method.training, number, {}), host)
            mine = on.split.train(host)
            for batch in solver.plan(len(mine), fold(own_key(at, clock), "batches")):
                rows = torch.from_numpy(mine[batch])
                _, grads, _ = run.objective.gradient(models[model], on.data.train.x[rows], on.data.train.y[rows])
                step = solver.lr * length * float(mixed[model, host])
                models[model] = {name: w - step * grads[name] for name, w in models[model].items()}
    return models


@pytest.mark.filterwarnings("ignore:.*script_method:DeprecationWarning")  # torch's compiler uses what torch deprecates
@pytest.mark.parametrize(
    ("lam", "executor"),
    [
        (0.0, "one-by-one"),
        (1e12, "stacked"),
        (3.0, "one-by-one"),
        pytest.param(3.0, "compiled", marks=pytest.mark.slow),
    ],
)
def test_models_rotate_as_in_a_plain_loop(lam: float, executor: str) -> None:
    """Two epochs. With lambda 0 all weight is on oneself: an epoch is one round, with the plain rate."""
    method = perm_two_stage(lambda_=lam, **PLAIN)
    rounds = 2 * {0.0: 1, 1e12: N, 3.0: LENGTH}[lam]
    run = ran(method, task(), rounds, executor=executor)
    mixed = weights(run)
    if lam == 0:
        assert torch.equal(mixed, torch.eye(N, dtype=torch.float64))
    if lam == 3.0:
        assert (mixed > 0).sum(1).tolist() != [N] * N, "some pairs have no weight"
    if lam == 1e12:
        sizes = torch.tensor([len(run.task.split.train(c)) for c in range(N)])
        assert torch.allclose(mixed, (sizes / sizes.sum()).double().expand(N, N), atol=1e-6)
    for client, model in enumerate(replayed(run, mixed, 2)):
        assert close(personal_model(run, client), model)
    assert int(run.server["epoch"]) == 2
    assert "rotation" not in run.server
    visits = [record["figures"]["visits"] for record in run.metrics]
    assert sum(each["trained"] for each in visits) == 2 * int((mixed > 0).sum())
    assert all(each["trained"] + each["idle"] == N and each["epoch_rounds"] == rounds // 2 for each in visits)


def dealt(x: Tensor, y: Tensor, test: tuple[Tensor, Tensor], clients: int) -> Task:
    """Equally many samples per client, in order; a linear network."""
    made = Task.of(lambda: nn.Linear(x.shape[1], 3).double(), (x, y), test, clients=clients)
    starts = np.arange(clients + 1) * (len(x) // clients)
    return replace(made, split=replace(made.split, train_index=np.arange(len(x)), train_start=starts))


def test_with_even_weights_on_identical_clients_it_is_shuffled_sgd() -> None:
    """All clients have the same samples: each model takes the steps of plain SGD with batches of its hosts' choice."""
    x, y = task(1).data.train.x, task(1).data.train.y
    run = ran(perm_two_stage(lambda_=1e9, **PLAIN), dealt(x.repeat(N, 1), y.repeat(N), (x, y), N), N)
    assert torch.allclose(weights(run), even(N), atol=1e-9)
    for client, model in enumerate(replayed(run, even(N), 1)):
        assert close(personal_model(run, client), model)


def test_in_an_epoch_every_pair_meets_once_also_with_absent_clients() -> None:
    """Half of the clients take part, and a fifth of the messages are lost: nobody is met twice, and nobody is left."""
    method = perm_two_stage(lambda_=1e6, **PLAIN)
    run = Simulation(method, task(), Options(rounds=200, per_round=3, channel=Lossy(0.2)))
    met, epochs, lost = torch.zeros(N, N, dtype=torch.int64), 0, 0
    for number in range(60):
        before = {client: personal_model(run, client) for client in range(N)}
        record = run.round(number, None)
        lost += len(record["lost"])
        moved = [client for client in range(N) if not close(personal_model(run, client), before[client])]
        assert len(moved) == record["figures"]["visits"]["trained"], "a model is at one host"
        met[moved] += 1
        if int(run.server["epoch"]) > epochs:
            epochs += 1
            assert (met[:, 0] == N * epochs).all()
    assert epochs >= 2
    assert lost > 10


def test_a_lost_model_stays_as_it_was() -> None:
    run = ran(perm(lambda_=1e6, **PLAIN), task(), 2, channel=Lossy(1.0))
    assert not bool(run.server["rotation"]["done"].any())
    assert run.models.known() == []
    assert all(len(record["lost"]) == 2 * N for record in run.metrics), "the gradient, and then the model"
    assert close(personal_model(run, 0), run.like)


def test_in_the_warm_up_each_model_is_the_global_one() -> None:
    run = ran(perm(warmup=3), task(), 3)
    assert run.models.known() == []
    assert all(close(run.client_params(client), run.model()) for client in range(N))
    assert "visits" not in run.metrics[-1]


def test_two_stages_begin_as_federated_averaging() -> None:
    on = task()
    two = ran(perm_two_stage(global_lr=0.2, warmup=3, steps=4, batch=8), on, 3)
    one = ran(fedavg(lr=0.2, steps=4, batch=8, weights="uniform"), on, 3)
    # An exchange before the last one has its own keys, so batches differ; full batches do not.
    assert two.metrics[-1]["bytes_up"] == one.metrics[-1]["bytes_up"]
    two = ran(perm_two_stage(global_lr=0.2, warmup=3, steps=2, batch=None), on, 4)
    one = ran(fedavg(lr=0.2, weights="uniform", steps=2, batch=None), on, 3)
    assert close(two.model(), one.model()), "and then the global model stays"
    assert [
        ("mixing" in record.get("figures", {}), "visits" in record.get("figures", {})) for record in two.metrics
    ] == [(False, False)] * 3 + [(True, True)]


def scales(run: Simulation, rounds: int) -> Tensor:
    """The sum of the loss factors of each model (row) at each host (column) over some rounds."""
    total, server = torch.zeros(N, N, dtype=torch.float64), run.method.training.server
    for number in range(rounds):
        run.round(number, None)
    state = {name: value for name, value in run.server.items() if name != "rotation"}
    while True:
        assigned = server.assign(state, range(N), Clock(rounds, rounds, -1), run.key)
        assert assigned is not None
        for host, to in assigned.items():
            if to.owner is not None:
                total[to.owner, host] += present(to.loss_scale)
        acc = server.begin(state, assigned)
        acc.moved = {host: to.owner for host, to in assigned.items() if to.owner is not None}
        state = server.finish(state, acc, Clock(rounds, rounds, -1))
        if "rotation" not in state:
            return total


def test_a_long_step_is_divided_among_visits_and_weights_are_honoured() -> None:
    """With bound 0.06 and lr 0.1 no factor exceeds 0.6. Over an epoch the factors are proportional to the weights."""
    method = perm_two_stage(lr=0.1, lambda_=3.0, bound=0.06, warmup=0, steps=1, batch=8)
    run = Simulation(method, task(), Options(rounds=9))
    total, mixed = scales(run, 1), weights(run)
    assert float((LENGTH * mixed).max()) > 0.6, "one visit would not be enough"
    assert torch.allclose(total, LENGTH * mixed, rtol=0, atol=1e-12)
    assert run.metrics[0]["figures"]["visits"]["capped"] == 0
    assert run.metrics[0]["figures"]["visits"]["epoch_rounds"] > LENGTH
    assigned = run.method.training.server.assign(run.server, range(N), Clock(1, 9, -1), run.key)
    assert max(present(to.loss_scale) for to in present(assigned).values()) <= 0.6 + 1e-9


def test_a_factor_that_grows_within_an_epoch_is_capped_and_one_that_vanishes_is_skipped() -> None:
    run = Simulation(perm_two_stage(lr=0.05, lambda_=1e9, bound=0.11, warmup=0, steps=1), task(), Options(rounds=9))
    run.round(0, None)
    server, clock = run.method.training.server, Clock(1, 9, -1)
    assert isinstance(server, ModelRotation)
    state = {**run.server, "mixing": {"weights": torch.eye(N).double()}}
    assigned = present(server.assign(state, range(N), clock, run.key))
    acc = server.begin(state, assigned)
    at_home = sum(to.owner == host for host, to in assigned.items())
    assert acc.capped == at_home
    assert sum(to.loss_scale == 0.0 for to in assigned.values()) == N - at_home
    assert server.measure(server.finish(state, acc, clock), acc)["visits"]["skipped"] == N - at_home


def norms(run: Simulation) -> list[float]:
    models = (personal_model(run, client) for client in range(N))
    return [sum(float(tensor.square().sum()) for tensor in model.values()) ** 0.5 for model in models]


def test_after_an_epoch_models_are_in_the_ball() -> None:
    run = ran(perm(lr=0.3, lambda_=1e6, radius=0.5, **PLAIN), task(), N)
    assert int(run.server["epoch"]) == 1
    assert max(norms(run)) <= 0.5 + 1e-12


@pytest.mark.parametrize("skipped", [0, 2])
def test_models_whose_last_visits_are_skipped_are_projected(skipped: int) -> None:
    """All weights are positive when the epoch begins, and some vanish in its last rounds."""
    run = Simulation(
        perm_two_stage(lr=0.3, lambda_=1e6, radius=0.5, **PLAIN), task(), Options(rounds=N, executor="one-by-one")
    )
    for number in range(N):
        if number == N - 1 - skipped:
            free = max(norms(run))
            run.server["mixing"]["weights"] = torch.zeros(N, N, dtype=torch.float64)
        run.round(number, None)
    assert [record["figures"]["visits"]["skipped"] for record in run.metrics[N - 1 - skipped :]] == [N] * (skipped + 1)
    assert free > 0.5, "the projection has something to do"
    assert max(norms(run)) <= 0.5 + 1e-12


def test_a_client_that_never_replies_does_not_stop_the_epochs_of_the_others() -> None:
    class Absent(Simulation):
        def available(self) -> dict[int, int]:
            found = dict(super().available())
            return {client: count for client, count in found.items() if client != 3 or len(self.metrics) < 2}

    run = Absent(perm_two_stage(lambda_=1e6, **PLAIN), task(), Options(rounds=99, executor="one-by-one"))
    run.run(None, lambda record: None)
    assert int(run.server["epoch"]) >= 99 // (PATIENCE * N + 5)
    idle = [record["figures"]["visits"]["idle"] for record in run.metrics]
    assert max(idle) == N - 1


# Mixing weights.


def populations(clients: int = 8, apart: bool = True) -> Task:
    """Two halves with opposite labels, or one population."""
    each = 60

    def samples(count: int, name: str) -> tuple[Tensor, Tensor]:
        x = uniform(fold(key(1), name), count * 4, dtype=torch.float64).view(count, 4) - 0.5
        return x, (x[:, 0] + x[:, 1] > 0).long()

    x, y = samples(each * clients, "train")
    first = torch.arange(clients).repeat_interleave(each) < clients // 2
    return dealt(x, torch.where(first, y, 1 - y) if apart else y, samples(40, "test"), clients)


@pytest.mark.parametrize("method", [perm(warmup=30, global_lr=0.5), perm_two_stage(warmup=10, steps=5, global_lr=0.5)])
def test_weights_concentrate_on_the_own_half_and_spread_among_equals(method: Method) -> None:
    """With the lambda that follows from the noise of gradients."""
    halves, whole = (weights(ran(method, populations(apart=apart), 11)) for apart in (True, False))
    strangers = halves[:4, 4:].sum() + halves[4:, :4].sum()
    assert float(strangers) < 1e-12
    assert float((1 / halves.square().sum(1)).min()) > 1.5
    assert float((1 / whole.square().sum(1)).median()) > 4


def test_weights_are_learned_each_round_or_each_epoch() -> None:
    records = [ran(perm(every=every, lambda_=1e9, **PLAIN), task(), N + 1).metrics for every in ("round", "epoch")]
    assert [["mixing" in record.get("figures", {}) for record in each] for each in records] == [
        [True] * (N + 1),
        [True] + [False] * (N - 1) + [True],
    ]


def test_steps_towards_the_weights_are_those_of_the_paper() -> None:
    """One step is exact where all clients have equally many samples; else many steps converge to the same."""
    one, exact = (ran(perm(solve=solve, lambda_=0.3, warmup=9), populations(), 2) for solve in (1, "exact"))
    assert torch.allclose(weights(one), weights(exact), atol=1e-12)
    iterated, exact = (ran(perm(solve=solve, lambda_=0.3, warmup=9), task(), 1) for solve in (400, "exact"))
    assert torch.allclose(weights(iterated), weights(exact), atol=1e-6)


def test_clients_that_never_met_have_no_weight_for_each_other() -> None:
    run = Simulation(perm(lambda_=1e6, warmup=99), task(), Options(rounds=99, per_round=2))
    together = torch.eye(N, dtype=torch.bool)
    for number in range(3):
        here = torch.tensor(run.round(number, None)["clients"])
        together[here[:, None], here] = True
    seen = run.server["compared"]["samples"] > 0
    assert bool((weights(run)[seen] > 0).equal(together[seen] & seen))
    assert torch.allclose(weights(run)[~seen], torch.full((), 1 / N).double()), (
        "a client without a comparison has equal weights"
    )


LATE: dict[str, dict[str, Any]] = {
    "some take part": {"per_round": 2},
    "messages are lost": {"channel": Lossy(0.5)},
    "both": {"per_round": 3, "channel": Lossy(0.4)},
}


@pytest.mark.parametrize("late", LATE)
@pytest.mark.parametrize("more", [{}, {"sketch": 20}, {"keep": N}, {"capacities": (1.0, 0.5)}], ids=str)
def test_two_stages_compare_every_client_once_also_when_some_are_late(late: str, more: dict[str, Any]) -> None:
    """At a model that stays, so that the result is that of a first comparison with all clients."""
    on, method = replace(task(), model=network), perm_two_stage(lambda_=2.0, warmup=0, steps=1, batch=8, **more)
    run, all_ = ran(method, on, 40, **LATE[late]), ran(method, on, 1)
    assert bool(run.server["ready"].all())
    assert torch.allclose(weights(run), weights(all_), rtol=0, atol=1e-9)
    assert "rows" not in run.server["compared"], "what was kept for the late ones is let go"
    each = all_.metrics[0]["bytes_up"]["solver.noise"] // N
    replies = sum(record["bytes_up"].get("solver.noise", 0) for record in run.metrics) / each
    assert replies == N if late == "some take part" else replies > N, "compared clients are not asked again"
    numbers = [number for number, record in enumerate(run.metrics) if "mixing" in record.get("figures", {})]
    assert len(numbers) > 1, "some client was late"
    assert max(numbers) < 30, "and then there is nothing to do"


def test_in_two_stages_a_model_rotates_once_its_client_was_compared() -> None:
    method = perm_two_stage(lambda_=1e6, warmup=1, bound=None, steps=2, batch=8)
    run = Simulation(method, task(), Options(rounds=99, per_round=2, executor="one-by-one"))
    waited = 0
    for number in range(12):
        before = {client: personal_model(run, client) for client in range(N)}
        run.round(number, None)
        ready = run.server.get("ready", torch.zeros(N, dtype=torch.bool))
        if number == 0:
            continue
        moved = {client for client in range(N) if not close(personal_model(run, client), before[client])}
        assert moved <= {int(client) for client in ready.nonzero()}
        if "rotation" in run.server:
            table = run.server["rotation"]["table"]
            assert {int(model) for model in table.unique()} <= {-1, *ready.nonzero().view(-1).tolist()}
            assert (table[~ready] == -1).all()
        assert not bool(weights(run)[ready][:, ~ready].any()), "nobody learns from those who were not compared"
        waited += not bool(ready.all())
    assert waited
    assert bool(ready.all())
    assert sum(record["figures"]["visits"]["trained"] for record in run.metrics[1:]) > 0


def test_a_client_without_any_reply_does_not_stop_the_others() -> None:
    class Deaf(Simulation):
        def send_upload(self, client_task: ClientTask, result: Any, ledger: Any) -> Any:
            reply = super().send_upload(client_task, result, ledger)
            return reply._replace(data=None) if client_task.clock.client == 3 else reply

    method = perm_two_stage(lambda_=1e6, warmup=0, bound=None, steps=1, batch=8)
    run = Deaf(method, task(), Options(rounds=12, executor="one-by-one"))
    run.run(None, lambda record: None)
    assert run.server["ready"].tolist() == [True, True, True, False, True]
    assert run.models.known() == [0, 1, 2, 4]
    assert int(run.server["epoch"]) == 3, "in four rounds all four have met"
    assert close(personal_model(run, 3), run.model())


@pytest.mark.parametrize("lam", [None, 5.0])
def test_few_weights_a_client_are_those_of_all_where_all_are_kept(lam: float | None) -> None:
    all_, few = (ran(perm(lambda_=lam, keep=keep, **PLAIN), task(), 4) for keep in (None, N))
    assert torch.allclose(weights(all_), weights(few), atol=1e-12)
    assert all(close(personal_model(all_, client), personal_model(few, client)) for client in range(N))
    two = ran(perm(lambda_=1e9, keep=2, **PLAIN), task(), 2)
    assert ((weights(two) > 0).sum(1) == 2).all()
    assert torch.allclose(weights(two).sum(1), torch.ones(N).double())


def test_a_change_that_would_take_a_model_out_of_range_is_refused() -> None:
    """Both are finite, and their sum is not."""
    huge = {"w": torch.full((2,), 1e308, dtype=torch.float64)}
    run = Simulation(perm(), task(), Options(rounds=1))
    server = run.method.training.server
    acc = server.begin({"params": huge}, {1: Assignment(4, 1.0)})
    arrival = replace(Arrival.of(1, Part(), huge, 1.0), model=huge, owner=4)
    with pytest.raises(PayloadError, match="would not be finite"):
        server.fold(acc, arrival)
    run.models.commit()
    assert run.models.known() == []


# Unequal models.


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)).double()


WIDE = (1.0, 0.5)
"""Of client 0, 2 and 4, and of client 1 and 3."""


def test_a_model_trains_at_a_host_only_what_both_can_hold() -> None:
    """Round by round: a narrow model moves within its width, and at a narrow host within that of the host."""
    on = replace(task(), model=network)
    run = Simulation(perm(lambda_=1e9, capacities=WIDE, **PLAIN), on, Options(rounds=N, executor="one-by-one"))
    for number in range(N):
        before = {client: run.models.get(client).get("params") for client in range(N)}
        run.round(number, None)
        for host, model in timetable(run, weights(run), 1)[number].items():
            rows = 8 if WIDE[model % 2] == WIDE[host % 2] == 1 else 4
            earlier = before[model] or run.server["origin"]
            moved = (personal_model(run, model)["0.weight"] != earlier["0.weight"]).any(1)
            assert bool(moved[:rows].any())
            assert not bool(moved[rows:].any())
    assert [run.client_params(client)["0.weight"].shape[0] for client in range(N)] == [8, 4, 8, 4, 8]


def test_larger_models_are_farther_away() -> None:
    on = replace(task(), model=network)
    run = ran(perm(lambda_=2.0, capacities=WIDE, warmup=9), on, 1)
    compared = run.server["compared"]
    assert compared["size"].tolist() == [83, 43, 83, 43, 83]
    term = (compared["size"] / compared["samples"]).sqrt()
    closest = compared["apart"].clone().fill_diagonal_(torch.inf).amin(1).median()
    z = compared["apart"] + term / term.mean() * closest
    cost = (weights(run) * z).sum(1) + 2.0 * (weights(run) ** 2 / compared["samples"]).sum(1)
    for other in (torch.eye(N).double(), even(N)):
        assert (cost <= (other * z).sum(1) + 2.0 * (other**2 / compared["samples"]).sum(1) + 1e-12).all()


@pytest.mark.parametrize("lam", [0.01, 0.1])
def test_wide_clients_keep_a_weight_for_themselves(lam: float) -> None:
    """With little regularization each client learns from its nearest source, and that is itself."""
    run = ran(perm(lambda_=lam, capacities=WIDE, warmup=9), replace(task(), model=network), 1)
    assert weights(run).argmax(1).tolist() == list(range(N))


# Everywhere the same.


BOTH = {
    "perm": perm(warmup=1, steps=2, batch=8),
    "perm-two-stage": perm_two_stage(warmup=1, steps=2, batch=8),
    "unequal": perm(warmup=1, steps=2, batch=8, capacities=WIDE),
    "sparse": perm(warmup=1, steps=2, batch=8, keep=2),
    "clusters": perm(warmup=1, steps=2, batch=8, clusters=2),
    "sign": perm(warmup=1, steps=2, batch=8).with_parts(codec=OnWeights(TopK(0.2))),
}


@pytest.mark.parametrize("name", BOTH)
def test_an_interrupted_run_ends_with_the_same_bytes(name: str, tmp_path: Path) -> None:
    check_method(BOTH[name], tmp_path, replace(tiny_task(4), model=lambda: network().float()), rounds=4)


@pytest.mark.parametrize("name", BOTH)
def test_deployed_it_is_the_same(name: str, tmp_path: Path) -> None:
    pytest.importorskip("flwr")
    from helpers.flower_runs import agree, deploy, nodes, simulated
    from helpers.local_grid import LocalGrid

    on, method = replace(tiny_task(4), model=_float), BOTH[name]
    deployed = deploy(method, on, LocalGrid(nodes(method, on, tmp_path)), rounds=4)
    wanted = simulated(method, on, rounds=4)
    agree(deployed, wanted, tmp_path)
    figures = ("accuracy", "personal_accuracy", "worst_tenth_accuracy", "bytes_up", "bytes_down", "flops", "visits")
    for record, other in zip(deployed.metrics, wanted.metrics, strict=True):
        assert all(record.get(name) == other.get(name) for name in figures)


@pytest.mark.parametrize(
    "options", [{"per_round": 2}, {"min_replies": 0.5}], ids=["some take part", "replies are lost"]
)
def test_deployed_two_stages_wait_for_late_clients(options: dict[str, Any], tmp_path: Path) -> None:
    pytest.importorskip("flwr")
    from flwr.app import MessageType

    from helpers.flower_runs import NUMBERS, agree, altered, deploy, nodes, rewritten, simulated
    from helpers.local_grid import LocalGrid

    on, method = replace(tiny_task(4), model=_float), BOTH["perm-two-stage"]
    handles, lost = nodes(method, on, tmp_path), [(1, 2), (2, 2)] if "min_replies" in options else []
    for number, client in lost:
        kept = handles[NUMBERS[client]]
        handles[NUMBERS[client]] = altered(kept, lambda reply: rewritten(reply, b"lost"), MessageType.TRAIN, [number])
    deployed = deploy(method, on, LocalGrid(handles), rounds=8, **options)
    shared = {name: value for name, value in options.items() if name != "min_replies"}
    wanted = simulated(method, on, lost=lost, rounds=8, **shared)
    agree(deployed, wanted, tmp_path)
    numbers = [number for number, record in enumerate(wanted.metrics) if "mixing" in record.get("figures", {})]
    assert numbers[0] == 1
    assert numbers == ([1, 3] if lost else numbers)
    assert len(numbers) > 1
    assert bool(deployed.server["ready"].all())


def _float() -> nn.Module:
    return network().float()


def test_a_deployed_round_that_does_not_count_moves_no_model(tmp_path: Path) -> None:
    """One node is refused in the first try of a round: that is tried again, and ends as if it had never been."""
    pytest.importorskip("flwr")
    from helpers.flower_runs import NUMBERS, agree, deploy, nodes, rewritten, simulated
    from helpers.local_grid import LocalGrid

    on, method = replace(tiny_task(4), model=_float), perm(warmup=1, steps=2, batch=8, lambda_=1e6)
    handles, tries = nodes(method, on, tmp_path), [0]
    honest = handles[NUMBERS[2]]

    def once(message: Any) -> Any:
        from flwr.app import MessageType

        from gossamer.engines.flower.messages import word

        reply = honest(message)
        late = message.metadata.message_type == MessageType.TRAIN and word(message, "round", int) == 2
        tries[0] += late
        return rewritten(present(reply), b"not a message") if late and tries[0] == 2 else reply

    handles[NUMBERS[2]] = once
    deployed = deploy(method, on, LocalGrid(handles), rounds=4, min_replies=1.0)
    assert len(deployed.metrics[2]["void"]) == 1
    agree(deployed, simulated(method, on, rounds=4), tmp_path)


# Mistakes.


@pytest.mark.parametrize(
    ("parts", "says"),
    [
        ({"view": WidthSlice((0.5,), order="rolling")}, "nested views"),
        ({"view": WidthSlice((0.5,), True, "static")}, "nested views"),
        ({"codec": OnWeights(Feedback(TopK()))}, "without client state"),
        ({"send": "model"}, "send='change'"),
        ({"labels": "own"}, "labels='all'"),
    ],
)
def test_what_makes_no_sense_is_refused(parts: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        Simulation(perm().with_parts(**parts), task(), Options(rounds=1))


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: perm(bound=0), "bound must be positive"),
        (lambda: perm(warmup=-1), "warmup must not be negative"),
        (lambda: perm(lambda_=-1.0), "lambda_ must be finite and not negative, got -1"),
        (lambda: perm(lambda_=float("inf")), "lambda_ must be finite and not negative, got inf"),
        (lambda: perm_two_stage(lambda_=float("nan")), "lambda_ must be finite and not negative, got nan"),
        (lambda: GradientSimilarity(lam=float("inf")), r"GradientSimilarity\.lam must be finite and not negative"),
        (lambda: perm(global_lr=float("nan")), r"GradientSimilarity\.lr must be finite and not negative, got nan"),
        (lambda: GradientSimilarity(once=3), "needs a fixed global model"),
        (lambda: perm(solve=0), "exact or a positive number of steps"),
        (lambda: perm(solve=3, lambda_=0.0), "positive lam"),
        (lambda: perm(solve=3, keep=2), "needs exact weights"),
        (lambda: perm(keep=0), "keep must be at least 1"),
        (lambda: perm(sketch=0), "sketch must be at least 1"),
        (lambda: perm(probe=0), "probe must be at least 2"),
        (lambda: perm(capacities=(1.0, 0.5), keep=2), "need full gradients"),
        (lambda: perm(capacities=(1.0, 0.5), sketch=2), "need full gradients"),
        (lambda: perm(fleet=Fleet((Device("phone", 5, 2**20, 1e9),))), "probe must be a number"),
        (lambda: GradientSimilarity(complexity=-1), "complexity must be finite and not negative"),
        (lambda: GradientSimilarity(complexity=1, keep=2), "unequal size"),
        (lambda: perm(every="year"), "round or epoch"),  # type: ignore[arg-type]
        (lambda: GradientSimilarity("batches"), "samples or uniform"),  # type: ignore[arg-type]
        (lambda: ModelRotation(largest=0), "largest must be positive"),
        (lambda: ModelRotation(radius=0), "radius must be positive"),
    ],
)
def test_mistakes_are_reported(make: Callable[[], Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        make()


def test_a_section_that_cannot_be_one_is_refused() -> None:
    run = Simulation(perm(), task(), Options(rounds=1))
    exchange, (clock, at) = run.method.exchanges[0], (Clock(0, 1, 0), key(0))
    common = exchange.make_common(run.server, clock, at)
    data = exchange.make_download(run.server, clock, at, GLOBAL, None, common).data
    answer = (
        Client(run.method, run.objective, exchange).do(ClientTask(clock, at, data, {}, run.task.split.train(0))).result
    )
    assert isinstance(answer, ClientResult)
    message, acc = unpack(answer.sent.data), exchange.server.begin(run.server, {0: GLOBAL})
    noise = message.payload["@noise"]

    def receive(sections: dict[str, Tensor]) -> None:
        rest = {name: array for name, array in message.payload.items() if not name.startswith("@")}
        sent = address(message.head, Body.of({**rest, **sections}))
        arrival, _ = exchange.read_upload(sent, run.server, clock, at, GLOBAL, None)
        exchange.server.fold(acc, arrival)

    for sections in (
        {},
        {"@noise": -torch.ones_like(noise)},
        {"@noise": noise * torch.nan},
        {"@noise": noise.repeat(2)},
        {"@noise": noise.to(torch.int64)},
        {"@x": noise},
    ):
        with pytest.raises(PayloadError, match="noise"):
            receive(sections)
    with pytest.raises(PayloadError, match="a section that no part reads: x"):
        receive({"@noise": noise, "@x": noise})
    assert not bool(acc.total.vector.any()), "what is refused does not count"
    assert acc.total.weight == 0
    receive({"@noise": noise})
    assert acc.total.weight == 1


def test_recipes_are_there_by_name() -> None:
    assert METHODS["perm"]() == perm()
    assert METHODS["perm-two-stage"]().exchanges[1].solver == GradientProbe()
    assert perm(capacities=WIDE).view == WidthSlice(WIDE, order="static")
    assert perm().codec == Dense()
