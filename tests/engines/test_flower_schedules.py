"""Schedules in a deployment, on a clock of the test: the events and the models of a simulation with the same times."""

import os
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("flwr")

from flwr.app import Message, MessageType

from gossamer import ConfigError, RunError, fedavg, local, topk
from gossamer.core.exchange import GLOBAL
from gossamer.core.method import Method
from gossamer.engines.control import Paused, pausing
from gossamer.engines.flower import fleet, real_time
from gossamer.engines.flower.messages import data, word
from gossamer.engines.flower.server import FlowerRun
from gossamer.engines.metrics import Ledger
from gossamer.engines.options import DEPLOYED_WEIGHT, Options
from gossamer.engines.simulation import Simulation
from gossamer.engines.stage import Stage
from gossamer.methods import METHODS
from gossamer.parts.samplers import PowerOfChoice
from gossamer.runs.records import read_about
from gossamer.testing import tiny_task
from helpers.compare import same
from helpers.flower_runs import CLIENTS, NUMBERS, altered, filled, flower_run, ignore, nodes, remembered, rewritten
from helpers.local_grid import LocalGrid
from helpers.timed_grid import Seconds, TimedChannel, TimedGrid

TASK = tiny_task(CLIENTS)
METHOD = fedavg(steps=2)
OWING = topk(steps=2, share=0.1, feedback=True)
SPEEDS = (3.0, 5.0, 7.0, 16.0)


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda handle: None)
    monkeypatch.setattr(fleet, "POLL", 0.001)


def seconds(client: int, version: int) -> float:
    """Some clients are slower, and none takes the same time twice in a row."""
    return SPEEDS[client] + version % 3 / 2


def timed(method: Method, grid: TimedGrid, **more: Any) -> FlowerRun:
    """A deployment on the clock of its grid."""
    run = flower_run(method, TASK, grid, **{"deadline": 600.0, "wait": 60.0, **more})
    assert run.dispatcher is not None
    run.dispatcher.clock, run.dispatcher.sleep = grid.clock, grid.sleep
    return run


def scheduled(method: Method, home: Path, taking: Seconds = seconds, **more: Any) -> FlowerRun:
    run = timed(method, TimedGrid(nodes(method, TASK, home), taking), **more)
    run.run(None, ignore)
    return run


def tasks(record: dict[str, Any]) -> list[tuple[int, int, str, float]]:
    """Client, version, outcome and end in seconds of the tasks that ended in a round."""
    columns = (record["tasks"][name] for name in ("client", "version", "outcome", "end"))
    return [(client, version, outcome, end / 1e9) for client, version, outcome, end in zip(*columns, strict=True)]


# The same as a simulation.

EVENTS = ("client", "version", "exchange", "start", "end", "outcome")
SAME = ("time", "delay", "clients", "bytes_up", "bytes_down", "failures", "lost", "exchanges", "train_loss", "flops")


@pytest.mark.parametrize(
    ("method", "schedule"),
    [
        (OWING, "sync"),
        (METHODS["perm"](), "sync"),
        (METHOD.with_parts(sampler=PowerOfChoice()), "deadline:after=60s"),
        (OWING, "deadline:after=6s,over=2,late=fold"),
        (OWING, "fedbuff:buffer=2,concurrency=3"),
        (OWING, "fedbuff:buffer=3,concurrency=4,max_staleness=1"),
        (OWING, "fedasync:concurrency=3"),
    ],
    ids=["sync", "perm", "power-of-choice", "late", "buffer", "stale", "fedasync"],
)
def test_equal_times_give_equal_events_records_and_models(method: Method, schedule: str, tmp_path: Path) -> None:
    given: dict[str, Any] = {"rounds": 6, "per_round": 2, "schedule": schedule}
    run = scheduled(method, tmp_path, **given)
    there = Simulation(method, TASK, Options(**given, channel=TimedChannel(seconds), max_weight=DEPLOYED_WEIGHT))
    there.run(None, ignore)
    assert run.dispatcher is not None
    for mine, wanted in zip(run.metrics, there.metrics, strict=True):
        assert {name: mine["tasks"][name] for name in EVENTS} == {name: wanted["tasks"][name] for name in EVENTS}
        assert {name: mine[name] for name in SAME} == {name: wanted[name] for name in SAME}
        assert mine["spent_in_vain"]["seconds"] == wanted["spent_in_vain"]["seconds"]
        assert set(mine["tasks"]["joules"]) <= {0.0}
    assert same(run.server, there.server)
    for client in set(range(CLIENTS)) - run.dispatcher.busy:
        assert same(remembered(run, tmp_path, client), there.clients.get(client)), f"memory of {client}"
    assert run.about["slots"] == there.about["slots"]
    assert run.about["options"]["schedule"] == there.about["options"]["schedule"]


def test_a_buffer_is_filled_in_the_order_of_arrivals(tmp_path: Path) -> None:
    """Clients that take 2, 3 and 7 seconds, by hand; the fourth is not connected."""
    grid = TimedGrid(nodes(METHOD, TASK, tmp_path, [0, 1, 2]), lambda client, version: (2.0, 3.0, 7.0)[client])
    run = timed(METHOD, grid, rounds=4, nodes=3, schedule="fedbuff:buffer=2,concurrency=3")
    run.run(None, ignore)
    assert list(map(tasks, run.metrics)) == [
        [(0, 0, "folded", 2.0), (1, 0, "folded", 3.0)],
        [(0, 1, "folded", 5.0), (1, 1, "folded", 6.0)],
        [(2, 0, "folded", 7.0), (0, 2, "folded", 8.0)],
        [(1, 2, "folded", 9.0), (0, 3, "folded", 10.0)],
    ]
    assert [record["time"] for record in run.metrics] == [3.0, 6.0, 8.0, 10.0]
    evaluated = [NUMBERS.index(m.metadata.dst_node_id) for m in grid.sent if m.metadata.message_type == "evaluate"]
    assert evaluated == [0, 1, 0, 1, 0, 2, 0, 1], "clients that train are not asked"


def test_without_a_schedule_there_are_no_times(tmp_path: Path) -> None:
    run = flower_run(METHOD, TASK, LocalGrid(nodes(METHOD, TASK, tmp_path)), rounds=1, deadline=5.0)
    run.run(None, ignore)
    assert run.dispatcher is None
    assert not {"time", "tasks", "spent_in_vain"} & run.metrics[0].keys()
    assert "schedule" not in run.about["options"]


# Clients that the server does not wait for.


def test_a_late_client_is_cancelled_and_gets_no_task_before_it_has_replied(tmp_path: Path) -> None:
    late = TimedGrid(nodes(OWING, TASK, tmp_path), lambda client, version: 25.0 if (client, version) == (3, 0) else 4.0)
    run = timed(OWING, late, rounds=6, schedule="deadline:after=10s")
    run.run(None, ignore)
    first, *middle, last = run.metrics
    assert tasks(first)[-1] == (3, 0, "cancelled", 10.0)
    assert first["spent_in_vain"] == {"joules": 0.0, "seconds": 10.0}
    assert first["time"] == 10.0
    assert all(record["clients"] == [0, 1, 2] for record in middle), "it trains until second 25"
    assert tasks(last) == [(client, 5, "folded", 30.0) for client in range(CLIENTS)]
    train = [message for message in late.received if message.metadata.message_type == MessageType.TRAIN]
    ignored = next(message for message in train if message.metadata.src_node_id == NUMBERS[3])
    assert [record["bytes_up"].get("late", 0) for record in run.metrics] == [0, 0, 0, 0, len(data(ignored)), 0]
    assert last["delivery"]["retained"] == [0, 0, 0, 1], (
        "what it sent late is lost to it, and goes with its next update"
    )


def test_a_node_that_trains_is_not_sent_another_task(tmp_path: Path) -> None:
    """As in the second exchange of a round, after the first was cancelled."""
    grid = TimedGrid(nodes(METHOD, TASK, tmp_path), seconds)
    run = timed(METHOD, grid, schedule="sync")
    run.fleet.refresh()
    assert run.dispatcher is not None
    run.dispatcher.begin_round()
    stage = Stage(run.method.training, 0, {0: GLOBAL})
    first, second = (run.dispatcher.launch(stage, 0, Ledger()) for _ in range(2))
    assert first.answer is None
    assert second.answer is not None
    assert second.answer.fault == "the node still runs an earlier task"
    assert sum(message.metadata.message_type == MessageType.TRAIN for message in grid.sent) == 1


def test_a_deadline_with_too_few_replies_voids_the_round(tmp_path: Path) -> None:
    slow = {(client, 0): 12.0 for client in (1, 2, 3)}
    grid = TimedGrid(nodes(METHOD, TASK, tmp_path), lambda client, version: slow.pop((client, version), 4.0))
    run = timed(METHOD, grid, rounds=2, schedule="deadline:after=10s")
    run.run(None, ignore)
    (void,) = run.metrics[0]["void"]
    assert (
        "1 of 4 clients replied, 2 are needed (client 1: it had not replied at the end of the round" in void["reason"]
    )
    assert void["tasks"]["outcome"] == ["folded", "cancelled", "cancelled", "cancelled"]
    assert void["time"] == 10.0
    assert run.metrics[0]["clients"] == [0, 1, 2, 3], "the repeated round waits for enough clients"
    assert [record["time"] for record in run.metrics] == [16.0, 20.0]
    there = Simulation(METHOD, TASK, Options(rounds=2, max_weight=DEPLOYED_WEIGHT))
    there.run(None, ignore)
    assert same(run.server, there.server)


def test_a_deadline_that_nobody_meets_ends_the_run(tmp_path: Path) -> None:
    with pytest.raises(
        RunError, match=r"round 1 was void 3 times: 0 of 2 clients replied, 1 are needed \(client 0: it "
    ):
        scheduled(METHOD, tmp_path, schedule="deadline:after=1s")


def test_a_run_does_not_wait_forever_for_clients_that_train(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"0 of 2 clients were connected and had no task after 2 s, 4 still train"):
        scheduled(METHOD, tmp_path, schedule="deadline:after=0.5s", wait=2.0)


def test_a_client_that_never_replies_has_failed(tmp_path: Path) -> None:
    run = hostile(lambda reply: None, tmp_path, deadline=20.0)
    ended = [task for record in run.metrics for task in tasks(record) if task[0] == 2]
    assert ended[0][:3] == (2, 0, "failed")
    assert 20.0 <= ended[0][3] < 20.5, "checked again and again, with pauses"
    failures = [failure for record in run.metrics for failure in record["failures"]]
    assert {(each["client"], each["node"], each["reason"]) for each in failures} == {
        (2, str(NUMBERS[2]), "no reply within 20 s")
    }


def test_methods_without_messages_are_not_settled_by_a_cancelled_task(tmp_path: Path) -> None:
    run = scheduled(
        local(steps=2), tmp_path, lambda client, version: 20.0 if client == 3 else 4.0, schedule="deadline:after=10s"
    )
    assert not run.clients.get(3)
    assert all(run.clients.get(client) for client in range(3))


# Nodes that come and go.


def test_a_node_that_goes_has_left_and_one_that_comes_fills_its_slot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(real_time, "LOOK", 10**9)
    everybody = nodes(METHOD, TASK, tmp_path)
    grid = TimedGrid({number: everybody[number] for number in NUMBERS[:3]}, lambda client, version: 8.0 + client)
    run = timed(METHOD, grid, rounds=3, nodes=3, schedule="fedbuff:buffer=3,concurrency=3")
    grid.at(2.0, lambda: grid.nodes.__delitem__(NUMBERS[1]))
    grid.at(4.0, lambda: grid.nodes.update({NUMBERS[3]: everybody[NUMBERS[3]]}))
    run.run(None, ignore)
    left, *others = tasks(run.metrics[0])
    assert left[:3] == (1, 0, "left")
    assert 2.0 <= left[3] <= 3.1
    assert [task[:3] for task in others] == [(0, 0, "folded"), (2, 0, "folded"), (3, 0, "folded")]
    assert 15.0 <= others[-1][3] <= 16.1, "it came within a second of second 4, and took 11"
    assert run.metrics[0]["spent_in_vain"]["seconds"] == left[3]
    assert all(not record["failures"] for record in run.metrics)
    assert all(1 not in record["clients"] for record in run.metrics[1:])


def test_a_run_whose_nodes_are_all_gone_stops(tmp_path: Path) -> None:
    grid = TimedGrid(nodes(METHOD, TASK, tmp_path), seconds)
    run = timed(METHOD, grid, rounds=9, schedule="fedbuff:buffer=2,concurrency=3")
    grid.at(10.0, grid.nodes.clear)
    with pytest.raises(RunError, match="0 of 1 clients were connected and had no task after 60 s, 0 still train"):
        run.run(None, ignore)
    assert set(run.metrics[-1]["tasks"]["outcome"]) == {"left"}


# Replies that are refused.


def hostile(change: Callable[[Message], Message | None], home: Path, **more: Any) -> FlowerRun:
    there = nodes(METHOD, TASK, home)
    there[NUMBERS[2]] = altered(there[NUMBERS[2]], change, MessageType.TRAIN, range(9))
    run = timed(
        METHOD, TimedGrid(there, seconds), **{"rounds": 6, "schedule": "fedbuff:buffer=2,concurrency=4", **more}
    )
    run.run(None, ignore)
    return run


def test_a_reply_belongs_to_the_version_of_its_task(tmp_path: Path) -> None:
    run = hostile(lambda reply: rewritten(reply, round=word(reply, "round", int) + 1), tmp_path)
    failures = [failure for record in run.metrics for failure in record["failures"]]
    assert {failure["client"] for failure in failures} == {2}
    assert failures[0]["reason"] == "refused: the reply is for another round: expected 0, got 1"
    assert all(task[2] == "failed" for record in run.metrics for task in tasks(record) if task[0] == 2)


def test_an_update_far_from_the_last_ones_of_the_others_is_refused_at_once(tmp_path: Path) -> None:
    run = hostile(filled(1e5), tmp_path)
    failures = [failure for record in run.metrics for failure in record["failures"]]
    assert {failure["client"] for failure in failures} == {2}
    assert all("refused: it sent values up to" in failure["reason"] for failure in failures)
    assert not any(record["void"] for record in run.metrics)
    assert all(record["bytes_up"]["refused"] > 0 for record in run.metrics if record["failures"])
    assert all(
        bool(torch.isfinite(tensor).all()) and tensor.abs().max() < 100 for tensor in run.server["params"].values()
    )


def test_a_void_aggregation_leaves_the_tasks_in_flight_as_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second aggregation fails once. Its updates are lost, and the slowest client goes on from version 0."""
    finish, calls = Simulation.finish, []

    def fails_once(self: FlowerRun, stage: Any, acc: Any) -> Any:
        calls.append(stage.number)
        if len(calls) == 2:
            raise ArithmeticError("no mean")
        return finish(self, stage, acc)

    monkeypatch.setattr("gossamer.engines.run.FederatedRun.finish", fails_once)
    run = scheduled(OWING, tmp_path, rounds=5, schedule="fedbuff:buffer=2,concurrency=4")
    assert calls == [0, 1, 1, 2, 3, 4]
    (void,) = run.metrics[1]["void"]
    assert "the aggregation failed: ArithmeticError: no mean; client" in void["reason"]
    ended = [task for record in run.metrics for task in tasks(record)]
    assert (3, 0, "folded", 16.0) in ended
    assert not any(record["failures"] for record in run.metrics)
    (out,) = [each["client"] for each in void["left_out"]]
    assert not any(out in record["clients"] for record in run.metrics[1:]), "it is not sampled any more"


def test_a_claim_is_compared_with_all_connected_clients(tmp_path: Path) -> None:
    """Also with those that train: clients 0 to 3 have 5, 54, 21 and 40 samples, and client 0 is often alone."""
    run = scheduled(METHOD, tmp_path, rounds=6, schedule="fedasync:concurrency=4")
    assert not any("limited" in record for record in run.metrics)


# Resuming.


def test_a_killed_server_loses_the_tasks_in_flight_and_goes_on_from_its_time(tmp_path: Path) -> None:
    schedule, folder = "fedbuff:buffer=2,concurrency=3", tmp_path / "run"
    run = timed(OWING, TimedGrid(nodes(OWING, TASK, tmp_path), seconds), rounds=6, schedule=schedule)
    opened = run.create(folder)
    with pytest.raises(Paused), closing(opened):
        run.run(opened, pausing(ignore, 3))
    grid = TimedGrid(nodes(OWING, TASK, tmp_path), seconds)
    again = timed(OWING, grid, rounds=6, schedule=schedule)
    with closing(again.restore(folder)) as opened:
        again.run(opened, ignore)
    before, after = again.metrics[2], again.metrics[3]
    assert before == run.metrics[2]
    assert after["tasks"]["start"] == [before["time"] * 1e9] * len(after["tasks"]["start"])
    assert after["tasks"]["version"] == [3, 3], "from the version of the resumed run"
    assert [record["round"] for record in again.metrics] == [1, 2, 3, 4, 5, 6]
    assert not any(record["failures"] for record in again.metrics), "no node is out of step"
    assert read_about(folder)["deployment"]["schedule"] == schedule


# What is refused before anything starts.


@pytest.mark.parametrize(
    ("name", "schedule", "reason"),
    [
        ("fedavg", "fedbuf", "did you mean fedbuff"),
        ("fedavg", "fedbuff:buffer=0", "buffer must be at least 1, got 0"),
        ("fedavg", "fedbuff:concurrency=5", "lets 5 clients train at once, and there are 4"),
        ("fedavg", "deadline:after=60s,over=1.5", "lets 6 clients train at once, and there are 4"),
        ("fedavg", "deadline:after=2min", "deadline must be at least that of the schedule, 120 seconds, got 60.0"),
        ("perm", "fedbuff:buffer=2", "its rounds have several exchanges: use sync, or deadline with late=drop"),
    ],
)
def test_schedules_that_do_not_fit(name: str, schedule: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        flower_run(METHODS[name](), TASK, LocalGrid({}), schedule=schedule, deadline=60.0)
