"""Runs with gradient checkpointing: the same models, what executors refuse, what is recorded, resume and actors."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from gossamer import ConfigError, Options, Result, RunError, Task, fedavg, fedmrn, fedspa, simulate
from gossamer.cli import main
from gossamer.cli.request import config_of
from gossamer.engines.client import Client
from gossamer.engines.executors import EAGER, EXECUTORS
from gossamer.engines.ray.actor import Blueprint
from gossamer.engines.simulation import Simulation
from gossamer.runs.records import read_about
from gossamer.runs.report import labels, tables
from helpers.flower_runs import check_parity

X, Y = torch.randn(48, 6, generator=torch.Generator().manual_seed(1)), torch.arange(48) % 3


def network() -> nn.Module:
    def block() -> nn.Module:
        return nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Dropout(0.2), nn.ReLU())

    return nn.Sequential(block(), block(), block(), nn.Linear(6, 3))


TASK = Task.of(network, (X, Y), (X, Y), clients=4)
METHODS = {
    "fedavg": fedavg(epochs=2, batch=8),
    "fedmrn": fedmrn(steps=3, batch=8, alpha=0.01),  # a straight-through estimator
    "fedspa": fedspa(epochs=1, batch=8),  # a gradient after training
}


def run(name: str = "fedavg", task: Task = TASK, **options: Any) -> Result:
    return simulate(METHODS[name], task, rounds=2, **options)


def equal(one: Result, other: Result) -> bool:
    pairs = zip(one.model.state_dict().values(), other.model.state_dict().values(), strict=True)
    return all(torch.equal(a, b) for a, b in pairs)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name == "fedavg" else pytest.mark.slow) for name in METHODS]
)
def test_models_are_the_same(name: str) -> None:
    plain, found = run(name), run(name, checkpointing=True)
    assert equal(plain, found)
    assert not any(record["failures"] for record in found.metrics)
    assert found.metrics[0]["flops"] > plain.metrics[0]["flops"]
    assert equal(run(name, checkpointing=True, executor="side-by-side"), found)


@pytest.mark.parametrize("executor", sorted({*EXECUTORS} - {*EAGER}))
def test_other_executors_are_refused(executor: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="checkpointing needs auto, one-by-one, side-by-side or threaded as executor"):
        run(checkpointing=True, executor=executor, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()
    client = Simulation(METHODS["fedavg"], TASK, Options(checkpointing=True)).client
    if not executor.startswith("captured"):  # these need a GPU first
        with pytest.raises(ConfigError, match="checkpointing saves no memory where steps are stacked"):
            EXECUTORS[executor](client)


@pytest.mark.slow
def test_auto_leaves_out_what_does_not_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gossamer.engines.executors.auto.SHORT", 0.0)
    monkeypatch.setattr("gossamer.engines.executors.auto.LONG", 0.0)
    result = run(checkpointing=True, executor="auto")
    assert set(result.about["left_out"]) == {"stacked", "compiled"}
    assert {"one-by-one", "side-by-side"} <= set(result.about["rates"]) <= {*EAGER}
    text = tables.closing(result.summary())
    assert f"{result.about['executor']} with checkpointing (client steps per second: " in text
    assert "without stacked, compiled: checkpointing saves no memory" in tables.executor(result.summary())


def test_mistakes_are_found_before_training(tmp_path: Path) -> None:
    flat = Task.of(lambda: nn.Sequential(nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 3)), (X, Y), (X, Y), clients=4)
    with pytest.raises(ConfigError, match="checkpointing repeats blocks of the network, and this one has none"):
        run(task=flat, checkpointing=True, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_what_is_recorded() -> None:
    plain, other = run(), run(checkpointing=True)
    assert "checkpointing" not in plain.about["options"]  # as in folders of earlier releases
    assert [each.summary()["checkpointing"] for each in (plain, other)] == [False, True]
    assert labels.labels([plain.about, other.about]) == ["fedavg", "fedavg checkpointing=True"]
    assert "checkpointing" in tables.differences([plain.summary(), other.summary()])
    assert Options.read(Options(checkpointing=True).describe()).checkpointing
    assert Options.read(Options().describe()) == Options()


def test_a_run_is_resumed_with_checkpointing(tmp_path: Path) -> None:
    whole = simulate(METHODS["fedavg"], TASK, rounds=3, checkpointing=True)
    simulation = Simulation(METHODS["fedavg"], TASK, Options(rounds=3, checkpointing=True))
    folder = simulation.create(tmp_path / "run")
    simulation.round(0, folder)
    folder.close()
    again: dict[str, Any] = {"out": tmp_path / "run", "resume": True, "rounds": 3}
    with pytest.raises(RunError, match="checkpointing is the default, was True"):
        simulate(METHODS["fedavg"], TASK, **again)
    assert equal(simulate(METHODS["fedavg"], TASK, checkpointing=True, **again), whole)


@pytest.mark.slow
def test_actors_of_a_cluster_use_it() -> None:
    client = Simulation(METHODS["fedavg"], TASK, Options(checkpointing=True, precision="bf16")).client
    built: Client = Blueprint.of(client).client(None)
    assert built.objective.checkpointing
    assert built.objective.precision.name == "bf16"


def test_nodes_use_it(tmp_path: Path) -> None:
    check_parity(fedavg(steps=2, batch=8), TASK, tmp_path, checkpointing=True)


def test_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["run", "fedavg", "--rounds", "1", "--clients", "2", "--steps", "1", "--checkpointing"]
    out = tmp_path / "run"
    assert main([*words, "--model", "mixer", "--executor", "one-by-one", "--out", str(out)]) == 0
    assert "one-by-one with checkpointing" in capsys.readouterr().out
    assert "checkpointing = true" in config_of(out, read_about(out))
    capsys.readouterr()
    assert main([*words, "--model", "mlp", "--out", str(tmp_path / "none")]) == 2
    assert "--checkpointing repeats blocks of the network" in capsys.readouterr().err
    assert main([*words, "--model", "mixer", "--executor", "stacked", "--out", str(tmp_path / "none")]) == 2
    assert "--checkpointing needs auto, one-by-one, side-by-side or threaded as --executor" in capsys.readouterr().err
    assert not (tmp_path / "none").exists()
