"""``gossamer privacy spent``: a ledger of runs on the same clients."""

import json
from pathlib import Path
from typing import Any

import pytest

from gossamer import fedavg, simulate
from gossamer.cli import main, privacy
from gossamer.core.privacy import Participation
from gossamer.parts.privacy.accounting import gaussian
from gossamer.runs.records import read_metrics
from gossamer.testing import tiny_task
from helpers.noisy import NoisyMean

RUN = ["run", "dp-fedavg", "--clients", "10", "--epochs", "1", "--executor", "one-by-one", "--delta", "1e-3"]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    pytest.importorskip("dp_accounting")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def ledger(words: list[str], capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    capsys.readouterr()
    assert main(["privacy", "spent", *words, "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_runs_add_up(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, rounds, noise in (("a", 2, "20"), ("b", 3, "10")):
        words = ["--rounds", str(rounds), "--noise-multiplier", noise, "--secure-noise", "--out", name]
        assert main([*RUN, *words]) == 0
    alone, both = ledger(["a"], capsys), ledger(["a", "b"], capsys)
    everybody = Participation(10, 10, "all", 9)
    assert alone["epsilon"] == pytest.approx(gaussian(20.0, everybody).epsilon(2, 1e-3))
    # 2 rounds with noise 20 are worth 1/2 of a round with noise 10.
    assert both["epsilon"] == pytest.approx(gaussian(10 / 3.5**0.5, everybody).epsilon(1, 1e-3))
    assert (both["by"], both["private"], both["delta"]) == ("exact Gaussian composition", True, 1e-3)
    assert [(run["run"], run["releases"], run["noise"]) for run in both["runs"]] == [
        ("a", 2, "operating system"),
        ("b", 3, "operating system"),
    ]
    assert ledger(["a", "b", "--delta", "1e-5"], capsys)["epsilon"] > both["epsilon"]
    assert main(["privacy", "spent", "a", "b"]) == 0
    shown = capsys.readouterr().out
    assert f"epsilon {both['epsilon']:.4g}, delta 0.001, by exact Gaussian composition" in shown
    assert "the runs had the same clients" in shown
    assert main(["privacy", "spent", "a", "a"]) == 2
    assert "a run is named twice" in capsys.readouterr().err


def test_a_round_that_was_drawn_again_counts_each_time(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*RUN, "--rounds", "2", "--noise-multiplier", "20", "--secure-noise", "--out", "a"]) == 0
    records = read_metrics(here / "a")
    records[-1]["figures"]["privacy"] |= {"releases": 5, "epsilon": 99.0}
    monkeypatch.setattr(privacy, "read_metrics", lambda path: records)
    found = ledger(["a"], capsys)
    assert found["runs"][0]["releases"] == 5
    assert found["epsilon"] == pytest.approx(gaussian(20.0, Participation(10, 10, "all", 9)).epsilon(5, 1e-3))
    assert main(["privacy", "spent", "a"]) == 0
    assert "states epsilon 99, and this release computes" in capsys.readouterr().err


def test_noise_from_a_seed_protects_nobody(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    secret = ["--rounds", "1", "--noise-multiplier", "20"]
    assert main([*RUN, *secret, "--secure-noise", "--out", "a"]) == 0
    assert main([*RUN, *secret, "--out", "b"]) == 0
    found = ledger(["a", "b"], capsys)
    assert (found["private"], found["epsilon"]) == (False, None)
    assert [run["private"] for run in found["runs"]] == [True, False]
    assert main(["privacy", "spent", "a", "b"]) == 0
    shown = capsys.readouterr().out
    assert "noise from the seed: protects nobody" in shown
    assert "not private: who knows the seed of a run can subtract its noise" in shown
    as_if = ledger(["a", "b", "--as-if-secret"], capsys)
    assert as_if["as_if_secret"]
    assert as_if["epsilon"] == pytest.approx(gaussian(20.0, Participation(10, 10, "all", 9)).epsilon(2, 1e-3))


def test_a_run_that_cannot_be_built_counts_by_what_it_states(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own = fedavg(epochs=1).with_parts(server=NoisyMean(noise_multiplier=20.0))
    simulate(own, tiny_task(10), rounds=1, delta=1e-3, secure_noise=True, out="a")
    assert main([*RUN, "--rounds", "1", "--noise-multiplier", "20", "--secure-noise", "--out", "b"]) == 0
    found = ledger(["a", "b"], capsys)
    assert found["by"] == "basic composition"
    assert found["delta"] == pytest.approx(2e-3)
    assert found["epsilon"] == pytest.approx(sum(run["epsilon"] for run in found["runs"]))


def test_runs_that_do_not_add_up_are_refused(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*RUN, "--rounds", "1", "--secure-noise", "--out", "a"]) == 0
    plain = ["run", "fedavg", "--clients", "10", "--epochs", "1", "--executor", "one-by-one", "--rounds", "1"]
    assert main([*plain, "--out", "b"]) == 0
    assert main([*plain, "--dp", "example", "--noise-multiplier", "2", "--secure-noise", "--out", "c"]) == 0
    capsys.readouterr()
    assert main(["privacy", "spent", "a", "b"]) != 0
    assert "states nothing about privacy" in capsys.readouterr().err
    assert main(["privacy", "spent", "a", "c"]) == 2
    assert "different units (client and example)" in capsys.readouterr().err
