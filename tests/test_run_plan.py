"""``gossamer run --plan``: what a plan says is what a run does."""

import json
from pathlib import Path
from typing import Any

import pytest

from gossamer import ConfigError, Wireless
from gossamer.channels import CHANNELS
from gossamer.cli import main
from gossamer.device import Device
from gossamer.fleet import Fleet
from gossamer.planning import Plan, Share
from gossamer.planning.plan import digest
from gossamer.random import key
from gossamer.runs import read_metrics
from gossamer.specs import parse
from gossamer.types import Clock

FLEET = Fleet((Device("phone", 5, None, 1e9, power=0.01, distance=100.0),))
SHARES = tuple(Share("phone", 0.01 * (n + 1), 0.1 * n, 0.1, 1e6, 0.1, 0.1, 0.1, 0.1) for n in range(5))


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    FLEET.write("fleet.toml")
    Plan(7, 7, {"outages": 1.0}, SHARES, digest(FLEET), 0, 83).write("plan.json")
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
    assert record["bytes_up"]["signs"] == 5, "seven signs each"
    Path("plan.json").unlink()
    assert main(["resume", "run"]) == 0


def test_a_method_without_such_flags_gets_powers_alone(place: Path) -> None:
    assert go("fedavg --epochs 1") == 0
    assert "powers=0.01+0.02+0.03" in json.loads(Path("run/run.json").read_text())["options"]["channel"]


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ("run onebit-cs --plan plan.json --out run", "add --channel wireless --fleet FILE"),
        ("run onebit-cs --plan none.json", "none.json: cannot be read"),
        ("run onebit-cs --plan plan.json --clients 9", "the plan is for 5 clients, not for 9"),
        ("run onebit-cs --plan plan.json --clients 5 --rows 3", "--rows is for the plan to say"),
    ],
)
def test_mistakes_are_told_before_anything_runs(
    place: Path, capsys: pytest.CaptureFixture[str], change: str, told: str
) -> None:
    channel = [] if "--out" in change else ["--channel", "wireless", "--fleet", "fleet.toml", "--out", "run"]
    assert main([*change.split(), *channel]) == 2
    assert told in capsys.readouterr().err
    assert not Path("run").exists()


def test_powers_are_one_for_each_client_or_for_all() -> None:
    cell = Wireless(FLEET, powers=(0.02,)).fit(3, key(0))
    weak = Wireless(FLEET).fit(3, key(0))
    spent = [one.send(1000, Clock(0, 1, 2), key(1)) for one in (cell, weak)]
    assert spent[0].seconds < spent[1].seconds
    assert spent[0].joules == pytest.approx(0.02 * spent[0].seconds)
    with pytest.raises(ConfigError, match="there are 2, but 3 clients"):
        Wireless(FLEET, powers=(0.1, 0.2)).fit(3, key(0))
    with pytest.raises(ConfigError, match="must be positive"):
        Wireless(FLEET, powers=(0.0,))
