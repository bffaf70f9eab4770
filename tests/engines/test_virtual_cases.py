"""The virtual clock in rare cases: events at the same time, and clients that stay away."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from gossamer import Method, RunError, fedavg, perm, simulate
from gossamer.tasks.task import Task
from helpers.toy_devices import Scripted

Records = list[dict[str, Any]]
Recipe = Callable[..., Method]
TOGGLING = tuple((20.0 * n, 20.0 * n + 10) for n in range(50))


def run(devices: Scripted, schedule: str, rounds: int = 2, make: Recipe = fedavg, **options: Any) -> Records:
    """Run a method on tiny clients, one for each device."""
    clients = len(devices.seconds)
    draw = torch.Generator().manual_seed(1)
    x, y = torch.randn(2 * clients, 2, generator=draw), torch.arange(2 * clients) % 2
    task = Task.of(lambda: nn.Linear(2, 2), (x, y), (x, y), clients=clients)
    given = {"rounds": rounds, "eval_every": rounds, "schedule": schedule, "channel": devices, **options}
    return simulate(make(epochs=1, batch=2), task, **given).metrics


def column(record: dict[str, Any], name: str) -> dict[int, Any]:
    """Return a column of a record's tasks, by client."""
    return dict(zip(record["tasks"]["client"], record["tasks"][name], strict=True))


def test_a_client_that_leaves_when_a_round_begins_is_not_sampled() -> None:
    devices = Scripted(((1, 2, 1), (1, 2, 1)), (((0, None),), ((0, 4), (9, None))))
    first, second = run(devices, "sync")
    assert column(first, "outcome") == {0: "folded", 1: "folded"}, "work that ends with the interval is done"
    assert column(second, "start") == {0: 4 * 10**9}


def test_clients_that_come_back_at_the_same_time_are_sampled_together() -> None:
    devices = Scripted(((1, 1, 1),) * 4, (((5, 20),),) * 4)
    first, second = run(devices, "sync")
    assert first["clients"] == second["clients"] == [0, 1, 2, 3]
    assert column(first, "start") == dict.fromkeys(range(4), 5 * 10**9)


def test_time_without_clients_is_part_of_the_round() -> None:
    first, second = run(Scripted(((1, 1, 1),) * 2, (((5, 8), (20, 30)),) * 2), "sync")
    assert (first["time"], first["delay"]) == (8, 8)
    assert (second["time"], second["delay"]) == (23, 15)


def test_a_round_without_clients_has_its_deadline_from_its_first_task_on() -> None:
    (first,) = run(Scripted(((1, 1, 1), (1, 5, 1)), (((5, None),),) * 2), "deadline:4s", 1)
    assert first["time"] == 9
    assert column(first, "outcome") == {0: "folded", 1: "cancelled"}


def test_an_update_that_arrives_at_the_deadline_counts() -> None:
    (first,) = run(Scripted(((1, 1, 2), (1, 2, 2))), "deadline:4s", 1)
    assert column(first, "outcome") == {0: "folded", 1: "cancelled"}


def test_a_transfer_without_duration_ends_while_the_client_leaves() -> None:
    (first,) = run(Scripted(((1, 3, 0),), (((0, 4), (9, None)),), pausing=True), "sync", 1)
    assert column(first, "end") == {0: 4 * 10**9}


def test_a_paused_task_that_is_stopped_has_cost_what_was_done() -> None:
    devices = Scripted(((1, 1, 1), (1, 4, 1)), (((0, None),), ((0, 2), (6, None))), pausing=True)
    (first,) = run(devices, "deadline:7s", 1)
    assert column(first, "joules") == {0: 111.0, 1: 1 + 10 * 2 / 4}


def test_a_client_that_left_does_not_wait() -> None:
    (first,) = run(Scripted(((1, 1, 1), (1, 8, 1)), (((0, None),), ((0, 5),))), "sync", 1)
    assert first["time"] == 5
    assert first["energy"]["idle"] == 0.5 * 2, "the other one waits for two seconds"


def test_a_buffer_does_not_wait_for_a_client_that_never_comes() -> None:
    devices = Scripted(((1, 1, 1),) * 3, (TOGGLING, TOGGLING, ()))
    first, second = run(devices, "fedbuff:buffer=3,concurrency=1")
    assert first["time"] == 6
    assert second["time"] == 10, "the second client leaves then"


def test_a_buffer_does_not_wait_for_an_excluded_client() -> None:
    devices = Scripted(((1, 1, 1),) * 6, (TOGGLING,) * 6)
    records = run(devices, "fedbuff:buffer=6", 3, attack="scale:-50,share=0.2", exclude_after=1)
    (excluded,) = records[-1]["excluded"]
    assert set(records[-1]["clients"]) == set(range(6)) - {excluded}


def test_a_paused_task_whose_client_never_comes_back_has_left() -> None:
    devices = Scripted(((1, 1, 1), (1, 8, 1)), (((0, None),), ((0, 2), (4, 5))), pausing=True)
    first, second = run(devices, "sync")
    assert column(first, "outcome") == {0: "folded", 1: "left"}
    assert column(first, "end") == {0: 3 * 10**9, 1: 5 * 10**9}
    assert column(first, "joules") == {0: 111.0, 1: 1 + 10 * 2 / 8}
    assert second["clients"] == [0]


def test_a_run_without_clients_ends_with_an_error() -> None:
    with pytest.raises(RunError, match="no client is available after 3 s"):
        run(Scripted(((1, 1, 1),) * 2, (((0, 3),),) * 2), "sync")


COMPARISON = 4
"""The first round of PERM with two exchanges."""


def test_a_client_that_leaves_in_the_first_exchange_has_left_in_the_second() -> None:
    devices = Scripted(((1, 1, 1),) * 3, (((0, None),), ((0, None),), ((0, 11), (30, None))))
    tasks = run(devices, "sync", COMPARISON, perm)[-1]["tasks"]
    rows = zip(*(tasks[name] for name in ("client", "start", "end", "outcome")), strict=True)
    mine = [(start // 10**9, end // 10**9, outcome) for client, start, end, outcome in rows if client == 2]
    assert mine == [(9, 11, "left"), (12, 12, "left")]
    assert tasks["outcome"].count("folded") == 4


@pytest.mark.parametrize("schedule", ["sync", "deadline:2s"])
def test_both_exchanges_of_a_round_have_times(schedule: str) -> None:
    last = run(Scripted(((0.5, 0.5, 1),) * 3), schedule, COMPARISON, perm)[-1]
    assert last["tasks"]["exchange"] == [0] * 3 + [1] * 3
    assert set(last["tasks"]["outcome"]) == {"folded"}
    assert (last["time"], last["delay"]) == (10, 4)
