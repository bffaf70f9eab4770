"""The simulator: what a run computes, whatever order things come in and whoever fails."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from gossamer import (
    Clock,
    ConfigError,
    Feedback,
    Lossy,
    Method,
    Options,
    PayloadError,
    Perfect,
    RunError,
    Split,
    Task,
    TopK,
    centralised,
    fedavg,
    fedprox,
    fedsgd,
    local,
    simulate,
)
from gossamer.engines import executors
from gossamer.engines.client import Done, Order
from gossamer.engines.executors import OneByOne
from gossamer.engines.inbox import Inbox
from gossamer.engines.simulate import Simulation
from gossamer.objective import Objective
from gossamer.random import key
from gossamer.runs import read_metrics
from gossamer.testing import tiny_task


def final(result: Any) -> dict[str, list[float]]:
    return {name: tensor.tolist() for name, tensor in result.module.state_dict().items()}


def gradient_descent(task: Task, lr: float, steps: int, seed: int = 0) -> nn.Module:
    """The slow obvious version: one model, all samples, plain gradient steps."""
    module = Objective(task, "cpu", key(seed)).build()
    x, y = (t[torch.from_numpy(task.split.train_index)] for t in (task.data.train.x, task.data.train.y))
    for _ in range(steps):
        module.zero_grad()
        nn.functional.cross_entropy(module(x), y).backward()  # type: ignore[no-untyped-call]
        with torch.no_grad():
            for parameter in module.parameters():
                assert parameter.grad is not None
                parameter -= lr * parameter.grad
    return module


@pytest.mark.parametrize(
    "method", [fedavg(lr=0.3, steps=1, batch=None), fedsgd(lr=0.3), centralised(lr=0.3, steps=1, batch=None)]
)
def test_one_full_batch_step_is_centralised_gradient_descent(method: Any) -> None:
    task = tiny_task(dtype=torch.float64)
    assert len(set(task.split.sizes())) > 1, "clients of unequal size, or the weights are not tested"
    ours = simulate(method, task, rounds=10).module.state_dict()
    theirs = gradient_descent(task, 0.3, 10).state_dict()
    for name, tensor in theirs.items():
        torch.testing.assert_close(ours[name], tensor, rtol=0, atol=1e-9)


def test_uniform_weights_are_another_mean() -> None:
    task = tiny_task()
    assert final(simulate(fedsgd(), task, rounds=2)) != final(simulate(fedsgd(weights="uniform"), task, rounds=2))


def test_fedprox_without_pull_is_fedavg_and_with_pull_stays_closer() -> None:
    task = tiny_task()
    start = Objective(task, "cpu", key(0)).initial()

    def distance(method: Any) -> float:
        state = simulate(method, task, rounds=1).module.state_dict()
        return float(sum((state[n] - start[n]).square().sum() for n in start))

    assert distance(fedprox(mu=0)) == distance(fedavg())
    assert distance(fedprox(mu=5)) < 0.9 * distance(fedavg())


def in_order(places: list[int]) -> Any:
    """An executor that trains the cohort in another order than it was asked to."""

    class InOrder(OneByOne):
        def run(self, orders: Iterable[Order]) -> Iterator[Done]:
            waiting = list(orders)
            return super().run(waiting[place] for place in places)

    return InOrder


@pytest.mark.parametrize("places", [[4, 3, 2, 1, 0], [2, 0, 4, 1, 3], [0, 1, 2, 3, 4]])
def test_the_order_of_arrival_does_not_matter(places: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    task = tiny_task()
    reference = simulate(fedavg(), task, rounds=3)
    monkeypatch.setitem(executors.EXECUTORS, "one-by-one", in_order(places))
    shuffled = simulate(fedavg(), task, rounds=3)
    assert final(shuffled) == final(reference)
    assert [r["loss"] for r in shuffled.metrics] == [r["loss"] for r in reference.metrics]


def test_an_inbox_hands_on_in_client_order_and_waits_for_nobody_who_will_not_come() -> None:
    got: list[tuple[int, bytes]] = []
    inbox = Inbox([2, 5, 9], lambda client, data: got.append((client, data)))
    inbox.put(9, b"c")
    assert got == []
    inbox.put(2, b"a")
    assert got == [(2, b"a")]
    inbox.put(5, None)
    assert got == [(2, b"a"), (9, b"c")]


def test_every_sample_is_trained_on_once_an_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Samples carry their own number in the first pixel, and the loss notes which came by."""
    seen: list[int] = []
    n = 37
    x = torch.arange(n, dtype=torch.float32).view(n, 1)
    y = torch.zeros(n, dtype=torch.long)

    class Recorder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(1, 2)

        def forward(self, x: Tensor) -> Tensor:
            if self.training:
                seen.extend(int(v) for v in x[:, 0])
            out: Tensor = self.layer(x * 0)
            return out

    monkeypatch.setattr(Objective, "flops", lambda *args: 0)  # it runs one more pass for each shape
    task = Task.of(Recorder, (x, y), (x, y), clients=5, split="dirichlet:0.5")
    simulation = Simulation(fedavg(epochs=2, batch=4), task, Options(rounds=1))
    seen.clear()
    simulation.round(0, None)
    assert sorted(seen) == sorted([*range(n)] * 2)


def test_bytes_are_those_of_the_messages() -> None:
    task = tiny_task()
    entries = 6 * 8 + 8 + 8 * 3 + 3
    record = simulate(fedavg(), task, rounds=1).metrics[0]
    for way in ("bytes_up", "bytes_down"):
        assert record[way]["values"] == 5 * 4 * entries
        assert 0 < record[way]["overhead"] <= 5 * 64
    silent = simulate(local(), task, rounds=1).metrics[0]
    assert silent["bytes_up"] == silent["bytes_down"] == {}


def test_operations_add_up_over_ragged_batches() -> None:
    task = tiny_task()
    record = simulate(fedavg(epochs=1, batch=7), task, rounds=1).metrics[0]
    samples = int(task.split.sizes().sum())
    assert record["flops"] == samples * (3 * 2 * (6 * 8 + 8 * 3) - 2 * 6 * 8)


def test_the_cohort_has_the_asked_size_and_changes_by_round_and_seed() -> None:
    task = tiny_task(clients=20)
    drawn = {
        seed: [r["clients"] for r in simulate(fedsgd(), task, rounds=3, per_round=4, seed=seed).metrics]
        for seed in (1, 2)
    }
    for cohorts in drawn.values():
        assert all(len(set(c)) == 4 and c == sorted(c) for c in cohorts)
        assert cohorts[0] != cohorts[1]
    assert drawn[1] != drawn[2]


def test_local_clients_learn_alone_and_are_never_averaged() -> None:
    task = tiny_task()
    simulation = Simulation(local(), task, Options(rounds=2, per_round=2))
    simulation.run(None, lambda record: None)
    trained = {c for record in simulation.metrics for c in record["clients"]}
    assert set(simulation.clients.known()) == trained
    assert all(torch.equal(simulation.model()[n], simulation.like[n]) for n in simulation.like)
    first, second = sorted(trained)[:2]
    a, b = (simulation.personal(c) for c in (first, second))
    assert not torch.equal(a["0.weight"], b["0.weight"])


def test_accuracy_of_local_is_the_mean_of_what_clients_deploy() -> None:
    task = tiny_task()
    simulation = Simulation(local(), task, Options(rounds=1))
    record = simulation.round(0, None)
    x, y = task.data.test.x, task.data.test.y
    each = [simulation.objective.evaluate(simulation.personal(c), x, y)[1].double().mean().item() for c in range(5)]
    assert record["accuracy"] == pytest.approx(np.mean(each))


def test_centralised_deploys_one_model_to_all() -> None:
    task = tiny_task()
    result = simulate(centralised(), task, rounds=3)
    assert result.metrics[0]["clients"] == [0]
    accuracy = result.summary()["accuracy"]
    x, y = task.data.test.x, task.data.test.y
    assert accuracy == pytest.approx((result.module.eval()(x).argmax(1) == y).double().mean().item())


def test_personal_figures_are_means_over_clients_and_over_the_worst_tenth() -> None:
    task = tiny_task(clients=11)
    result = simulate(fedavg(), task, rounds=1)
    right = result.module.eval()(task.data.test.x).argmax(1) == task.data.test.y
    each = [right[torch.from_numpy(task.split.test(c))].double().mean().item() for c in range(11)]
    assert result.metrics[0]["personal_accuracy"] == pytest.approx(np.mean(each))
    assert result.metrics[0]["worst_tenth_accuracy"] == pytest.approx(np.mean(sorted(each)[:2]))


def test_a_client_without_test_samples_counts_in_no_personal_figure() -> None:
    task = tiny_task()
    start = task.split.test_start.copy()
    start[1] = 0
    fewer = task.with_split(replace(task.split, test_start=start))
    assert len(fewer.split.test(0)) == 0
    record = simulate(fedavg(), fewer, rounds=1).metrics[0]
    assert 0 <= record["personal_accuracy"] <= 1
    nobody = Split(
        task.split.train_index, task.split.train_start, np.array([], dtype=np.int64), np.zeros(6, dtype=np.int64)
    )
    record = simulate(fedavg(), task.with_split(nobody), rounds=1).metrics[0]
    assert record["personal_accuracy"] is None


def test_evaluation_comes_as_often_as_asked_and_after_the_last_round() -> None:
    records = simulate(fedsgd(), tiny_task(), rounds=5, eval_every=2).metrics
    assert [r["round"] for r in records if "accuracy" in r] == [2, 4, 5]


def test_running_statistics_travel_and_are_averaged() -> None:
    torch.manual_seed(0)
    x, y = torch.randn(40, 6) + 3, torch.arange(40) % 2
    task = Task.of(lambda: nn.Sequential(nn.BatchNorm1d(6), nn.Linear(6, 2)), (x, y), (x, y), clients=4)
    result = simulate(fedavg(epochs=1, batch=None), task, rounds=1)
    sizes = task.split.sizes()
    means = torch.stack([0.1 * x[torch.from_numpy(task.split.train(c))].mean(0) for c in range(4)])
    wanted = (means * torch.from_numpy(sizes)[:, None]).sum(0) / sizes.sum()
    torch.testing.assert_close(result.module.state_dict()["0.running_mean"], wanted.float())
    assert result.metrics[0]["bytes_up"]["values"] == 4 * 4 * (6 * 4 + 6 * 2 + 2)


def test_dropout_repeats_with_the_seed() -> None:
    torch.manual_seed(0)
    x, y = torch.randn(40, 6), torch.arange(40) % 2
    task = Task.of(lambda: nn.Sequential(nn.Dropout(0.5), nn.Linear(6, 2)), (x, y), (x, y), clients=4)
    runs = [simulate(fedavg(), task, rounds=2, seed=s) for s in (1, 1, 2)]
    assert final(runs[0]) == final(runs[1]) != final(runs[2])


def test_injected_failures_are_named_and_the_rest_goes_on() -> None:
    task = tiny_task(clients=20)
    records = simulate(fedavg(), task, rounds=5, failure_rate=0.3).metrics
    failed = sum(len(r["failures"]) for r in records)
    assert 10 < failed < 55
    record = records[0]
    assert all(f["reason"] == "failed as asked (failure rate)" for f in record["failures"])
    entries = record["bytes_down"]["values"] // 20
    assert record["bytes_up"]["values"] == entries * (20 - len(record["failures"])), "who fails sends nothing"


def test_all_failing_as_asked_changes_nothing_and_goes_on() -> None:
    task = tiny_task()
    result = simulate(fedavg(), task, rounds=5, failure_rate=1.0)
    start = Objective(task, "cpu", key(0)).initial()
    assert all(torch.equal(result.module.state_dict()[n], start[n]) for n in start)
    assert result.metrics[-1]["train_loss"] is None


class Fragile(nn.Module):
    """Fails whenever it meets a sample with a large first feature in training."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        if self.training and (x[:, 0] > 5).any():
            raise ValueError("sensor broken")
        out: Tensor = self.layer(x)
        return out


def fragile_task(broken: slice) -> Task:
    x, y = torch.zeros(40, 2), torch.arange(40) % 2
    task = Task.of(Fragile, (x, y), (x, y), clients=4)
    for client in range(*broken.indices(4)):
        x[torch.from_numpy(task.split.train(client)), 0] = 9.0
    x[:2] = 0  # what a run is tried out on before it starts
    return task


def test_a_client_that_raises_is_named_with_its_reason() -> None:
    records = simulate(fedavg(), fragile_task(slice(2, 3)), rounds=4).metrics
    assert [f for r in records for f in r["failures"]] == [{"client": 2, "reason": "ValueError: sensor broken"}] * 4
    assert all(r["accuracy"] is not None for r in records)


def test_a_run_in_which_everybody_keeps_failing_stops_and_says_why() -> None:
    seen: list[Any] = []
    with pytest.raises(
        RunError, match="every client failed in 3 rounds in a row; the last said: client 3: ValueError: sensor"
    ):
        simulate(fedavg(), fragile_task(slice(0, 4)), rounds=10, watch=seen.append)
    assert len(seen) == 3


def test_training_that_diverges_is_refused_not_averaged() -> None:
    task = tiny_task()
    seen: list[Any] = []
    with pytest.raises(RunError, match="not finite"):
        simulate(fedavg(lr=1e30), task, rounds=5, watch=seen.append)
    assert seen[0]["accuracy"] is not None, "the model stays what it was"


def test_a_global_model_that_overflows_ends_the_run_and_says_why(tmp_path: Path) -> None:
    """Every change is finite, and their sum is not: the round does not count, and those before are kept."""
    task, seen, lr = tiny_task(), list[Any](), 3e38
    with pytest.raises(RunError, match=r"global model is not finite after round 1: .* smaller learning rate \(--lr"):
        simulate(fedsgd(lr=lr), task, rounds=3, out=tmp_path / "run", watch=seen.append)
    assert seen == []
    assert read_metrics(tmp_path / "run") == []
    with pytest.raises(RunError, match="not finite after round 1"):
        simulate(fedsgd(lr=lr), task, rounds=3, out=tmp_path / "run", resume=True)


def test_a_lossy_channel_loses_uploads_but_counts_their_bytes() -> None:
    task = tiny_task(clients=20)
    lossy = simulate(fedavg(), task, rounds=2, channel=Lossy(0.5)).metrics
    perfect = simulate(fedavg(), task, rounds=2, channel=Perfect()).metrics
    assert lossy[0]["bytes_up"] == perfect[0]["bytes_up"]
    assert 2 <= len(lossy[0]["lost"]) <= 18
    assert lossy[0]["failures"] == []
    everything = simulate(fedavg(), task, rounds=1, channel=Lossy(1.0))
    start = Objective(task, "cpu", key(0)).initial()
    assert all(torch.equal(everything.module.state_dict()[n], start[n]) for n in start)


def test_options_out_of_range_are_listed_all_at_once() -> None:
    with pytest.raises(ConfigError) as refused:
        Options(rounds=0, per_round=0, seed=-1, device="tpu", executor="fast", failure_rate=2, eval_every=0)
    assert len(refused.value.mistakes) == 7
    with pytest.raises(ConfigError, match="only 5 clients"):
        simulate(fedavg(), tiny_task(), rounds=1, per_round=6)


def test_arrays_that_do_not_fit_are_refused() -> None:
    x, y = torch.zeros(4, 2), torch.zeros(4, dtype=torch.long)
    with pytest.raises(ConfigError) as refused:
        Task.of(Fragile, (x, y[:3]), (x * torch.nan, y), clients=2)
    assert len(refused.value.mistakes) == 2
    for labels in (y.float(), y - 1, y.view(4, 1)):
        with pytest.raises(ConfigError, match=r"train: y must hold one label a sample"):
            Task.of(Fragile, (x, labels), (x, y), clients=2)


def test_every_second_of_a_round_belongs_to_one_phase() -> None:
    record = simulate(fedavg(), tiny_task(), rounds=1).metrics[0]
    assert set(record["seconds"]) == {"other", "prepare", "train", "brief", "receive", "evaluate"}
    assert record["memory_bytes"] > 10_000_000


def test_a_client_whose_message_is_refused_keeps_what_it_would_keep_of_a_lost_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    method = fedavg(epochs=1).with_parts(codec=Feedback(TopK(0.3)))
    lost = Simulation(method, tiny_task(), Options(rounds=1, channel=Lossy(1.0)))
    lost.round(0, None)
    refused = Simulation(method, tiny_task(), Options(rounds=1))
    receive = Method.receive

    def fussy(self: Method, acc: Any, data: Any, state: Any, clock: Clock, *rest: Any) -> Any:
        if clock.client == 2:
            raise PayloadError("not that one")
        return receive(self, acc, data, state, clock, *rest)

    monkeypatch.setattr(Method, "receive", fussy)
    record = refused.round(0, None)
    assert [failure["client"] for failure in record["failures"]] == [2]
    for client in range(5):
        mine, other = (run.clients.get(client)["codec"]["owed"] for run in (refused, lost))
        same = all(torch.equal(mine[name], other[name]) for name in mine)
        assert same == (client == 2)
