"""Runs on a cluster give the bytes of runs on one machine, whatever the order of completion and whatever dies."""

import os
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray
import torch
from hypothesis import given
from hypothesis import strategies as st
from ray.exceptions import ActorDiedError, OutOfMemoryError
from torch import Tensor, nn

from gossamer import METHODS, ConfigError, Options, RunError, Task, fedavg, fedspa, resume, simulate
from gossamer.core.random import Key
from gossamer.core.types import Clock
from gossamer.core.wire import Frame
from gossamer.engines.client import ClientTask
from gossamer.engines.ray import ClusterWarning, actor, executor, nodes, pool
from gossamer.engines.ray.dealer import AHEAD, Dealer
from gossamer.engines.ray.nodes import Need, Node
from gossamer.runs.records import checkpoints
from gossamer.testing import tiny_task
from helpers.fake_ray import Deadly, FakeActor, FakeRay

Fake = Callable[..., FakeRay]
FIGURES = ("bytes_up", "bytes_down", "flops", "clients", "failures", "train_loss", "accuracy", "personal_accuracy")


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Fake:
    """Replace Ray by one without processes."""

    def use(**options: Any) -> FakeRay:
        made = FakeRay(**options)
        for module in (actor, executor, nodes, pool):
            monkeypatch.setattr(module, "ray", made)
        return made

    return use


def figures(result: Any) -> list[dict[str, Any]]:
    return [{name: record.get(name) for name in FIGURES} for record in result.metrics]


def contents(run: Path) -> dict[str, bytes]:
    """The files of the last checkpoint that hold tensors."""
    last = checkpoints(run)[0]
    found = [*(run / "checkpoints" / f"{last:06d}").glob("*.safetensors"), *run.glob("clients/**/*.safetensors")]
    assert found
    return {str(path.relative_to(run)): path.read_bytes() for path in found}


def same_bytes(method: Any, task: Task, folder: Path, **options: Any) -> Any:
    """Run on one machine and on a cluster; all checkpoints and figures must be equal. Return the second result."""
    common = {"rounds": 2, "per_round": 5} | {k: v for k, v in options.items() if k not in ("cluster", "actors")}
    alone = simulate(method, task, out=folder / "alone", **common)
    result = simulate(method, task, out=folder / "cluster", **common, cluster="auto", actors=options.get("actors"))
    assert contents(folder / "cluster") == contents(folder / "alone")
    assert figures(result) == figures(alone)
    return result


# A real instance.


@pytest.fixture(scope="module")
def local_ray() -> Iterator[None]:
    assert nodes.connect("local")
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Ray leaves files open
        ray.shutdown()


def test_two_actors_give_the_bytes_of_one_machine(local_ray: None, tmp_path: Path) -> None:
    result = same_bytes(fedspa(epochs=2, batch=4), tiny_task(clients=8), tmp_path, actors=2)
    assert [record["cluster"]["actors"] for record in result.metrics] == [2, 2]
    assert result.about["executor"] == "one-by-one"
    assert sum(result.about["cluster"]["machines"].values()) == 2
    assert ray.is_initialized()  # a connection that was there before stays


# Ray without processes: any order of completion.


@pytest.mark.parametrize("name", ["fedavg", "scaffold", "perm", "ifca", "fedspa", "ef21", "fedmrn", "centralized"])
def test_shuffled_completions_give_the_same_bytes(name: str, fake: Fake, tmp_path: Path) -> None:
    cluster = fake(seed=3, cores=(2, 1))
    result = same_bytes(METHODS[name](), tiny_task(clients=8), tmp_path)
    assert len({each.node for each in cluster.actors}) == 2
    assert result.metrics[-1]["cluster"] == {"nodes": 2, "actors": 3}
