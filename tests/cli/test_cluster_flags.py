"""``--cluster`` and ``--actors`` on the command line, with Ray replaced by one without processes."""

import json
from pathlib import Path

import pytest

from gossamer.cli import main
from helpers.clusters import contents
from helpers.fake_ray import use_fake_ray

SMALL = ("run", "fedavg", "--clients", "4", "--epochs", "1", "--executor", "one-by-one")


def options(run: Path) -> dict[str, object]:
    found: dict[str, object] = json.loads((run / "run.json").read_text())["options"]
    return found


def test_a_run_on_a_cluster_is_shown_and_moved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    use_fake_ray(monkeypatch, cores=(2, 2))
    run, alone = tmp_path / "run", tmp_path / "alone"
    assert main([*SMALL, "--rounds", "1", "--out", str(run), "--cluster", "auto", "--actors", "1"]) == 0
    assert "one-by-one on 2 actors of 2 nodes" in capsys.readouterr().out
    assert (options(run)["cluster"], options(run)["actors"]) == ("auto", 1)
    assert main(["resume", str(run), "--rounds", "2"]) == 0  # on the same cluster
    assert options(run)["cluster"] == "auto"
    assert main(["resume", str(run), "--rounds", "3", "--cluster", "none"]) == 0
    assert "cluster" not in options(run)
    assert main([*SMALL, "--rounds", "3", "--out", str(alone)]) == 0
    assert contents(run) == contents(alone)
    capsys.readouterr()
    assert main(["show", str(run), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["cluster"]["actors"] == 2  # at the start of the run


def test_a_cluster_that_does_not_answer_changes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, swept, nowhere = tmp_path / "run", tmp_path / "sweep", ("--cluster", "127.0.0.1:1")
    assert main([*SMALL, "--rounds", "1", "--out", str(run)]) == 0
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    assert main(["resume", str(run), "--rounds", "2", *nowhere]) == 2
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before
    assert main(["sweep", *SMALL[1:], "--grid", "lr=0.1", "--out", str(swept), *nowhere]) == 2
    assert not swept.exists()
    assert capsys.readouterr().err.count("no Ray cluster answers there") == 2
    swept.mkdir()
    assert main(["sweep", *SMALL[1:], "--grid", "lr=0.1", "--out", str(swept), *nowhere]) == 2
    assert list(swept.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--cluster", "here:99999"), "--cluster must be local, auto, or HOST:PORT"),
        (("--actors", "2"), "--actors needs --cluster"),
        (("--cluster", "here"), "--cluster must be local, auto, or HOST:PORT such as 10.0.0.1:6379, got 'here'"),
        (("--cluster", "local", "--actors", "0"), "--actors must be at least 1, got 0"),
        (("--cluster", "local", "--executor", "threaded"), "--executor: threaded needs all cores of a machine"),
    ],
)
def test_what_makes_no_sense_is_refused(
    words: tuple[str, ...], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", "fedavg", "--out", str(tmp_path / "run"), *words]) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_a_cluster_that_cannot_hold_the_task_leaves_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    use_fake_ray(monkeypatch, cores=(0,))
    assert main([*SMALL, "--out", str(tmp_path / "run"), "--cluster", "auto"]) == 2
    assert "the cluster cannot hold the task: an actor needs a core" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_deployments_have_no_cluster(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["deploy", "try", "fedavg", "--cluster", "local"]) == 2
    assert "unknown flag --cluster: only gossamer run has it" in capsys.readouterr().err
