"""Runs under a schedule: the same in every executor, in any order of training, and as runs without a schedule."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch

from gossamer import METHODS, Method, Options, fedavg, fedspa
from gossamer.core.availability import SECOND
from gossamer.core.exchange import Arrival
from gossamer.core.types import Flops, Part
from gossamer.engines.client import Client, ClientTask, TaskOutcome
from gossamer.engines.executors.base import OneByOne
from gossamer.engines.simulation import Simulation
from gossamer.tasks.task import Task
from helpers import recorder
from helpers.compare import assert_close, same
from helpers.tasks import Fragile, batch_norm_task
from helpers.toy_devices import ToyDevices

TIMED = {"seconds", "memory_bytes"}
OF_SCHEDULES = {"time", "tasks", "spent_in_vain", "delay"}
DEVICES = ToyDevices(speed=3e5, rate=6e3)
LEAVING = replace(DEVICES, leaving=True, lossy=True)
BROKEN = torch.stack([torch.arange(20.0) // 2 * 0.7, torch.ones(20)], 1)
"""Samples of which those of the last clients are too large for ``Fragile``."""
BUFFERED = "fedbuff:buffer=2,concurrency=4"


def done(method: Method, task: Task, **options: Any) -> Simulation:
    """Return a run after its rounds."""
    given = {"rounds": 4, "per_round": 3, "eval_every": 4, "channel": LEAVING, **options}
    run = Simulation(method, task, Options(**given))
    run.run(None, lambda record: None)
    return run


def plain(run: Simulation, without: Iterable[str] = ()) -> list[dict[str, Any]]:
    """Return the records without measured times."""
    return [{name: v for name, v in record.items() if name not in {*TIMED, *without}} for record in run.metrics]


def states(run: Simulation) -> dict[str, Any]:
    """Return all that a run remembers."""
    clients = {str(client): run.clients.get(client) for client in range(run.task.clients)}
    return {"server": run.server, "clients": clients}


@pytest.mark.parametrize("name", ["fedavg", "fedmrn", "scaffold", "fedspa", "heterofl", "perm"])
def test_synchronous_rounds_are_those_without_a_schedule(name: str) -> None:
    alone, timed = (
        done(
            METHODS[name](**recorder.SGD),
            recorder.task(),
            channel=replace(DEVICES, lossy=True, coarse=True),
            schedule=schedule,
        )
        for schedule in (None, "sync")
    )
    assert same(states(alone), states(timed))
    ours, theirs = plain(timed, OF_SCHEDULES), plain(alone, OF_SCHEDULES)
    for record, other in zip(ours, theirs, strict=True):
        idle = record["energy"].pop("idle")
        assert record.pop("joules") == pytest.approx(other.pop("joules") + idle)
        waiting = record.pop("by_client"), other.pop("by_client")
        assert sum(waiting[0].pop("joules")) == pytest.approx(sum(waiting[1].pop("joules")) + idle)
        assert waiting[0] == waiting[1]
    assert ours == theirs
    assert [record["delay"] for record in timed.metrics] == pytest.approx(
        [record["delay"] for record in alone.metrics], abs=3 / SECOND
    )


@pytest.mark.parametrize("schedule", ["sync", "deadline:4s,over=1.3,late=fold", BUFFERED])
def test_the_order_of_training_changes_nothing(schedule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    first = done(METHODS["fedspa"](**recorder.SGD), recorder.task(), schedule=schedule)

    def backwards(self: OneByOne, client_tasks: Iterable[ClientTask]) -> Iterator[TaskOutcome]:
        return iter([self.client.do(client_task) for client_task in client_tasks][::-1])

    monkeypatch.setattr(OneByOne, "run", backwards)
    second = done(METHODS["fedspa"](**recorder.SGD), recorder.task(), schedule=schedule)
    assert same(states(first), states(second))
    for name in ("tasks", "time", "bytes_up", "bytes_down", "clients"):
        assert [record[name] for record in first.metrics] == [record[name] for record in second.metrics]
    assert [record["joules"] for record in first.metrics] == pytest.approx([r["joules"] for r in second.metrics])


def test_processes_have_the_same_bits_and_stacks_the_same_events() -> None:
    task = batch_norm_task(8)
    one, processes, stacks = (
        done(METHODS["fedavg"](**recorder.SGD), task, schedule=BUFFERED, executor=name)
        for name in ("one-by-one", "side-by-side", "stacked")
    )
    assert same(states(one), states(processes))
    assert plain(one) == plain(processes)
    for name in ("tasks", "time", "bytes_up", "bytes_down"):
        assert [record[name] for record in one.metrics] == [record[name] for record in stacks.metrics]
    assert_close(one.server["params"], stacks.server["params"], 1e-9)


@pytest.mark.parametrize("devices", [LEAVING, replace(LEAVING, pausing=True), replace(LEAVING, coarse=True)])
@pytest.mark.parametrize("schedule", ["deadline:4s,over=1.3,late=fold", "deadline:2s", BUFFERED, "fedasync"])
def test_tasks_that_wait_for_their_training_have_the_events_of_those_that_do_not(
    schedule: str, devices: ToyDevices, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The size of FedSpa's messages, and the operations of its mask search, are known only after training."""
    method = fedspa(**recorder.SGD)
    waiting = done(method, recorder.task(), schedule=schedule, channel=devices, rounds=4)
    monkeypatch.setattr(Client, "least_flops", lambda self, client_task: Flops(0, 0))
    at_once = done(method, recorder.task(), schedule=schedule, channel=devices, rounds=4)
    assert len({tuple(record["bytes_up"].values()) for record in waiting.metrics}) > 1
    rounded = ("joules", "energy", "by_client", "spent_in_vain")  # of interrupted training, in proportion
    assert [record["joules"] for record in waiting.metrics] == pytest.approx([r["joules"] for r in at_once.metrics])
    for run in (waiting, at_once):
        for record in run.metrics:
            del record["tasks"]["joules"]
    assert plain(waiting, rounded) == plain(at_once, rounded)
    assert same(states(waiting), states(at_once))


def test_tasks_of_one_version_are_trained_together(monkeypatch: pytest.MonkeyPatch) -> None:
    groups: list[int] = []

    def counted(self: OneByOne, client_tasks: Iterable[ClientTask]) -> Iterator[TaskOutcome]:
        tasks = list(client_tasks)
        groups.append(len(tasks))
        assert len({task.clock.round for task in tasks}) == 1
        return map(self.client.do, tasks)

    monkeypatch.setattr(OneByOne, "run", counted)
    run = done(
        METHODS["fedavg"](**recorder.SGD),
        batch_norm_task(60),
        schedule="fedbuff:buffer=6,concurrency=24",
        channel=replace(DEVICES, speed=3e3),
        rounds=12,
    )
    tasks = sum(len(record["tasks"]["client"]) for record in run.metrics)
    assert sum(groups) >= tasks
    assert sum(groups) / len(groups) > 3


def test_tasks_that_are_certain_to_be_stopped_are_not_trained(monkeypatch: pytest.MonkeyPatch) -> None:
    trained: list[int] = []
    do = Client.do

    def noted(self: Client, client_task: ClientTask) -> TaskOutcome:
        trained.append(client_task.clock.client)
        return do(self, client_task)

    monkeypatch.setattr(Client, "do", noted)
    run = done(METHODS["fedavg"](**recorder.SGD), recorder.task(), schedule="deadline:2s", rounds=1, channel=LEAVING)
    tasks = run.metrics[0]["tasks"]
    computed = {client for client, at in zip(tasks["client"], tasks["computed"], strict=True) if at is not None}
    assert set(trained) == computed
    assert len(trained) < len(tasks["client"])


@pytest.mark.parametrize("schedule", ["fedbuff:buffer=1,concurrency=5,staleness=0", "deadline:2s,late=fold"])
def test_variances_of_batch_norm_stay_positive(schedule: str) -> None:
    """The sum of changes from several versions would be negative: each makes the first variance much smaller."""
    devices = replace(DEVICES, speed=1e6, rate=2e3)
    run = done(METHODS["fedavg"](**recorder.SGD), recorder.task(), schedule=schedule, channel=devices, rounds=8)
    assert max(record["round"] - 1 - min(record["tasks"]["version"], default=9) for record in run.metrics) > 2
    assert bool((run.server["params"]["1.running_var"] > 0).all())
    assert run.metrics[-1]["loss"] < 2


def test_an_update_can_be_taken_from_another_model_for_some_tensors() -> None:
    received, current = ({"a": torch.full((2,), a), "b": torch.full((2,), b)} for a, b in ((1.0, 2.0), (5.0, 7.0)))
    change = {"a": torch.tensor([0.5, 0.25]), "b": torch.tensor([1.0, -1.0])}
    arrival = replace(Arrival.of(0, Part(), change, 1), model=received).from_model(current, ["b"])
    found = arrival.change(torch.device("cpu"))
    assert same(found, {"a": change["a"], "b": received["b"] + change["b"] - current["b"]})
    whole = arrival.from_model(current).change(torch.device("cpu"))
    assert same(whole, {name: received[name] + change[name] - current[name] for name in change})


def test_a_client_whose_operations_cannot_be_counted_has_failed() -> None:
    """No other client has batches of this size, so that operations are counted with its samples."""
    data = BROKEN, torch.arange(20) % 2
    task = Task.of(Fragile, data, data, split=[[0, 1], [2, 3], [17, 18, 19]])
    devices = replace(DEVICES, speed=100.0, rate=600.0)
    run = done(fedavg(**recorder.SGD), task, schedule="deadline:9s", channel=devices, rounds=1)
    assert run.metrics[0]["failures"] == [{"client": 2, "reason": "ValueError: sensor broken"}]
    assert sorted(run.metrics[0]["tasks"]["outcome"]) == ["failed", "folded", "folded"]


@pytest.mark.parametrize("schedule", ["sync", "deadline:9s", BUFFERED, "fedasync"])
def test_failing_clients_are_recorded_and_free_their_slots(schedule: str) -> None:
    data = BROKEN, torch.arange(20) % 2
    task = Task.of(Fragile, data, data, split=[[2 * client, 2 * client + 1] for client in range(10)])
    devices = replace(DEVICES, speed=100.0, rate=600.0)
    run = done(fedavg(**recorder.SGD), task, schedule=schedule, channel=devices, rounds=6, failure_rate=0.2)
    reasons = {failure["client"]: failure["reason"] for record in run.metrics for failure in record["failures"]}
    assert {"simulated failure (failure_rate)", "ValueError: sensor broken"} <= set(reasons.values())
    for record in run.metrics:
        tasks = record["tasks"]
        failed = [client for client, how in zip(tasks["client"], tasks["outcome"], strict=True) if how == "failed"]
        assert sorted(failed) == sorted(failure["client"] for failure in record["failures"])
        unfinished = [at for at, how in zip(tasks["computed"], tasks["outcome"], strict=True) if how == "failed"]
        assert unfinished == [None] * len(failed)
