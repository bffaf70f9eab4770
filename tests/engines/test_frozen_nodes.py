"""Initial weights in a deployment: frozen parameters are not sent, so a node must have those of the server."""

from pathlib import Path

import pytest
import torch

from helpers.compare import same

pytest.importorskip("flwr")

from torch import nn

from gossamer import RunError, Task, fedavg
from gossamer.core import files
from gossamer.engines.flower import Settings, fleet, initial_weights
from gossamer.engines.flower.server import FlowerRun
from gossamer.engines.options import DEPLOYED_WEIGHT, Options
from gossamer.engines.simulation import Simulation
from gossamer.engines.warm_start import Init
from gossamer.testing import tiny_task
from helpers.flower_runs import CLIENTS, NUMBERS, app, config, ignore
from helpers.local_grid import Handle, LocalGrid, node

METHOD = fedavg(steps=1)
KNOWN = tiny_task(CLIENTS)


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet, "POLL", 0.001)


def half_frozen() -> nn.Module:
    module = KNOWN.model()
    next(module.parameters()).requires_grad_(False)
    return module


TASK = Task(half_frozen, KNOWN.data, KNOWN.split)


def written(path: Path, value: float) -> Path:
    path.write_bytes(
        files.to_tensors({name: torch.full_like(t, value) for name, t in half_frozen().state_dict().items()})
    )
    return path


def members(home: Path, **inits: str) -> dict[int, Handle]:
    """All nodes, where client N has the file ``cN``."""
    given = [{"init": inits[f"c{client}"]} if f"c{client}" in inits else {} for client in range(CLIENTS)]
    return {NUMBERS[c]: node(app(METHOD, TASK), {**config(c, home), **given[c]}) for c in range(CLIENTS)}


def deployed(grid: LocalGrid, **more: object) -> FlowerRun:
    settings = Settings(**{"rounds": 2, "wait": 0, "deadline": 0.05, "rehearsal": True, **more})  # type: ignore[arg-type]
    run = FlowerRun(METHOD, TASK, settings, grid, init=initial_weights(settings))
    run.run(None, ignore)
    return run


def test_nodes_with_the_servers_weights_train_as_in_a_simulation(tmp_path: Path) -> None:
    init = str(written(tmp_path / "init.safetensors", 0.1))
    grid = LocalGrid(members(tmp_path, c0=init, c1=init, c2=init, c3=init))
    run = Simulation(METHOD, TASK, Options(rounds=2, max_weight=DEPLOYED_WEIGHT), init=Init.of(init))
    run.run(None, ignore)
    assert same(deployed(grid, init=init).server, run.server)


def test_a_node_with_other_frozen_weights_is_refused(tmp_path: Path) -> None:
    init, other = (str(written(tmp_path / f"{value}.safetensors", value)) for value in (0.1, 0.2))
    grid = LocalGrid(members(tmp_path, c0=init, c1=init, c2=other))
    with pytest.raises(RunError, match="2 of 4 clients were connected") as stopped:
        deployed(grid, init=init)
    for client in (2, 3):
        refused = f"node {NUMBERS[client]} was refused: its frozen parameters, which are not sent, have other values"
        assert refused in str(stopped.value)
    assert "init= in its --node-config" in str(stopped.value)


def test_a_resumed_deployment_keeps_its_initial_weights(tmp_path: Path) -> None:
    init = written(tmp_path / "init.safetensors", 0.1)
    settings = Settings(rounds=2, init=str(init), out=str(tmp_path / "run"))
    FlowerRun(METHOD, TASK, settings, None, init=initial_weights(settings)).create(tmp_path / "run").close()
    written(init, 0.2)
    found = initial_weights(Settings(rounds=2, init=str(init), out=str(tmp_path / "run"), resume=True))
    assert found is not None
    assert all(bool((tensor == 0.1).all()) for tensor in found.tensors.values())
