"""``gossamer run --plan``: what a plan says is what a run does."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gossamer import ConfigError, Wireless
from gossamer.analysis.planning import Plan, Share
from gossamer.analysis.planning.plan import digest
from gossamer.analysis.planning.work import operations
from gossamer.cli import main
from gossamer.core.random import key
from gossamer.core.specs import parse
from gossamer.core.types import Clock
from gossamer.fleet.device import Device
from gossamer.fleet.fleet import Fleet
from gossamer.fleet.keys import Span
from gossamer.parts.channels import CHANNELS
from gossamer.runs.records import read_metrics
from gossamer.tasks.objective import Objective
from gossamer.testing import tiny_task

FLEET = Fleet((Device("phone", 5, None, 1e9, power=0.01, distance=100.0),))
SHARES = tuple(Share("phone", 0.01 * (n + 1), 0.1 * n, 0.1, 1e6, 0.0, 0.1, 0.1, 0.1, 0.1) for n in range(5))
ROOM = 500
"""Bytes of a planned message: more than it takes."""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    FLEET.write("fleet.toml")
    Plan(7, 8 * ROOM, {"outages": 1.0}, SHARES, digest(FLEET), parameters=83).write("plan.json")
    Path("tasks.py").write_text("from gossamer.testing import tiny_task\n\n\ndef task():\n    return tiny_task()\n")
    return tmp_path


def go(words: str) -> int:
    given = "--channel wireless --fleet fleet.toml --plan plan.json --task tasks.py:task --rounds 1"
    return main(f"run {words} {given} --executor one-by-one --out run".split())


def test_a_run_does_as_its_plan_says_and_needs_it_no_more(place: Path) -> None:
    assert go("onebit-cs") == 0
    about: dict[str, Any] = json.loads(Path("run/run.json").read_text())
    assert "rows=7" in about["method"]["codec"]
    assert f"ratio={tuple(share.ratio for share in SHARES)}" in about["method"]["view"]
    channel = parse(about["options"]["channel"], CHANNELS, "channel")
    assert isinstance(channel, Wireless)
    assert channel.powers == tuple(share.power for share in SHARES)
    (record,) = read_metrics(Path("run"))
    assert record["bytes_up"]["codec.signs"] == 5, "seven signs each"
    Path("plan.json").unlink()
    assert main(["resume", "run"]) == 0


def test_a_method_without_such_flags_gets_powers_alone(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert go("fedavg --epochs 1") == 0
    assert "--plan: fedavg takes only the powers" in capsys.readouterr().err
    assert "powers=0.01+0.02+0.03" in json.loads(Path("run/run.json").read_text())["options"]["channel"]


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ("run onebit-cs --plan plan.json --out run", "add --channel wireless --fleet FILE"),
        ("run onebit-cs --plan none.json", "none.json: cannot be read"),
        ("run onebit-cs --plan plan.json --clients 9", "the plan is for 5 clients, not for 9"),
        ("run onebit-cs --plan plan.json --clients 5 --rows 3", "--rows is set by the plan"),
        ("run onebit-cs --plan plan.json --clients 5 --measurements 0.5", "--measurements is set by the plan"),
        ("run onebit-cs --plan plan.json --clients 5 --rise 3", "--rise is set by the plan"),
        ("run onebit-cs --plan plan.json --clients 5 --codec eden", "--codec is set by the plan"),
        ("run onebit-cs --plan plan.json --clients 5", "--plan: the plan is for 83 parameters, and the model has"),
    ],
)
def test_mistakes_are_told_before_anything_runs(
    place: Path, capsys: pytest.CaptureFixture[str], change: str, told: str
) -> None:
    channel = [] if "--out" in change else ["--channel", "wireless", "--fleet", "fleet.toml", "--out", "run"]
    assert main([*change.split(), *channel]) == 2
    assert told in capsys.readouterr().err
    assert not Path("run").exists()


def test_an_adapted_network_has_no_plan(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert go("onebit-cs --adapter lora:2") == 2
    assert "--plan: the plan is for a whole network, whose weights are pruned" in capsys.readouterr().err
    assert not Path("run").exists()


WORK = [
    ("", 1.0, 1, ""),
    ("", 0.5, 1, "client 0, one of 5 like it, has 200% of the operations that were planned: plan anew"),
    ("", 2.0, 1, ""),
    ("--set view.rise=3", 1.0, 1, "do not set ratio, by or rise"),
    ("--set codec.codec.rows=9", 1.0, 1, "the plan has 7 measurements"),
    ("--no-fresh --retain signs", 1.0, 1, "retained signs take 2 bits per measurement, and the plan has 1"),
    ("--no-fresh --retain signs", 1.0, 2, ""),
    ("--length 0.5", 1.0, 1, ""),
    ("--set solver.steps=2", 1.0, 1, "has 200% of the operations"),
]


@pytest.mark.parametrize(("words", "planned", "bits", "told"), WORK)
def test_a_run_that_takes_more_than_its_plan_has_is_refused(
    place: Path, capsys: pytest.CaptureFixture[str], words: str, planned: float, bits: int, told: str
) -> None:
    task = tiny_task()
    each = operations(Objective(task, "cpu", key(0)))
    taken = [planned * each * len(task.split.train(client)) for client in range(5)]
    shares = tuple(replace(share, flops=flops) for share, flops in zip(SHARES, taken, strict=True))
    Plan(7, 8 * ROOM, {"outages": 1.0}, shares, digest(FLEET), parameters=83, each=bits).write("plan.json")
    assert go(f"onebit-cs {words}") == (2 if told else 0)
    said = capsys.readouterr().err
    assert told in said
    assert ("has 50% of the operations that were planned: a plan for these would be better" in said) == (planned > 1)


def test_a_run_whose_messages_are_longer_than_planned_is_refused(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert go("onebit-cs") == 0
    (record,) = read_metrics(Path("run"))
    taken = sum(record["bytes_up"].values()) // 5
    for room in (taken, taken - 1):
        shutil.rmtree("run", ignore_errors=True)
        Plan(7, 8 * room, {"outages": 1.0}, SHARES, digest(FLEET), parameters=83).write("plan.json")
        assert go("onebit-cs") == (0 if room == taken else 2)
    assert (
        f"messages take {taken} bytes, and the plan has {room}: plan anew, with --overhead" in capsys.readouterr().err
    )


@pytest.mark.parametrize(
    ("channel", "told"),
    [
        ("wireless:fading=none,fleet=fleet.toml", "the plan is for wireless:fading=power, not for none"),
        ("wireless:fleet.toml,seed=3", "and with 3 devices are elsewhere"),
        ("wireless:seed=0,fleet=fleet.toml", ""),
        ('wireless:"fleet=a,b.toml"', ""),
        ("wireless:fleet.toml,powers=0.1", "--channel is set by the plan"),
    ],
)
def test_a_plan_is_for_its_links(place: Path, capsys: pytest.CaptureFixture[str], channel: str, told: str) -> None:
    fleet = Fleet((replace(FLEET.devices[0], distance=Span(10.0, 100.0)),))
    fleet.write("fleet.toml")
    fleet.write("a,b.toml")
    Plan(7, 8 * ROOM, {"outages": 1.0}, SHARES, digest(fleet), parameters=83).write("plan.json")
    words = ["run", "onebit-cs", "--channel", channel, "--plan", "plan.json", "--task", "tasks.py:task"]
    assert main([*words, "--rounds", "1", "--executor", "one-by-one"]) == (2 if told else 0)
    assert told in capsys.readouterr().err


def test_powers_are_one_for_each_client_or_for_all() -> None:
    cell = Wireless(FLEET, powers=(0.02,)).fit(3, key(0))
    weak = Wireless(FLEET).fit(3, key(0))
    spent = [one.send(1000, Clock(0, 1, 2), key(1)) for one in (cell, weak)]
    assert spent[0].seconds < spent[1].seconds
    assert spent[0].joules == pytest.approx(0.02 * spent[0].seconds)
    with pytest.raises(ConfigError, match="must have 1 or 3 values, got 2"):
        Wireless(FLEET, powers=(0.1, 0.2)).fit(3, key(0))
    with pytest.raises(ConfigError, match="must be positive"):
        Wireless(FLEET, powers=(0.0,))
