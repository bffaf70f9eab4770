"""The study of schedules: its cells, the partition by device, and what it stores and prints."""

import numpy as np
import pytest

from gossamer import Fleet, simulate
from gossamer.core.random import key
from gossamer.core.specs import parse
from gossamer.parts.schedules import SCHEDULES
from gossamer.testing import tiny_task
from reproduce.baselines import schedules
from reproduce.common import cells
from reproduce.common.by_device import ByDevice


def test_all_schedules_train_twenty_clients_at_once() -> None:
    every = [cell for study in schedules.STUDIES.values() for cell in study()]
    assert len({cell.name for cell in every}) == len(every)
    for cell in every:
        schedule = parse(cell.virtual, SCHEDULES, "schedule")
        assert schedule.slots(cell.per_round) == 20
        assert cell.rounds * cell.per_round == schedules.UPDATES


def test_the_devices_have_ten_speeds_and_are_dealt_in_turn() -> None:
    fast, thin = (Fleet.read(cells.VIRTUAL_FLEETS / name) for name in ("devices.toml", "thin_devices.toml"))
    assert [fast.device(client, 200).name for client in range(20)] == [f"kind {client % 10}" for client in range(20)]
    assert fast.devices[-1].flops == pytest.approx(10 * fast.devices[0].flops, rel=0.01)
    assert {device.up for device in thin.devices} == {100e3}


def test_labels_go_with_the_kind_of_device() -> None:
    labels = np.arange(4000) % 10
    owner = ByDevice(0.5).deal(labels, 10, 40, key(0), None)
    counts = np.bincount(owner * 10 + labels, minlength=400).reshape(40, 10)
    assert (counts.sum(1) == 100).all()
    for client in range(40):
        assert counts[client, client % 10] == 55


def test_costs_are_those_of_the_first_evaluation_that_reaches_the_target() -> None:
    facts = {"accuracy": [50.0, 85.1, 90.0], "times": [10.0, 7200.0, 9000.0], "joules": [1.0, 2500.0, 3000.0]}
    facts |= {"sent": [0, 5_000_000, 6_000_000], "rounds_told": [4, 8, 12]}
    found = {name: value(facts) for name, (value, _) in schedules.COLUMNS.items()}
    assert found == {"virtual hours": 2.0, "kilojoules": 2.5, "megabytes uploaded": 5.0, "aggregations": 8.0}
    assert schedules.COLUMNS["virtual hours"][0]({**facts, "accuracy": [50.0, 60.0, 70.0]}) is None


def test_facts_of_a_run() -> None:
    cell = schedules.cell("main", "fedbuff", "fedavg", 0)
    task = tiny_task(10)
    result = simulate(cells.method(cell), task, rounds=3, per_round=4, eval_every=2, schedule="fedbuff:buffer=2")
    facts = schedules.more(cell, task, result)
    assert facts["rounds_told"] == [2, 3]
    assert facts["times"] == [round(result.metrics[at]["time"], 3) for at in (1, 2)]
    assert facts["outcomes"]["folded"] == 6
    assert len(facts["by_speed"]) == 10
