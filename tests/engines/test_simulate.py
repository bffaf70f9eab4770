"""The simulator: results of runs, in any order of arrival and with failures."""

import traceback
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from gossamer import (
    SGD,
    Clock,
    ConfigError,
    Feedback,
    Full,
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
    compose,
    fedavg,
    fedprox,
    fedsgd,
    local,
    simulate,
)
from gossamer.core.bound import BoundExchange
from gossamer.core.random import key
from gossamer.core.types import Flops
from gossamer.core.wire import Frame
from gossamer.engines import executors
from gossamer.engines.client import ClientTask, TaskOutcome
from gossamer.engines.executors import OneByOne
from gossamer.engines.inbox import ClientReply, Inbox
from gossamer.engines.metrics import Ledger
from gossamer.engines.simulation import Simulation
from gossamer.runs.records import read_metrics
from gossamer.tasks.objective import Objective
from gossamer.testing import tiny_task
from helpers.tasks import Fragile


def final(result: Any) -> dict[str, list[float]]:
    return {name: tensor.tolist() for name, tensor in result.model.state_dict().items()}


def gradient_descent(task: Task, lr: float, steps: int, seed: int = 0) -> nn.Module:
    """The slow obvious version: one model, all samples, plain gradient steps."""
    module = Objective(task, "cpu", key(seed)).build()
    x, y = (t[torch.from_numpy(task.split.train_index)] for t in (task.data.train.x, task.data.train.y))
    for _ in range(steps):
        module.zero_grad()
        nn.functional.cross_entropy(module(x), y).backward()
        with torch.no_grad():
            for parameter in module.parameters():
                assert parameter.grad is not None
                parameter.sub_(lr * parameter.grad)
    return module


def keep_in(seen: list[Any]) -> Callable[[dict[str, Any], Any], None]:
    return lambda record, run: seen.append(record)


@pytest.mark.parametrize(
    "method", [fedavg(lr=0.3, steps=1, batch=None), fedsgd(lr=0.3), centralised(lr=0.3, steps=1, batch=None)]
)
def test_one_full_batch_step_is_centralised_gradient_descent(method: Any) -> None:
    task = tiny_task(dtype=torch.float64)
    assert len(set(task.split.sizes())) > 1, "clients of unequal size, or the weights are not tested"
    ours = simulate(method, task, rounds=10).model.state_dict()
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
        state = simulate(method, task, rounds=1).model.state_dict()
        return float(sum((state[n] - start[n]).square().sum() for n in start))

    assert distance(fedprox(mu=0)) == distance(fedavg())
    assert distance(fedprox(mu=5)) < 0.9 * distance(fedavg())


def in_order(places: list[int]) -> Any:
    """An executor that trains the cohort in another order than it was asked to."""

    class InOrder(OneByOne):
        def run(self, orders: Iterable[ClientTask]) -> Iterator[TaskOutcome]:
            waiting = list(orders)
            return super().run(waiting[index] for index in places)

    return InOrder


@pytest.mark.parametrize("places", [[4, 3, 2, 1, 0], [2, 0, 4, 1, 3], [0, 1, 2, 3, 4]])
def test_the_order_of_arrival_does_not_matter(places: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    task = tiny_task()
    reference = simulate(fedavg(), task, rounds=3)
    monkeypatch.setitem(executors.EXECUTORS, "one-by-one", in_order(places))
    shuffled = simulate(fedavg(), task, rounds=3)
    assert final(shuffled) == final(reference)
    assert [r["loss"] for r in shuffled.metrics] == [r["loss"] for r in reference.metrics]


def test_an_inbox_delivers_in_client_order_and_skips_failed_clients() -> None:
    got: list[tuple[int, ClientReply]] = []
    inbox = Inbox([2, 5, 9], lambda client, reply: got.append((client, reply)))
    first, never, last = ClientReply(Frame(b"a")), ClientReply(), ClientReply(Frame(b"c"))
    inbox.put(9, last)
    assert got == []
    inbox.put(2, first)
    assert got == [(2, first)]
    inbox.put(5, never)
    assert got == [(2, first), (5, never), (9, last)]


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

    monkeypatch.setattr(Objective, "flops", lambda *args: Flops(0, 0))  # it runs one more pass for each shape
    task = Task.of(Recorder, (x, y), (x, y), clients=5, split="dirichlet:0.5")
    simulation = Simulation(fedavg(epochs=2, batch=4), task, Options(rounds=1))
    seen.clear()
    simulation.round(0, None)
    assert sorted(seen) == sorted([*range(n)] * 2)


def test_bytes_are_those_of_the_messages() -> None:
    task = tiny_task()
    entries = 6 * 8 + 8 + 8 * 3 + 3
    record = simulate(fedavg(), task, rounds=1).metrics[0]
    for way, kind in (("bytes_up", "codec.values"), ("bytes_down", "down.values")):
        assert record[way][kind] == 5 * 4 * entries
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
    a, b = (simulation.client_params(c) for c in (first, second))
    assert not torch.equal(a["0.weight"], b["0.weight"])


def test_accuracy_of_local_is_the_mean_of_what_clients_deploy() -> None:
    task = tiny_task()
    simulation = Simulation(local(), task, Options(rounds=1))
    record = simulation.round(0, None)
    x, y = task.data.test.x, task.data.test.y
    each = [simulation.objective.evaluate(simulation.client_params(c), x, y).values()[0] for c in range(5)]
    assert record["accuracy"] == pytest.approx(np.mean(each))


def test_centralised_deploys_one_model_to_all() -> None:
    task = tiny_task()
    result = simulate(centralised(), task, rounds=3)
    assert result.metrics[0]["clients"] == [0]
    accuracy = result.summary()["accuracy"]
    x, y = task.data.test.x, task.data.test.y
    assert accuracy == pytest.approx((result.model.eval()(x).argmax(1) == y).double().mean().item())


def test_personal_figures_are_means_over_clients_and_over_the_worst_tenth() -> None:
    task = tiny_task(clients=11)
    result = simulate(fedavg(), task, rounds=1)
    right = result.model.eval()(task.data.test.x).argmax(1) == task.data.test.y
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
    torch.testing.assert_close(result.model.state_dict()["0.running_mean"], wanted.float())
    assert result.metrics[0]["bytes_up"]["codec.values"] == 4 * 4 * (6 * 4 + 6 * 2 + 2)


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
    assert all(f["reason"] == "simulated failure (failure_rate)" for f in record["failures"])
    entries = record["bytes_down"]["down.values"] // 20
    assert record["bytes_up"]["codec.values"] == entries * (20 - len(record["failures"])), "who fails sends nothing"


@pytest.mark.parametrize("per_round", [1, 5])
def test_all_failing_as_asked_changes_nothing_and_goes_on(per_round: int) -> None:
    task = tiny_task()
    result = simulate(fedavg(), task, rounds=5, per_round=per_round, failure_rate=1.0)
    assert [len(record["failures"]) for record in result.metrics] == [per_round] * 5
    start = Objective(task, "cpu", key(0)).initial()
    assert all(torch.equal(result.model.state_dict()[n], start[n]) for n in start)
    assert result.metrics[-1]["train_loss"] is None


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


@pytest.mark.parametrize("executor", ["one-by-one", "stacked", pytest.param("side-by-side", marks=pytest.mark.slow)])
def test_a_round_in_which_everybody_fails_for_one_reason_ends_the_run_at_once(executor: str) -> None:
    seen: list[Any] = []
    with pytest.raises(RunError, match=r"^all 4 clients failed in round 1: ValueError: sensor broken$") as stopped:
        simulate(
            fedavg(),
            fragile_task(slice(0, 4)),
            rounds=10,
            executor=executor,
            callbacks=[keep_in(seen)],
        )
    assert seen == [], "the round is not recorded"
    cause = stopped.value.__cause__
    assert isinstance(cause, ValueError)
    assert str(cause) == "sensor broken"
    where = "".join(traceback.format_exception(cause))
    assert "in forward" in where, "the place of the error is reported"
    notes = getattr(cause, "__notes__", [])
    if executor == "side-by-side":
        (note,) = notes
        assert note.startswith("Traceback (most recent call last)"), "it happened in another process"
        assert note.endswith("ValueError: sensor broken")
    else:
        assert notes == []


class UnsendableError(Exception):
    """An error that cannot be sent to another process."""

    def __init__(self, one: str, two: str) -> None:
        super().__init__(f"{one} {two}")


class Unsent(SGD):
    """Fails with a custom error."""

    def step(self, *args: Any) -> Any:
        raise UnsendableError("no", "way")


def test_a_cause_that_cannot_be_pickled_is_reported_as_text() -> None:
    with pytest.raises(RunError, match="all 5 clients failed in round 1: UnsendableError: no way") as stopped:
        simulate(compose(Full(), Unsent()), tiny_task(), rounds=2, executor="side-by-side")
    assert isinstance(stopped.value.__cause__, RuntimeError)
    assert "UnsendableError: no way" in str(stopped.value.__cause__)
    assert "in step" in str(stopped.value.__cause__), "its traceback is kept"


def test_one_client_alone_that_fails_is_named() -> None:
    with pytest.raises(RunError, match=r"client \d failed in round 1: ValueError: sensor broken"):
        simulate(fedavg(), fragile_task(slice(0, 4)), rounds=3, per_round=1)


def test_messages_that_are_all_refused_end_the_run_too(monkeypatch: pytest.MonkeyPatch) -> None:
    refuse(monkeypatch, range(5))
    with pytest.raises(RunError, match="all 5 clients failed in round 1: refused: not that one") as stopped:
        simulate(fedavg(), tiny_task(), rounds=3)
    assert isinstance(stopped.value.__cause__, PayloadError)


@dataclass(frozen=True)
class Sick(SGD):
    """Fails starting at some round, with one reason for all clients or one each, until it is repaired.

    sick: the first round in which it fails
    alike: whether all clients fail for the same reason
    """

    sick: int = 0
    alike: bool = True
    cured: ClassVar[bool] = False

    def hyperparams(self, clock: Clock) -> dict[str, float]:
        if clock.round >= self.sick and not self.cured:
            raise ValueError("fever" if self.alike else f"fever of client {clock.client}")
        return super().hyperparams(clock)


@pytest.fixture
def cure(monkeypatch: pytest.MonkeyPatch) -> Callable[[bool], None]:
    return lambda well: monkeypatch.setattr(Sick, "cured", well)


def sick(rounds: int, alike: bool = True) -> Method:
    """A first exchange that moves the model, and a second that fails, of which clients remember things."""
    first = compose(Full(), SGD(steps=1, batch=None)).training
    return compose(Full(), Sick(steps=1, sick=rounds, alike=alike), Feedback(TopK(0.2)), before=(first,))


@pytest.mark.parametrize("executor", ["one-by-one", pytest.param("side-by-side", marks=pytest.mark.slow)])
def test_a_round_that_ended_a_run_is_tried_again(executor: str, cure: Callable[[bool], None], tmp_path: Path) -> None:
    """What its first exchange changed is undone, and the second try ends where an undisturbed run does."""
    task, seen, out = tiny_task(), list[Any](), tmp_path / "run"
    options: dict[str, Any] = {"rounds": 4, "per_round": 3, "executor": executor}
    for resume in (False, True, True):
        with pytest.raises(RunError, match="all 3 clients failed in round 3: ValueError: fever"):
            simulate(sick(2), task, out=out, resume=resume, callbacks=[keep_in(seen)], **options)
        assert [record["round"] for record in read_metrics(out)] == [1, 2]
    assert [record["round"] for record in seen] == [1, 2]
    cure(True)
    found = simulate(sick(2), task, out=out, resume=True, **options)
    whole = simulate(sick(2), task, out=tmp_path / "whole", **options)
    assert final(found) == final(whole)
    for file in sorted((tmp_path / "whole/clients").iterdir()):
        assert (out / "clients" / file.name).read_bytes() == file.read_bytes()


def test_a_round_that_does_not_count_leaves_server_and_clients_as_they_were(cure: Callable[[bool], None]) -> None:
    run = Simulation(sick(1), tiny_task(), Options(rounds=2))
    run.round(0, None)
    server, known = run.server, {client: run.clients.get(client) for client in run.clients.known()}
    with pytest.raises(RunError, match="all 5 clients failed in round 2"):
        run.round(1, None)
    assert run.server is server
    assert known
    assert all(run.clients.get(client) is state for client, state in known.items())
    assert len(run.metrics) == 1
    cure(True)
    run.round(1, None)
    whole = Simulation(sick(1), tiny_task(), Options(rounds=2))
    whole.run(None, lambda record: None)
    assert all(torch.equal(run.model()[name], tensor) for name, tensor in whole.model().items())


def test_what_was_staged_before_an_interruption_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two clients had their messages folded; the round is done again, to the same bits."""
    method = fedavg(epochs=1).with_parts(codec=Feedback(TopK(0.3)))
    run, whole = (Simulation(method, tiny_task(), Options(rounds=2)) for _ in range(2))
    run.round(0, None)
    before = {client: run.clients.get(client) for client in run.clients.known()}
    send_upload, folded = Simulation.send_upload, list[int]()

    def stopping(self: Simulation, order: ClientTask, *rest: Any) -> ClientReply:
        if len(folded) == 2:
            raise KeyboardInterrupt
        folded.append(order.clock.client)
        return send_upload(self, order, *rest)

    with monkeypatch.context() as patched:
        patched.setattr(Simulation, "send_upload", stopping)
        with pytest.raises(KeyboardInterrupt):
            run.round(1, None)
    assert folded == [0, 1]
    assert all(run.clients.get(client) is state for client, state in before.items())
    assert all(run.clients.staged(client) == {} for client in range(5))
    run.round(1, None)
    whole.run(None, lambda record: None)
    assert all(torch.equal(run.model()[name], tensor) for name, tensor in whole.model().items())
    for client in range(5):
        mine, other = (one.clients.get(client)["codec"]["owed"] for one in (run, whole))
        assert all(torch.equal(mine[name], other[name]) for name in other)


def test_everybody_failing_for_various_reasons_stops_a_run_after_three_rounds_in_a_row(tmp_path: Path) -> None:
    seen: list[Any] = []
    with pytest.raises(RunError, match="every client failed in round 4: client 4: ValueError: fever of client 4"):
        simulate(
            sick(1, alike=False),
            tiny_task(),
            rounds=10,
            out=tmp_path / "run",
            callbacks=[keep_in(seen)],
        )
    assert [record["round"] for record in seen] == [1, 2, 3, 4]
    assert seen == read_metrics(tmp_path / "run")
    assert [f["client"] for f in seen[-1]["failures"]] == [0, 1, 2, 3, 4]


def test_a_run_that_recovered_from_such_a_round_completes_and_reports_it(cure: Callable[[bool], None]) -> None:
    seen: list[Any] = []

    def watch(record: dict[str, Any], run: Any) -> None:
        seen.append(record)
        cure(record["round"] == 3)

    with pytest.raises(RunError, match="every client failed in round 3: client 4: ValueError: fever of client 4"):
        simulate(sick(1, alike=False), tiny_task(), rounds=4, callbacks=[watch])
    assert [len(record["failures"]) for record in seen] == [0, 5, 5, 0]


def test_a_failure_that_was_asked_for_and_a_lost_message_are_no_reason_to_stop() -> None:
    """All remaining clients fail in every round, for one reason."""
    asked = simulate(fedavg(), fragile_task(slice(0, 4)), rounds=5, failure_rate=0.7).metrics
    assert all("simulated failure (failure_rate)" in [f["reason"] for f in record["failures"]] for record in asked)
    assert any("ValueError: sensor broken" in [f["reason"] for f in record["failures"]] for record in asked)
    lost = simulate(fedavg(), fragile_task(slice(0, 2)), rounds=5, channel=Lossy(1.0)).metrics
    assert [([f["client"] for f in record["failures"]], record["lost"]) for record in lost] == [([0, 1], [2, 3])] * 5


def test_training_that_diverges_is_refused_not_averaged() -> None:
    task = tiny_task()
    seen: list[Any] = []
    with pytest.raises(RunError, match=r"not finite: training diverges; use a smaller learning rate$"):
        simulate(fedavg(lr=1e30), task, rounds=5, callbacks=[keep_in(seen)])
    assert seen[0]["accuracy"] is not None, "the model stays what it was"


def test_updates_whose_sum_would_overflow_end_the_run_with_a_reason(tmp_path: Path) -> None:
    """Every change is finite, and their sum is not: the round does not count, and those before are kept."""
    task, seen, lr = tiny_task(), list[Any](), 3e38
    with pytest.raises(RunError, match=r"failed in round 1: .* far too large: training diverges; use a smaller"):
        simulate(fedsgd(lr=lr), task, rounds=3, out=tmp_path / "run", callbacks=[keep_in(seen)])
    assert seen == []
    assert read_metrics(tmp_path / "run") == []
    with pytest.raises(RunError, match="failed in round 1"):
        simulate(fedsgd(lr=lr), task, rounds=3, out=tmp_path / "run", resume=True)


def test_a_lossy_channel_loses_uploads_but_counts_their_bytes() -> None:
    task = tiny_task(clients=20)
    lossy = simulate(fedavg(), task, rounds=2, channel=Lossy(0.5)).metrics
    perfect = simulate(fedavg(), task, rounds=2, channel=Perfect()).metrics
    assert lossy[0]["bytes_up"] == perfect[0]["bytes_up"]
    assert 2 <= len(lossy[0]["lost"]) <= 18
    assert lossy[0]["failures"] == []
    everything = simulate(fedavg(), task, rounds=5, channel=Lossy(1.0))
    assert [len(record["lost"]) for record in everything.metrics] == [20] * 5
    start = Objective(task, "cpu", key(0)).initial()
    assert all(torch.equal(everything.model.state_dict()[n], start[n]) for n in start)


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
    with pytest.raises(ConfigError, match=r"train: y holds numbers of type torch.float32, not classes"):
        Task.of(Fragile, (x, y.float()), (x, y), clients=2)
    for labels in (y - 1, y.view(4, 1)):
        with pytest.raises(ConfigError, match=r"train: y must hold one label per sample"):
            Task.of(Fragile, (x, labels), (x, y), clients=2)


def test_every_second_of_a_round_belongs_to_one_phase() -> None:
    record = simulate(fedavg(), tiny_task(), rounds=1).metrics[0]
    assert set(record["seconds"]) == {"other", "prepare", "train", "download", "receive", "evaluate"}
    assert record["memory_bytes"] > 10_000_000


def refuse(monkeypatch: pytest.MonkeyPatch, clients: Collection[int]) -> None:
    """Have the server refuse what these clients send."""
    read = BoundExchange.read_upload

    def fussy(self: BoundExchange, data: Any, state: Any, clock: Clock, *rest: Any) -> Any:
        if clock.client in clients:
            raise PayloadError("not that one")
        return read(self, data, state, clock, *rest)

    monkeypatch.setattr(BoundExchange, "read_upload", fussy)


def test_a_client_whose_message_is_refused_keeps_what_it_would_keep_of_a_lost_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    method = fedavg(epochs=1).with_parts(codec=Feedback(TopK(0.3)))
    lost = Simulation(method, tiny_task(), Options(rounds=1, channel=Lossy(1.0)))
    lost.round(0, None)
    refused = Simulation(method, tiny_task(), Options(rounds=1))
    refuse(monkeypatch, {2})
    record = refused.round(0, None)
    assert [failure["client"] for failure in record["failures"]] == [2]
    for client in range(5):
        mine, other = (run.clients.get(client)["codec"]["owed"] for run in (refused, lost))
        same = all(torch.equal(mine[name], other[name]) for name in mine)
        assert same == (client == 2)


def test_a_resumed_run_compiles_for_the_same_batch() -> None:
    """A compiled executor compiles the step for one batch size; which one must not depend on the round it starts at."""
    sizes = []

    class Noting(OneByOne):
        def prepare(self, client_task: ClientTask, client_tasks: int) -> None:
            sizes.append(len(client_task.samples))

    for number, cohort in enumerate(([0], [1], [2], [3, 4])):
        run = Simulation(fedavg(), tiny_task(), Options(rounds=9))
        run.executor = Noting(run.client)
        run.prepare(number, cohort, Ledger())
    assert sizes == [int(tiny_task().split.sizes().max())] * 4
