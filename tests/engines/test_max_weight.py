"""Claimed numbers of samples count up to a multiple of the clients' median: on request, by default when deployed."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from gossamer import ConfigError, Options, Task, fedavg, simulate
from gossamer.core.exchange import Arrival
from gossamer.core.random import Key
from gossamer.core.sampler import Pool, Sampler
from gossamer.core.types import Clock
from gossamer.engines.simulation import Simulation
from gossamer.parts.servers import WeightedMean

SIZES = [4, 6, 5, 85]
COUNTED: list[float] = []
POOLS: list[dict[int, int]] = []


@dataclass(frozen=True)
class Counting(WeightedMean):
    """Notes the number of samples of each arrival."""

    def fold(self, acc: Any, arrival: Arrival) -> Any:
        COUNTED.append(arrival.samples)
        return super().fold(acc, arrival)

    def finish(self, state: Any, acc: Any, clock: Clock) -> Any:
        return self.moved(state, acc)


@dataclass(frozen=True)
class Everyone(Sampler):
    """Notes the clients to choose from."""

    def propose(self, pool: Pool, clock: Clock, key: Key) -> list[int]:
        POOLS.append(dict(pool.available))
        return sorted(pool.available)[: pool.count]


def task() -> Task:
    x, y = torch.sin(torch.arange(600.0)).view(100, 6), torch.arange(100) % 3
    made = Task.of(lambda: nn.Linear(6, 3), (x, y), (x, y), clients=4)
    starts = np.cumsum([0, *SIZES])
    return made.with_split(replace(made.split, train_index=np.arange(100), train_start=starts))


def counted(**options: Any) -> tuple[list[float], dict[str, Any]]:
    COUNTED.clear()
    POOLS.clear()
    method = fedavg(steps=1).with_parts(server=Counting(), sampler=Everyone())
    return COUNTED, simulate(method, task(), rounds=1, **options).metrics[0]


def test_the_largest_client_counts_as_a_multiple_of_the_median() -> None:
    samples, record = counted(max_weight=2.5)
    assert samples == [4, 6, 5, 12]  # 2.5 times the lower median of 5, rounded down
    assert record["limited"] == [3]
    assert POOLS == [{0: 4, 1: 6, 2: 5, 3: 12}]


def test_by_default_a_simulation_has_no_limit() -> None:
    samples, record = counted()
    assert samples == SIZES
    assert "limited" not in record
    assert "max_weight" not in Options().describe()


def test_the_median_is_that_of_all_clients() -> None:
    """Two clients of a round have no median that one of them could not move."""
    samples, record = counted(max_weight=1.0, per_round=2)
    assert samples == [4, 5]
    assert record["limited"] == [1]


def test_a_client_that_claims_more_than_it_has_is_limited_and_listed() -> None:
    liar = simulate(fedavg(steps=1), task(), rounds=1, max_weight=5.0, attack="claim-samples:1000000,share=0.25")
    assert liar.about["hostile"] == [2]
    assert liar.metrics[0]["limited"] == [2, 3], "the liar, and the largest client"


@pytest.mark.parametrize("value", [0.5, -1.0, float("inf")])
def test_wrong_limits(value: float) -> None:
    with pytest.raises(ConfigError, match="max_weight must be at least 1, or none"):
        Options(max_weight=value)


def test_a_deployment_has_a_limit_and_equals_the_simulation_with_it(tmp_path: Path) -> None:
    pytest.importorskip("flwr")
    from helpers.compare import same
    from helpers.flower_runs import deploy, nodes
    from helpers.local_grid import LocalGrid

    method = fedavg(steps=2)
    for number, (given, limit) in enumerate((({}, 5.0), ({"max_weight": 0.0}, None))):
        grid = LocalGrid(nodes(method, task(), tmp_path / str(number)))
        deployed = deploy(method, task(), grid, **given)
        wanted = Simulation(method, task(), Options(rounds=2, max_weight=limit))
        wanted.run(None, lambda record: None)
        assert same(deployed.server, wanted.server)
        assert [record.get("limited") for record in deployed.metrics] == [[3] if limit else None] * 2
