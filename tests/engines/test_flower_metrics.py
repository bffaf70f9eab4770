"""Deployments of tasks that are not classification: nodes send their metrics, and the server records them."""

import logging
from pathlib import Path

import pytest

pytest.importorskip("flwr")

import torch
from torch import nn

from gossamer import Task, fedavg, simulate
from gossamer.core.random import fold, key, uniform
from gossamer.engines.flower import Settings, serve
from gossamer.engines.flower.server import FlowerRun
from helpers.flower_runs import CLIENTS, deploy, nodes
from helpers.local_grid import LocalGrid

METHOD = fedavg(lr=0.1, epochs=1)


def line() -> nn.Module:
    return nn.Linear(3, 1)


def made() -> Task:
    x = uniform(fold(key(0), "x"), 120).view(40, 3)
    y = x @ torch.tensor([1.0, -2.0, 0.5])
    return Task.of(line, (x, y), (x[:20], y[:20]), clients=CLIENTS, loss="mse")


TASK = made()
METRICS = [f"{which}{name}" for name in ("rmse", "mae") for which in ("", "personal_", "worst_tenth_")]


def own(client: int | None) -> Task:
    if client is None:
        return Task.own(line, client=None, clients=CLIENTS, loss="mse")
    train, test = TASK.data.train.take(TASK.split.train(client)), TASK.data.test.take(TASK.split.test(client))
    return Task.own(line, (train.x, train.y), (test.x, test.y), client=client, clients=CLIENTS, loss="mse")


def test_a_deployed_regression_records_what_the_simulator_records(tmp_path: Path) -> None:
    deployed = deploy(METHOD, TASK, LocalGrid(nodes(METHOD, TASK, tmp_path)))
    wanted = simulate(METHOD, TASK, rounds=2, executor="one-by-one").metrics
    for record, other in zip(deployed.metrics, wanted, strict=True):
        found, expected = ({name: each[name] for name in ("loss", *METRICS)} for each in (record, other))
        assert found == pytest.approx(expected, rel=1e-6), "the last bits of an output depend on its batch"
        assert record["evaluation_failures"] == []


def test_a_server_without_samples_takes_the_means_of_its_nodes(tmp_path: Path) -> None:
    deployed = deploy(METHOD, own(None), LocalGrid(nodes(METHOD, own, tmp_path)))
    for record in deployed.metrics:
        assert record["rmse"] == pytest.approx(record["personal_rmse"])
        assert record["worst_tenth_rmse"] > record["personal_rmse"] > record["mae"] > 0


def test_the_log_of_the_server_names_the_metric(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    settings = Settings(rounds=1, wait=0, deadline=0.05, out=str(tmp_path / "run"))
    with caplog.at_level(logging.INFO, logger="flwr"):
        logging.getLogger("flwr").addHandler(caplog.handler)
        result = serve(FlowerRun(METHOD, TASK, settings, LocalGrid(nodes(METHOD, TASK, tmp_path))))
        logging.getLogger("flwr").removeHandler(caplog.handler)
    assert f"4 clients, rmse {result.score:.4g}" in caplog.text
    assert "%" not in caplog.text
