"""Nodes of a deployment, the limits on message sizes, and settings."""

import math
from pathlib import Path
from typing import Any, cast

import pytest

from helpers.compare import same

pytest.importorskip("flwr")

from flwr.app import Message, MessageType
from torch import nn

from gossamer import ConfigError, RunError, Split, Task, fedavg
from gossamer.core.errors import PayloadError
from gossamer.engines.flower import Settings, fleet, messages
from gossamer.engines.metrics import Ledger
from gossamer.parts.codecs import Eden
from gossamer.testing import tiny_task
from helpers.flower_runs import (
    CLIENTS,
    NUMBERS,
    altered,
    app,
    config,
    deploy,
    flower_run,
    ignore,
    nodes,
    rewritten,
    simulated,
)
from helpers.local_grid import Handle, LocalGrid, node

TASK = tiny_task(CLIENTS)
METHOD = fedavg(steps=1)


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet, "POLL", 0.001)
    monkeypatch.setattr(fleet, "HELLO", 0.02)


def test_a_run_reports_the_numbers_of_nodes_present_and_needed(tmp_path: Path) -> None:
    grid = LocalGrid(nodes(METHOD, TASK, tmp_path, [0, 3]))
    with pytest.raises(RunError, match=r"2 of 4 clients were connected after 0 s: start more SuperNodes, or use fewer"):
        deploy(METHOD, TASK, grid)
    with pytest.raises(RunError, match=r"2 of 3 clients were connected after 0.01 s"):
        deploy(METHOD, TASK, grid, nodes=3, per_round=1, wait=0.01)


def test_a_run_waits_for_late_nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    everybody, looks = nodes(METHOD, TASK, tmp_path), 0
    grid = LocalGrid(everybody)

    def come_one_by_one() -> list[int]:
        nonlocal looks
        looks += 1
        return list(NUMBERS[:looks])

    monkeypatch.setattr(grid, "get_node_ids", come_one_by_one)
    assert same(deploy(METHOD, TASK, grid, wait=60.0).server, simulated(METHOD, TASK).server)


def test_a_run_that_loses_too_many_nodes_stops(tmp_path: Path) -> None:
    grid = LocalGrid(nodes(METHOD, TASK, tmp_path))

    def watch(record: dict[str, Any]) -> None:
        grid.nodes = {NUMBERS[0]: grid.nodes[NUMBERS[0]]}

    with pytest.raises(RunError, match="1 of 2 clients were connected"):
        deploy(METHOD, TASK, grid, watch)


# Nodes that do not fit.


def silent(message: Message) -> None:
    return None


def without_samples() -> Task:
    start = TASK.split.train_start.copy()
    start[-1] = start[-2]
    index = TASK.split.train_index[: start[-1]]
    return TASK.with_split(Split(index, start, TASK.split.test_index, TASK.split.test_start))


def stranger(method: Any, task: Any, home: Path, **more: Any) -> Handle:
    return node(app(method, task), {**config(3, home), **more})


def misfits(home: Path) -> dict[str, tuple[Handle, str]]:
    other_net = Task(lambda: nn.Linear(6, 3), TASK.data, TASK.split)
    unnamed = {"state-dir": str(home)}
    unsized = altered(stranger(METHOD, TASK, home), lambda r: rewritten(r, samples=None), MessageType.QUERY, [0])
    return {
        "another client's number": (
            stranger(METHOD, TASK, home, **{"partition-id": 1}),
            f"it claims to be client 1, as does node {NUMBERS[1]}",
        ),
        "another method": (stranger(fedavg(steps=2), TASK, home), "it has another method than the server"),
        "another model": (stranger(METHOD, other_net, home), "it has another model than the server"),
        "no partition-id": (node(app(METHOD, TASK), unnamed), "got partition-id=None: start its SuperNode with"),
        "no number": (stranger(METHOD, TASK, home, **{"partition-id": "3"}), "got partition-id='3'"),
        "out of its range": (
            stranger(METHOD, TASK, home, **{"partition-id": 4}),
            "partition-id is 4, but the task has 4 clients, numbered from 0",
        ),
        "below its range": (stranger(METHOD, TASK, home, **{"partition-id": -1}), "partition-id is -1"),
        "out of the server's range": (
            stranger(METHOD, tiny_task(9), home, **{"partition-id": 8}),
            "it claims to be client 8, of 4",
        ),
        "no samples": (stranger(METHOD, without_samples(), home), "client 3 has no training samples"),
        "no answer": (silent, "no reply within"),
        "no figures": (unsized, "no int called 'samples'"),
    }


@pytest.mark.parametrize("name", misfits(Path()))
def test_a_node_that_does_not_fit_is_refused_and_the_others_go_on(name: str, tmp_path: Path) -> None:
    handle, reason = misfits(tmp_path)[name]
    grid = LocalGrid({**nodes(METHOD, TASK, tmp_path, [0, 1, 2]), 999: handle})
    with pytest.raises(RunError) as stopped:
        deploy(METHOD, TASK, grid)
    assert "3 of 4 clients were connected" in str(stopped.value)
    assert "node 999 was refused: " in str(stopped.value)
    assert reason in str(stopped.value)
    deployed = deploy(METHOD, TASK, grid, nodes=3, rounds=1)
    assert deployed.metrics[0]["clients"] == [0, 1, 2]
    assert same(deployed.server, simulated(METHOD, TASK, cohorts={0: [0, 1, 2]}, rounds=1).server)


def test_a_node_that_was_refused_is_asked_again_after_a_while(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet, "AGAIN", 0.0)
    grid = LocalGrid({**nodes(METHOD, TASK, tmp_path, [0, 1, 2]), NUMBERS[3]: stranger(fedavg(), TASK, tmp_path)})

    def watch(record: dict[str, Any]) -> None:
        grid.nodes = nodes(METHOD, TASK, tmp_path)

    assert [record["clients"] for record in deploy(METHOD, TASK, grid, watch, nodes=3).metrics] == [
        [0, 1, 2],
        [0, 1, 2, 3],
    ]


def test_a_node_that_was_refused_is_not_asked_all_the_time(tmp_path: Path) -> None:
    grid = LocalGrid({**nodes(METHOD, TASK, tmp_path, [0, 1, 2]), NUMBERS[3]: stranger(fedavg(), TASK, tmp_path)})
    deploy(METHOD, TASK, grid, nodes=3, rounds=3)
    asked = [m.metadata.dst_node_id for m in grid.sent if m.metadata.message_type == MessageType.QUERY]
    assert sorted(asked) == sorted(NUMBERS), "everybody once"


# What is too large.


def test_an_order_that_flower_cannot_carry_is_not_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messages, "LARGEST", 300)
    grid = LocalGrid(nodes(METHOD, TASK, tmp_path))
    with pytest.raises(
        PayloadError, match=r"the message has 38\d bytes, and Flower carries at most 300: use a smaller"
    ):
        deploy(METHOD, TASK, grid)
    assert all(message.metadata.message_type == MessageType.QUERY for message in grid.sent)


def test_a_reply_that_flower_cannot_carry_is_not_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    method = METHOD.with_parts(down=Eden(1))
    grid = LocalGrid(nodes(method, TASK, tmp_path))
    run = flower_run(method, TASK, grid, rounds=1)
    monkeypatch.setattr(messages, "LARGEST", 300)
    with pytest.raises(RunError, match=r"client 0: the message has 38\d bytes, and Flower carries at most 300"):
        run.run(None, ignore)
    assert not any(messages.data(message) for message in grid.received)


# Settings.


def test_settings_out_of_range_are_listed_all_at_once() -> None:
    wrong: dict[str, Any] = {
        "rounds": 0,
        "per_round": -1,
        "seed": -1,
        "device": "tpu",
        "eval_every": 0,
        "nodes": -1,
        "wait": -1.0,
        "deadline": 0.0,
        "min_replies": 0.0,
    }
    with pytest.raises(ConfigError) as refused:
        Settings(**wrong)
    assert len(refused.value.mistakes) == len(wrong)


@pytest.mark.parametrize("name", ["wait", "deadline", "min_replies"])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_settings_must_be_finite(name: str, value: float) -> None:
    with pytest.raises(ConfigError, match=name):
        Settings(**cast(Any, {name: value}))


def test_settings_are_read_from_a_runs_configuration() -> None:
    usual = Settings(rounds=7, wait=60)
    config_ = {"per-round": 3, "eval-every": 2, "deadline": 5, "wait": 2.5, "resume": True, "out": "here", "mine": 1}
    given = usual.given(config_)
    assert given == Settings(rounds=7, per_round=3, eval_every=2, deadline=5.0, wait=2.5, resume=True, out="here")
    assert usual.given({}) == usual
    with pytest.raises(ConfigError, match="per_round must not be negative, got -3"):
        usual.given({"per-round": -3})


def test_settings_of_a_wrong_type_are_listed_all_at_once() -> None:
    wrong = {"rounds": "3", "per_round": 2.0, "nodes": True, "resume": 1, "wait": "long", "out": 5}
    with pytest.raises(ConfigError) as refused:
        Settings().given(wrong)
    assert {mistake.split()[0] for mistake in refused.value.mistakes} == set(wrong)


def test_a_cohort_larger_than_there_are_clients_is_refused() -> None:
    with pytest.raises(ConfigError, match="per_round is 5, but there are only 4 clients"):
        flower_run(METHOD, TASK, LocalGrid({}), per_round=5)


def test_a_share_of_replies_is_counted_without_rounding_up_by_mistake() -> None:
    """0.28 of 25 clients are 7 of them, though 0.28 * 25 is a little more than 7 in floats."""
    assert math.ceil(0.28 * 25) == 8
    with pytest.raises(RunError, match="0 of 7 clients were connected"):
        flower_run(METHOD, tiny_task(25), LocalGrid({}), min_replies=0.28).cohort(0, Ledger())
