"""Sampled fleets: their number of clients, the spread of speeds, and figures of a fleet."""

import math
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gossamer import ConfigError
from gossamer.core.random import key
from gossamer.fleet.fleet import Device, Fleet
from gossamer.fleet.presets import PRESETS
from gossamer.fleet.summary import histogram, quantiles, summarise
from gossamer.parts.channels.links import FleetLinks


@settings(max_examples=40, deadline=None)
@given(preset=st.sampled_from(sorted(PRESETS)), clients=st.integers(1, 600), seed=st.integers(0, 50))
def test_a_sampled_fleet_has_the_clients_and_shares_of_its_preset(preset: str, clients: int, seed: int) -> None:
    fleet, found = Fleet.sample(preset, clients, seed), PRESETS[preset]
    assert fleet.clients == clients
    assert Fleet.sample(preset, clients, seed) == fleet
    for link in found.links:
        count = sum(device.clients for device in fleet.devices if device.name.endswith(f", {link.name}"))
        assert abs(count - link.share * clients) < 1
    speeds = [device.flops for device in fleet.devices]
    assert speeds == sorted(speeds)
    assert all(found.flops / 10 < speed < found.flops * 10 for speed in speeds)


@pytest.mark.parametrize("preset", PRESETS)
def test_speeds_have_the_spread_of_the_preset(preset: str) -> None:
    found, logs = PRESETS[preset], []
    for seed in range(30):
        for device in Fleet.sample(preset, 200, seed).devices:
            logs += [math.log(device.flops / found.flops)] * device.clients
    deviation = math.sqrt(sum(x**2 for x in logs) / len(logs))
    assert deviation == pytest.approx(found.spread, rel=0.05)
    assert sum(logs) / len(logs) == pytest.approx(0, abs=0.05)


@pytest.mark.parametrize("preset", PRESETS)
def test_a_fleet_of_normal_size_has_few_kinds_and_other_seeds_give_other_devices(preset: str, tmp_path: Path) -> None:
    fleet = Fleet.sample(preset, 1000)
    assert 20 <= len(fleet.devices) <= 50
    assert fleet != Fleet.sample(preset, 1000, 1)
    fleet.write(tmp_path / "fleet.toml", "one\n\ntwo")
    assert (tmp_path / "fleet.toml").read_text().startswith("# one\n#\n# two\n\n[[device]]\n")
    assert Fleet.read(tmp_path / "fleet.toml") == fleet


def test_wrong_samples_are_refused() -> None:
    with pytest.raises(ConfigError, match="unknown fleet 'phone': did you mean phones"):
        Fleet.sample("phone", 5)
    with pytest.raises(ConfigError) as error:
        Fleet.sample("phones", 0, -1)
    assert error.value.mistakes == ("clients must be at least 1, got 0", "seed must not be negative, got -1")


# Figures.


def test_figures_are_those_of_a_run() -> None:
    fleet = Fleet.sample("phones", 60, 3)
    summary, run = summarise(fleet, seed=5), FleetLinks(fleet).fit(60, key(5))
    terminals = [run.terminal(client, 0) for client in range(60)]
    assert summary.up == [terminal.up.mean for terminal in terminals]
    assert summary.down == [terminal.down.mean for terminal in terminals if terminal.down]
    assert summary.flops == [terminal.device.flops for terminal in terminals]
    at = [((24 * day + 3) * 3600 + 1800) * 10**9 for day in range(7)]
    here = [run.availability(client).interval(time).start <= time for client in range(60) for time in at]
    assert summary.available[3] == sum(here) / len(here)
    assert sum(kind["clients"] for kind in summary.kinds) == 60


def test_clients_of_a_large_fleet_are_drawn() -> None:
    fleet = Fleet((Device("a", 3, None, 1e9, up=1e6), Device("b", 1, 5, 2e9, up=2e6, down=3e6)))
    summary = summarise(fleet, 100_000)
    assert len(summary.up) == 2000
    assert abs(summary.up.count(2e6) - 500) < 4 * math.sqrt(2000 / 4 * 3 / 4)
    assert [kind["clients"] for kind in summary.kinds] == [75_000, 25_000]
    assert summary.available == [1.0] * 24
    assert summary.kinds[0] | {"up": "1 Mbit/s", "down": "free", "memory": None} == summary.kinds[0]


@given(values=st.lists(st.floats(1e-3, 1e12), min_size=1, max_size=60), most=st.integers(1, 12))
def test_a_histogram_counts_every_value_once(values: list[float], most: int) -> None:
    bars = histogram(values, most)
    assert sum(bar.clients for bar in bars) == len(values)
    assert bars[0].low == min(values)
    assert bars[-1].high == max(values)
    for bar, after in pairwise(bars):
        assert bar.high == after.low
    for bar in bars[1:]:
        assert bar.clients == sum(bar.low < value <= bar.high for value in values)


def test_quantiles() -> None:
    assert quantiles([]) is None
    assert quantiles([3.0, 1.0, 2.0, 5.0, 4.0]) == {
        "least": 1.0,
        "quarter": 2.0,
        "median": 3.0,
        "three_quarters": 4.0,
        "most": 5.0,
    }


def test_a_drawn_fleet_has_a_text() -> None:
    fleet = Fleet.of_text("sample:sensors")
    assert fleet == Fleet.sample("sensors", 1000)
    assert Fleet.of_text(fleet.to_text()) == fleet
    with pytest.raises(ConfigError, match="unknown fleet 'sensor': did you mean sensors"):
        Fleet.of_text("sample:sensor")
