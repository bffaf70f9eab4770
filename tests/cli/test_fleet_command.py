"""``gossamer fleet``: sample, show and convert."""

import json
import pickle
from pathlib import Path

import pytest

from gossamer.cli import main
from gossamer.fleet.availability import read_model
from gossamer.fleet.fleet import Fleet
from helpers.paths import ROOT


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(capsys: pytest.CaptureFixture[str], words: str, status: int = 0) -> str:
    assert main(words.split()) == status
    printed = capsys.readouterr()
    return printed.err if status else printed.out


def test_a_sampled_fleet_is_written_and_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert "60 devices of" in run(capsys, "fleet sample phones --clients 60 --seed 4 --out fleet.toml")
    assert Fleet.read("fleet.toml") == Fleet.sample("phones", 60, 4)
    assert "gossamer fleet sample phones --clients 60 --seed 4" in Path("fleet.toml").read_text()
    shown = run(capsys, "fleet show fleet.toml --out fleet.svg")
    for words in ("phone 1, Wi-Fi", "speed, clients", "memory for training", "upload rate", "by hour (UTC)", "23:00"):
        assert words in shown
    assert Path("fleet.svg").read_text().startswith("<?xml")
    plain = json.loads(run(capsys, "fleet show fleet.toml --clients 30 --json"))
    assert plain["clients"] == 30
    assert len(plain["available"]) == 24
    assert plain["up"]["least"] < plain["up"]["most"]


def test_the_example_is_what_the_command_writes(capsys: pytest.CaptureFixture[str]) -> None:
    run(capsys, "fleet sample phones --clients 200 --out phones.toml")
    assert Path("phones.toml").read_text() == (ROOT / "examples/phones.toml").read_text()


@pytest.mark.parametrize("name", ["fleet.toml", "fleets/city.toml", "phones.toml"])
def test_every_example_can_be_shown(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fleet", "show", str(ROOT / "examples" / name), "--clients", "20"]) == 0
    assert "upload rate, clients" in capsys.readouterr().out


def test_traces_are_converted(capsys: pytest.CaptureFixture[str]) -> None:
    entry = {"active": [0, 30], "inactive": [20, 40], "finish_time": 60}
    Path("trace").write_bytes(pickle.dumps({1: entry, 2: {**entry, "active": []}}))
    printed = run(capsys, "fleet convert trace --format fedscale --out trace.csv")
    assert "1 client never available" in printed
    assert 'availability = "trace:trace.csv"' in printed
    read_model("trace:trace.csv")
    Path("states").write_text(
        json.dumps(
            {
                "a": {
                    "messages": "2020-01-03 00:00:00\twifi\n2020-01-03 01:00:00\tscreen_lock\n"
                    "2020-01-03 02:00:00\tbattery_charged_on\n2020-01-03 05:00:00\tcharging?\n"
                    "2020-01-03 06:00:00\tscreen_unlock\n2020-01-03 10:00:00\twifi\n"
                }
            }
        )
    )
    printed = run(capsys, "fleet convert states --format flash --out states.csv")
    assert "40.00 % of the time" in printed
    assert "state 'charging?'" in printed
    Path("capacity").write_bytes(pickle.dumps({1: {"computation": 100.0, "communication": 2000.0}}))
    run(capsys, "fleet convert capacity --format fedscale-capacity --sample-flops 1e9 --out capacity.toml")
    (device,) = Fleet.read("capacity.toml").devices
    assert (device.flops, device.up) == (1e10, 2e6)


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ("sample phone --clients 5 --out a.toml", "unknown fleet 'phone': did you mean phones?"),
        ("sample phones --clients 0 --out a.toml", "clients must be at least 1, got 0"),
        ("sample phones --clients many --out a.toml", "--clients must be a whole number, got 'many'"),
        ("sample phones --clients 5 --out nowhere/a.toml", "there is no writable folder nowhere"),
        ("sample phones --clients 5 --out old.toml", "--out old.toml: the file exists"),
        ("sample phones --clients 5", "the following arguments are required: --out"),
        ("show nowhere.toml", "nowhere.toml: cannot be read"),
        ("show old.toml", "old.toml: is not TOML"),
        ("convert old.toml --format csv --out a.csv", "unknown format 'csv'"),
        ("convert old.toml --format fedscale --out a.csv", "old.toml: is not a pickle of containers and numbers alone"),
        ("convert old.toml --format flash --out a.csv", "old.toml: is not JSON"),
        ("convert old.toml --format flash --out a.csv --sample-flops 5", "--sample-flops has no effect here"),
        (
            "convert old.toml --format fedscale-capacity --out a.csv --sample-flops x",
            "--sample-flops must be a",
        ),
        ("convert nowhere --format fedscale --out a.csv", "nowhere cannot be read"),
        ("convert old.toml --format flash --out old.toml", "the file exists: choose another name, or add --force"),
    ],
)
def test_mistakes_are_refused_before_anything_is_written(
    words: str, reason: str, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("old.toml").write_text("old")
    assert reason in run(capsys, f"fleet {words}", 2)
    assert [path.name for path in place.iterdir()] == ["old.toml"]
    assert Path("old.toml").read_text() == "old"


def test_a_picture_of_a_wrong_kind_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    run(capsys, "fleet sample sensors --clients 5 --out a.toml")
    assert "must end in .png, .pdf or .svg" in run(capsys, "fleet show a.toml --out a.html", 2)
    assert "exists" in run(capsys, "fleet sample phones --clients 5 --out a.toml", 2)
    run(capsys, "fleet sample phones --clients 5 --out a.toml --force")
    assert Fleet.read("a.toml") == Fleet.sample("phones", 5)
