"""Which methods work with updates from several versions of the model, and which schedules fit a run."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from gossamer import (
    METHODS,
    ConfigError,
    Delta,
    Device,
    FedBuff,
    Fleet,
    FleetLinks,
    Lossy,
    Method,
    Options,
    Perfect,
    RunError,
    fedavg,
    fedmrn,
    simulate,
)
from gossamer.core.channel import Channel
from gossamer.core.schedule import Schedule
from gossamer.engines.simulation import Simulation
from gossamer.fleet.availability import read_model
from gossamer.parts.samplers import PowerOfChoice
from helpers import recorder
from helpers.toy_devices import ToyDevices

NO_CHANGES = "does not send changes of the model, which can be scaled by their staleness"
EXCHANGES = "its rounds have several exchanges"
COMMON_KEY = "its codec has a key that all clients of a round share"
DOWNLINK = "its downlink continues from the version that a client holds, round by round"
PRIVATE = "guarantees privacy for one update per client and round"
REFUSED = {
    **dict.fromkeys(("local", "fedpm", "klms", "fedsparsify", "fedavg-pruned"), NO_CHANGES),
    **dict.fromkeys(("perm", "perm-two-stage"), EXCHANGES),
    **dict.fromkeys(("onebit-cs", "onebit-cs-paper", "decomfl", "fedkseed", "hiso"), COMMON_KEY),
    **dict.fromkeys(("dp-fedavg", "dp-ftrl"), PRIVATE),
    "flora": DOWNLINK,
}
"""Methods that need all updates of a round to be from one version, with the reason; docs/schedules.md has the table."""
POOLED = "schedule is for clients on devices, and this method pools all samples"
MIXING = ("fedbuff:buffer=2,concurrency=3", "fedasync", "deadline:3s,late=fold")


def prepared(method: Method, schedule: str, **options: Any) -> Simulation:
    """Check a run, as it is done before the first round."""
    given: dict[str, Any] = {"schedule": schedule, "channel": ToyDevices(), **options}
    return Simulation(method, recorder.task_for(method), Options(**given))


@pytest.mark.parametrize("name", METHODS)
def test_methods_that_cannot_mix_versions_are_refused_with_the_reason(name: str) -> None:
    method = METHODS[name]()
    if name == "centralised":
        for schedule in (*MIXING, "sync"):
            with pytest.raises(ConfigError) as caught:
                prepared(method, schedule)
            assert str(caught.value) == POOLED
    elif name in REFUSED:
        for schedule in MIXING:
            with pytest.raises(ConfigError, match=rf"{REFUSED[name]}: use sync, or deadline with late=drop$"):
                prepared(method, schedule)
        prepared(method, "sync")
    else:
        prepared(method, MIXING[0])


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", [name for name in METHODS if name != "centralised"])
def test_all_other_methods_run(name: str) -> None:
    schedules = ("sync", "deadline:3s,over=1.5", *(() if name in REFUSED else MIXING))
    for schedule in schedules:
        devices = ToyDevices(leaving=True, lossy=True, speed=1e7, rate=3e4)
        method = METHODS[name]()
        found = simulate(method, recorder.task_for(method), rounds=4, per_round=2, schedule=schedule, channel=devices)
        assert not any(record["failures"] for record in found.metrics)
        assert any("folded" in record["tasks"]["outcome"] for record in found.metrics)


def test_parts_that_belong_to_one_round_are_refused() -> None:
    with pytest.raises(ConfigError, match="its downlink continues from the version that a client holds"):
        prepared(fedmrn().with_parts(down=Delta()), "fedbuff:concurrency=2")
    with pytest.raises(ConfigError, match=EXCHANGES):
        prepared(fedavg().with_parts(sampler=PowerOfChoice(4)), "fedasync", per_round=2)
    for schedule in ("sync", "deadline:3s"):
        prepared(fedmrn().with_parts(down=Delta()), schedule)
        prepared(fedavg().with_parts(sampler=PowerOfChoice(4)), schedule, per_round=2)


@pytest.mark.parametrize(
    ("schedule", "slots"), [("fedbuff:concurrency=6", 6), ("fedasync:concurrency=9", 9), ("deadline:1s,over=1.3", 7)]
)
def test_more_clients_in_training_than_there_are_is_refused(schedule: str, slots: int) -> None:
    with pytest.raises(ConfigError, match=rf"lets {slots} clients train at once, and there are 5"):
        prepared(fedavg(), schedule)


@pytest.mark.parametrize(
    ("schedule", "message"),
    [
        ("fedbuf", "fedbuff"),
        ("deadline", "write it as deadline:AFTER"),
        ("deadline:0s", "0s"),
        ("deadline:soon", "soon"),
        ("deadline:1s,late=keep", "late must be one of drop, fold"),
        ("deadline:1s,over=0.9", "over must be at least 1"),
        ("fedbuff:buffer=0", "buffer must be at least 1"),
        ("fedbuff:concurrency=0", "concurrency must be at least 1"),
        ("fedbuff:staleness=-1", "exponent must not be negative"),
        ("fedbuff:staleness=hinge/1", "hinge/SLOPE/AFTER"),
        ("fedbuff:max_staleness=-1", "max_staleness must not be negative"),
        ("fedasync:mix=0", "mix must be in"),
        ("fedasync:mix=1.5", "mix must be in"),
    ],
)
def test_wrong_schedules_are_refused_by_name(schedule: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Options(schedule=schedule)  # type: ignore[arg-type]


def test_a_buffer_larger_than_the_number_of_clients_is_refused() -> None:
    with pytest.raises(ConfigError, match="waits for 6 updates, and there are 5 clients"):
        prepared(fedavg(), "fedbuff:6")
    prepared(fedavg(), "fedbuff:5")


@pytest.mark.parametrize("channel", [Perfect(), Lossy(0.1)])
def test_a_channel_without_devices_is_refused(channel: Channel) -> None:
    with pytest.raises(ConfigError, match="schedule needs devices and links that take time"):
        Simulation(fedavg(), recorder.task(), Options(schedule=FedBuff(2), channel=channel))
    assert not isinstance(Options(schedule=FedBuff()).channel, Perfect)


@dataclass(frozen=True)
class Odd(Schedule):
    """A schedule that returns what it is given."""

    clients: Any = 3
    updates: Any = 2
    after: Any = None
    share: Any = 1.0
    at_once: bool = False

    @property
    def deadline(self) -> Any:
        return self.after

    @property
    def refills(self) -> bool:
        return self.at_once

    @property
    def keeps_late(self) -> bool:
        return False

    def slots(self, cohort: int) -> Any:
        return self.clients

    def goal(self, cohort: int) -> Any:
        return self.updates

    def factor(self, staleness: int) -> Any:
        return self.share


@pytest.mark.parametrize(
    ("schedule", "message"),
    [
        (Odd(clients=0), "Odd.slots must return a whole number, at least 1, got 0"),
        (Odd(clients=2.5), "Odd.slots must return a whole number, at least 1, got 2.5"),
        (Odd(updates=0), "Odd.goal must return a whole number, at least 1, or none, got 0"),
        (Odd(after=1.5), "Odd.deadline must be whole nanoseconds, or none, got 1.5"),
        (Odd(share=-1.0), "Odd.factor must return at least 0, or none, got -1.0"),
        (Odd(share=float("nan")), "Odd.factor must return at least 0, or none, got nan"),
        (Odd(at_once=True), "Odd.keeps_late must be true, since it refills slots"),
    ],
)
def test_what_a_schedule_of_ones_own_returns_is_checked(schedule: Schedule, message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        Simulation(fedavg(), recorder.task(), Options(schedule=schedule, channel=ToyDevices()))
    Simulation(fedavg(), recorder.task(), Options(schedule=Odd(), channel=ToyDevices()))


def test_a_device_that_needs_centuries_ends_the_run() -> None:
    slow = FleetLinks(Fleet((Device("slow", clients=5, memory=None, flops=1e-6, up=1e6),)))
    with pytest.raises(RunError, match="virtual time ends after 146 years: check the speed and the rates"):
        simulate(fedavg(steps=1), recorder.task(), rounds=2, schedule="sync", channel=slow)


def test_clients_that_are_never_available_are_refused(tmp_path: Path) -> None:
    (tmp_path / "trace.csv").write_text("client,start,end\n77,0,10\n")
    model = read_model(f"trace:{tmp_path / 'trace.csv'},clients=number")
    away = FleetLinks(Fleet((Device("away", clients=5, memory=None, flops=1e9, up=1e6, availability=model),)))
    with pytest.raises(ConfigError, match="no client is ever available"):
        simulate(fedavg(steps=1), recorder.task(), schedule="sync", channel=away, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_rounds_without_an_update_are_counted() -> None:
    result = simulate(fedavg(steps=1), recorder.task(), rounds=3, schedule="deadline:1ns", channel=ToyDevices())
    assert result.summary()["empty_rounds"] == 3
