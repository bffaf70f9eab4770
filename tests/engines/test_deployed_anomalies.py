"""Anomalies in a deployment: a node that scales its updates is named, excluded, and stays excluded after a restart."""

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr")

from gossamer import Task, fedavg, simulate
from gossamer.core.jobs import Job, Trained
from gossamer.engines.client import Client, ClientResult
from gossamer.engines.flower import client_app
from gossamer.engines.flower.server import FlowerRun
from gossamer.runs.records import read_metrics
from helpers.flower_runs import config, flower_run, ignore
from helpers.local_grid import LocalGrid, node

CLIENTS, HOSTILE = 7, 4
METHOD = fedavg(steps=3)


@pytest.fixture
def grid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LocalGrid:
    """Seven nodes, one of which multiplies its update by 100."""
    encode = Client.encode

    def scaled(client: Client, job: Job, trained: Trained) -> ClientResult:
        if job.clock.client == HOSTILE:
            trained = trained._replace(change={name: 100 * tensor for name, tensor in trained.change.items()})
        return encode(client, job, trained)

    monkeypatch.setattr(Client, "encode", scaled)
    app = client_app(METHOD, task())
    return LocalGrid({90 + c: node(app, config(c, tmp_path / f"node-{c}")) for c in range(CLIENTS)})


def task() -> Task:
    return Task.named("digits", split="iid", clients=CLIENTS)


def made(grid: LocalGrid, **more: Any) -> FlowerRun:
    return flower_run(METHOD, task(), grid, rounds=6, deadline=5.0, **more)


def test_a_node_is_named_and_excluded_as_in_a_simulation(grid: LocalGrid) -> None:
    deployed = made(grid)
    deployed.run(None, ignore)
    assert [[mine["client"] for mine in record.get("anomalies", ())] for record in deployed.metrics[:3]] == [[4]] * 3
    assert all(mine["norm"] > 20 for record in deployed.metrics[:3] for mine in record["anomalies"])
    assert [HOSTILE in record["clients"] for record in deployed.metrics] == [True] * 3 + [False] * 3
    assert [record.get("excluded") for record in deployed.metrics] == [None] * 3 + [[HOSTILE]] * 3
    simulated = simulate(METHOD, task(), rounds=6, exclude_after=3)
    for here, there in zip(deployed.metrics, simulated.metrics, strict=True):
        assert here["clients"] == there["clients"]
        assert here.get("anomalies") == there.get("anomalies")


def test_a_restarted_server_keeps_the_exclusion(grid: LocalGrid, tmp_path: Path) -> None:
    path, first = tmp_path / "run", made(grid)

    def stop(record: Any, run: Any) -> None:
        if record["round"] == 4:
            raise KeyboardInterrupt

    folder = first.create(path)
    with pytest.raises(KeyboardInterrupt):
        first.run(folder, ignore, stop)
    folder.close()
    second = made(grid)
    folder = second.restore(path)
    second.run(folder, ignore)
    folder.close()
    records = read_metrics(path)
    assert [HOSTILE in record["clients"] for record in records] == [True] * 3 + [False] * 3


def test_exclusion_can_be_turned_off(grid: LocalGrid) -> None:
    deployed = made(grid, exclude_after=0)
    deployed.run(None, ignore)
    assert all(HOSTILE in record["clients"] and record["anomalies"] for record in deployed.metrics)
