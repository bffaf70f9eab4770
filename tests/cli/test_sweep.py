"""Sweeps: the grid, the folder, what is refused, what resumes, how points are compared and halved."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

import gossamer
from gossamer import ConfigError, RunError, load_run, load_sweep
from gossamer.cli import main, run, sweep_schedule, trust
from gossamer.core import files
from gossamer.runs.jobs import Ended
from gossamer.runs.records import read_metrics
from gossamer.runs.sweeps import Halving, Sweep
from helpers.inline import Inline
from helpers.paths import ROOT

TASK = "from gossamer.testing import tiny_task\n\ntask = tiny_task(4)\n"
COMMON = ["--task", "mine.py:task", "--steps", "3", "--executor", "one-by-one"]
GRID = ["--grid", "lr=0.01,0.1", "--grid", "codec=dense,eden:1"]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a task, in which runs of a sweep are jobs of this process."""
    (tmp_path / "mine.py").write_text(TASK)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sweep_schedule, "Local", lambda *rest: Inline())
    monkeypatch.setattr(run, "try_to_write_page", lambda *rest: None)  # report.html takes longer than these runs
    return tmp_path


def swept(*words: str, rounds: int = 2) -> int:
    return main(["sweep", "fedavg", *COMMON, "--rounds", str(rounds), *words])


def curve(path: Path, entry: str = "loss") -> list[float]:
    return [record[entry] for record in read_metrics(path)]


def test_every_point_and_seed_is_an_ordinary_run(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert swept(*GRID, "--seeds", "2", "--validate", "4", "--out", "x") == 0
    said = capsys.readouterr()
    points = [f"lr={lr}_codec={codec}" for lr in ("0.01", "0.1") for codec in ("dense", "eden-1")]
    names = [f"{point}_seed={seed}" for seed in (0, 1) for point in points]
    assert [line.split(": ")[0].split("] ")[1] for line in said.err.splitlines() if line.startswith("[")] == names
    assert sorted(path.parent.name for path in here.glob("x/*/run.json")) == sorted(names)
    assert "best by validation accuracy: lr=" in said.out
    assert main(["run", "fedavg", *COMMON, "--lr", "0.1", "--codec", "eden:1", "--seed", "1", "--validate", "4",
                 "--rounds", "2", "--out", "alone"]) == 0  # fmt: skip
    mine, alone = load_run(here / "x" / names[-1]), load_run(here / "alone")
    assert curve(here / "x" / names[-1]) == curve(here / "alone")
    assert mine.about["options"] == alone.about["options"]
    assert main(["show", f"x/{names[0]}"]) == 0


def test_any_flag_any_part_and_methods_are_swept(here: Path) -> None:
    words = [*COMMON, "--rounds", "1", "--grid", "per-round=2,4", "--grid", "solver.momentum=0,0.9"]
    assert main(["sweep", *words, "--grid", "method=fedavg,fedprox", "--out", "x"]) == 0
    found = {path.parent.name: load_run(path.parent).about for path in here.glob("x/*/run.json")}
    assert len(found) == 8
    about = found["per-round=4_solver.momentum=0.9_method=fedprox_seed=0"]
    assert about["options"]["per_round"] == 4
    assert about["request"]["method"] == "fedprox"
    assert "momentum=0.9" in about["method"]["solver"]


def test_a_file_of_flags_may_have_a_grid(here: Path) -> None:
    (here / "lr.toml").write_text('method = "fedavg"\nsteps = 1\nrounds = 1\ngrid = ["lr=0.1,0.2", "batch=8,16"]\n')
    assert (
        main(["sweep", "--config", "lr.toml", "--task", "mine.py:task", "--executor", "one-by-one", "--out", "x"]) == 0
    )
    assert len(list(here.glob("x/lr=*_batch=*/run.json"))) == 4


def test_help_has_the_flags_of_sweep_run_and_method(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["--help"], ["fedprox", "--help"]):
        assert main(["sweep", *words]) == 0
        said = capsys.readouterr().out
        assert all(f"  --{name} " in said for name in ("grid", "seeds", "halving", "jobs", "rounds", "validate"))
        assert ("  --mu " in said) == (words[0] == "fedprox")


def test_switches_are_swept(here: Path) -> None:
    assert main(["sweep", "eden", *COMMON, "--rounds", "1", "--grid", "coded=true,false", "--out", "x"]) == 0
    coded = {name: load_run(here / "x" / f"coded={name}_seed=0").about["method"]["codec"] for name in ("true", "false")}
    assert "coded=True" in coded["true"]
    assert "coded=True" not in coded["false"]


def test_all_mistakes_are_found_before_anything_starts(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wrong = ["--grid", "lr=0.1,-1", "--grid", "codec=dense,foo", "--grid", "seed=1,2", "--grid", "mu", "--jobs", "0"]
    assert swept(*wrong, "--per-round", "9", "--seeds", "1,1", "--halving", "2", "--out", "x") == 2
    said = capsys.readouterr().err
    for part in (
        "--grid seed=1,2: use --seeds N",
        "--grid mu: write it as NAME=V,V",
        "--seeds must be a number from 1, or different seeds",
        "--jobs must be at least 1, got 0",
        "  - --per-round is 9, but there are only 4 clients",  # all points have it: it is named once
        "lr=-1 codec=dense; lr=-1 codec=foo: --lr must be a positive number",
        "lr=0.1 codec=foo; lr=-1 codec=foo: unknown codec 'foo'",
        "--halving needs --validate N",
    ):
        assert part in said
    assert said.count("--per-round") == 1
    assert not (here / "x").exists()
    assert main(["sweep", "--grid", "lr=1"]) == 2
    said = capsys.readouterr().err
    assert "--out must be given" in said
    assert "name a method first" in said
    (here / "full").mkdir()
    (here / "full/file").touch()
    assert swept("--grid", "lr=0.1", "--lr", "1", "--out", "full") == 2
    said = capsys.readouterr().err
    assert "--out full is not empty, and is no sweep" in said
    assert "--grid lr: the flag was given for all runs too" in said


def test_another_request_for_the_folder_is_refused(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert swept("--grid", "lr=0.1", "--out", "x") == 0
    assert swept("--grid", "lr=0.1,0.2", "--seeds", "2", "--out", "x") == 2
    said = capsys.readouterr().err
    assert "--out x has another sweep: grid is lr=0.1,0.2, was lr=0.1; seeds is 0,1, was 0" in said
    (here / "mine.py").write_text(TASK + "\n")
    assert swept("--grid", "lr=0.1", "--out", "x") == 2
    assert "--out x has another sweep: mine.py:task was changed since" in capsys.readouterr().err
    (here / "mine.py").write_text(TASK)
    before = (here / "x/lr=0.1_seed=0/metrics.jsonl").stat().st_mtime_ns
    assert swept("--grid", "lr=0.1", "--out", "x") == 0  # the same one continues, and has nothing to do
    assert (here / "x/lr=0.1_seed=0/metrics.jsonl").stat().st_mtime_ns == before


class Cut(Inline):
    """Interrupts the sweep after some jobs, the last of them in the middle."""

    def __init__(self, jobs: int) -> None:
        super().__init__()
        self.jobs = jobs

    def wait(self, seconds: float) -> list[Ended]:
        if self.jobs == 0:
            job = self.waiting[0]
            words, path, _ = job.args
            job.function(words, path, 1)
            raise KeyboardInterrupt
        self.jobs -= 1
        return super().wait(seconds)


def test_an_interrupted_sweep_ends_as_an_uninterrupted_one(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert swept(*GRID, "--out", "whole") == 0
    monkeypatch.setattr(sweep_schedule, "Local", lambda *rest: Cut(1))
    assert swept(*GRID, "--out", "cut") == 130
    assert "stopped; continue with: gossamer resume cut" in capsys.readouterr().err
    done, half = here / "cut/lr=0.01_codec=dense_seed=0", here / "cut/lr=0.01_codec=eden-1_seed=0"
    assert (len(curve(done)), len(curve(half)), len(list(here.glob("cut/*/run.json")))) == (2, 1, 2)
    assert main(["compare", "cut"]) == 0
    said = capsys.readouterr().out
    assert "0 of 1 finished" in said
    before = (done / "metrics.jsonl").stat().st_mtime_ns
    again = Inline()
    monkeypatch.setattr(sweep_schedule, "Local", lambda *rest: again)
    monkeypatch.chdir(here.parent)  # paths of files are full ones
    assert main(["resume", str(here / "cut"), "--jobs", "1"]) == 0
    assert len(again.done) == 3
    assert (done / "metrics.jsonl").stat().st_mtime_ns == before
    for path in here.glob("whole/*/run.json"):
        assert curve(here / "cut" / path.parent.name) == curve(path.parent)


def test_no_run_starts_after_the_time(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert swept(*GRID, "--seconds", "1e-9", "--out", "x") == 0
    assert "4 of 4 runs are left: gossamer resume x continues them" in capsys.readouterr().err
    assert main(["sweep", "--resume", "x"]) == 0
    assert len(list(here.glob("x/*/run.json"))) == 4


def test_a_run_that_fails_is_named_and_stops_no_other(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert swept("--grid", "lr=1e30,0.1", "--out", "x") == 1
    said = capsys.readouterr().err
    assert "1 of 2 runs failed; gossamer resume x" in said
    assert "  - lr=1e30_seed=0: " in said
    assert load_run(here / "x/lr=0.1_seed=0").summary()["rounds"] == 2


# Comparison.


def test_points_have_means_and_deviations_over_seeds(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert swept("--grid", "lr=0.01,0.1", "--seeds", "0,5", "--validate", "4", "--out", "x") == 0
    capsys.readouterr()
    assert main(["compare", "x", "--out", "x.svg"]) == 0
    said = capsys.readouterr().out
    result = load_sweep("x")
    for lr, point in zip(("0.01", "0.1"), result.points, strict=True):
        runs = [load_run(here / f"x/lr={lr}_seed={seed}").summary() for seed in (0, 5)]
        for entry in ("accuracy", "validation_accuracy"):
            one, two = (run[entry] for run in runs)
            spread = point.over_seeds(entry)
            assert spread.mean == pytest.approx((one + two) / 2)
            assert spread.deviation == pytest.approx(abs(one - two) / 2**0.5)
            assert f"{100 * (one + two) / 2:.2f} ± {100 * abs(one - two) / 2**0.5:.2f} %" in said
    means = {point.values[0][1]: point.over_seeds("validation_accuracy").mean for point in result.points}
    assert result.best == {"lr": max(means, key=lambda lr: means[lr] or 0)}
    assert "validation accuracy" in (here / "x.svg").read_text()
    capsys.readouterr()
    assert main(["compare", "x", "--target", "accuracy=0,accuracy=1"]) == 0
    said = capsys.readouterr().out
    assert len(re.findall(r"\nlr=0\.\d+ +2 of 2 +1 ± 0 ", said)) == 2, "every run reaches 0 in its first round"
    assert main(["compare", "x", "x/lr=0.1_seed=0"]) == 2
    assert "x is a sweep: compare it alone" in capsys.readouterr().err
    assert main(["show", "x"]) == 2
    assert "it is a sweep, which gossamer compare x shows" in capsys.readouterr().err


def test_rounds_that_a_run_is_given_later_do_not_count(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert swept("--grid", "lr=0.01,0.1", "--validate", "4", "--out", "x") == 0
    capsys.readouterr()
    assert main(["compare", "x"]) == 0
    before = capsys.readouterr().out
    assert main(["resume", "x/lr=0.01_seed=0", "--rounds", "4"]) == 0
    capsys.readouterr()
    assert main(["compare", "x"]) == 0
    assert capsys.readouterr().out == before


@pytest.mark.parametrize("grid", [{"lr": 0.1}, {"lr": "0.1"}, ["lr"], {"lr": [0.1, 0.2, 0.1]}])
def test_a_grid_in_python_is_checked(here: Path, grid: Any) -> None:
    with pytest.raises(ConfigError, match=r"grid must map names to lists of values|--grid lr: a value is given twice"):
        gossamer.sweep("fedavg", grid=grid, task="mine.py:task", out="x")
    assert not (here / "x").exists()


def test_the_test_set_does_not_choose(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert swept("--grid", "lr=0.01,0.1", "--out", "x") == 0
    said = capsys.readouterr().out
    assert "the test set must not choose" in said
    assert "best by" not in said
    assert load_sweep("x").best is None


# Successive halving.


def test_rungs() -> None:
    assert Halving(3).rungs(9, 27) == [3, 9, 27]
    assert Halving(2).rungs(1, 10) == [10]
    assert Halving(2).rungs(3, 10) == [5, 10]
    assert Halving(3, 2).rungs(100, 20) == [2, 6, 18, 20]
    assert Halving(3, 50).rungs(100, 20) == [20]
    with pytest.raises(ValueError, match="a number from 2"):
        Halving.of_text("1")
    assert Halving.of_text("3:5") == Halving(3, 5)


def test_the_best_go_on_and_equal_ones_in_the_order_of_the_grid() -> None:
    assert Halving(2).kept([0.1, 0.9, 0.5, 0.9], "higher") == [1, 3]
    assert Halving(2).kept([0.1, 0.9, 0.5, 0.1], "lower") == [0, 3]
    assert Halving(3).kept([0.5, 0.5, 0.5, 0.5], "higher") == [0, 1]
    assert Halving(4).kept([None, 0.0, None], "higher") == [1]
    assert Halving(4).kept([None, 3.0, None], "lower") == [1]


RATES = ("1e-9", "0.1", "0.3", "1")
HALVED = ["--grid", f"lr={','.join(RATES)}", "--seeds", "2", "--validate", "4", "--halving", "2:1"]


def halved(launcher: Inline, out: str, monkeypatch: pytest.MonkeyPatch) -> dict[str, list[float]]:
    monkeypatch.setattr(sweep_schedule, "Local", lambda *rest: launcher)
    assert swept(*HALVED, "--out", out, rounds=4) == 0
    return {path.parent.name: curve(path.parent) for path in Path(out).glob("*/run.json")}


def test_hopeless_points_stop_whatever_the_order_of_completion(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = halved(Inline(), "x", monkeypatch)
    told = capsys.readouterr()
    assert "after round 1: 2 of 4 points go on" in told.err
    assert "[1/8] lr=1e-9_seed=0: paused, 1/4 rounds, accuracy " in told.err
    assert sum(line.endswith(" stopped") for line in told.out.splitlines()) == 3
    first = {lr: [curve(here / f"x/lr={lr}_seed={seed}", "validation_accuracy") for seed in (0, 1)] for lr in RATES}
    order = sorted(RATES, key=lambda lr: -sum(seed[0] for seed in first[lr]))  # stable, as the sweep's
    better = sorted(order[:2], key=lambda lr: -sum(seed[1] for seed in first[lr]))
    rounds = {lr: [len(seed) for seed in found] for lr, found in first.items()}
    assert rounds == {order[2]: [1, 1], order[3]: [1, 1], better[1]: [2, 2], better[0]: [4, 4]}
    assert halved(Inline(3, last_first=True), "y", monkeypatch) == found
    # A stopped run goes on as if it had not been stopped, and decides nothing any more.
    assert main(["resume", f"x/lr={order[3]}_seed=0"]) == 0
    words = ["--lr", order[3], "--validate", "4", "--rounds", "4"]
    assert main(["run", "fedavg", *COMMON, *words, "--out", "alone"]) == 0
    assert curve(here / f"x/lr={order[3]}_seed=0") == curve(here / "alone")
    idle = Inline()
    halved(idle, "x", monkeypatch)
    assert idle.done == []


def test_halving_needs_comparable_points(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert swept("--grid", "lr=0.1,1", "--validate", "4", "--halving", "2:2", "--out", "x") == 2
    assert "--halving: the first rung, 2, must be below --rounds, 2" in capsys.readouterr().err
    words = ["--validate", "4", "--halving", "2", "--out", "x"]
    assert swept("--grid", "lr=0.1,0.2", "--eval-every", "2", *words) == 2
    assert "no round is evaluated before the first rung, 1" in capsys.readouterr().err
    assert main(["sweep", "fedavg", *COMMON, "--grid", "rounds=2,4", *words]) == 2
    assert "--grid rounds: points with different rounds cannot be halved" in capsys.readouterr().err


# The folder.


def test_code_of_others_is_not_executed(
    here: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    assert swept("--grid", "lr=0.1,0.2", "--seconds", "1e-9", "--out", "x") == 0
    monkeypatch.setenv(trust.VARIABLE, str(tmp_path_factory.mktemp("stranger")))
    assert main(["resume", "x"]) == 2
    assert "mine.py, with which you have started no run on this machine" in capsys.readouterr().err
    (here / "mine.py").write_text(TASK + "\n")
    assert main(["resume", "x", "--trust"]) == 1
    assert "mine.py was changed since the run was started" in capsys.readouterr().err
    (here / "mine.py").write_text(TASK)
    assert main(["resume", "x", "--trust"]) == 0


def test_no_link_is_followed(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert swept("--grid", "lr=0.1", "--seconds", "1e-9", "--out", "x") == 0
    (here / "x/logs").rmdir()
    (here / "x/logs").symlink_to(here)
    assert main(["resume", "x"]) == 1
    assert "x/logs is a symbolic link" in capsys.readouterr().err


def test_a_damaged_request_is_refused(here: Path) -> None:
    Sweep("fedavg", {"rounds": "1"}, (), {"lr": ("0.1",)}, (0,), Halving(2)).create(here / "x")
    assert Sweep.read(here / "x").halving == Halving(2)
    file = here / "x/sweep.json"
    content = json.loads(file.read_text())
    file.write_text(json.dumps(content | {"seeds": [1]}))
    with pytest.raises(RunError, match=r"sweep.json cannot be used: it was altered"):
        Sweep.read(here / "x")
    del content["digest"]
    changes: Any = (
        {"seeds": None},
        {"seeds": []},
        {"method": 3},
        {"grid": {"lr": []}},
        {"grid": {"lr": [1]}},
        {"sets": [1]},
    )
    more = ({"halving": {"eta": 1, "first": None}}, {"halving": {"eta": 2, "first": 0}}, {"settings": {"out": "/"}})
    for change, problem in (({"format": 2}, "has format 2"), *((each, "cannot read") for each in (*changes, *more))):
        file.write_bytes(files.to_json(content | change))
        with pytest.raises(RunError, match=problem):
            Sweep.read(here / "x")
    with pytest.raises(ConfigError, match="is not a sweep"):
        load_sweep(here)


# Python.


def test_python_has_the_same_powers(here: Path) -> None:
    pandas = pytest.importorskip("pandas")
    asked: dict[str, Any] = {"task": "mine.py:task", "steps": 3, "executor": "one-by-one", "rounds": 2, "validate": 4}
    result = gossamer.sweep(gossamer.fedavg, grid={"lr": [0.01, 0.1]}, seeds=2, out="x", progress=False, **asked)
    frame = result.frame()
    assert isinstance(frame, pandas.DataFrame)
    assert list(frame.index) == [f"lr={lr}_seed={seed}" for lr in (0.01, 0.1) for seed in (0, 1)]
    assert frame.loc["lr=0.1_seed=1", "accuracy"] == load_run("x/lr=0.1_seed=1").accuracy
    assert len(result.runs) == 4
    assert result.best in ({"lr": "0.01"}, {"lr": "0.1"})
    assert result.draw("x.svg").exists()
    assert "best by validation accuracy" in repr(result)
    assert main(["sweep", "fedavg", *COMMON, "--rounds", "2", "--validate", "4", "--grid", "lr=0.01,0.1", "--seeds",
                 "2", "--out", "x"]) == 0  # the same request  # fmt: skip
    with pytest.raises(ConfigError, match="named by its file"):
        gossamer.sweep(lambda: gossamer.fedavg(), grid={"lr": [1]}, out="y")
    with pytest.raises(ConfigError, match="unknown flag --rouns"):
        gossamer.sweep("fedavg", grid={"lr": [0.1]}, out="y", rouns=3)


@pytest.mark.slow
def test_the_python_on_the_page_runs(here: Path) -> None:
    pytest.importorskip("pandas")
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs/sweeps.md").read_text(), re.S)
    found: dict[str, Any] = {}
    exec(code, found)
    assert found["again"].best == found["result"].best
    assert len(found["accuracies"]) == 4


def test_runs_are_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(TASK)
    assert swept("--grid", "lr=0.1", "--jobs", "2", "--out", "x") == 0
    assert "x/lr=0.1_seed=0: 2 rounds\n" in (tmp_path / "x/logs/lr=0.1_seed=0.log").read_text()
    assert main(["run", "fedavg", *COMMON, "--lr", "0.1", "--rounds", "2", "--out", "alone"]) == 0
    assert curve(tmp_path / "x/lr=0.1_seed=0") == curve(tmp_path / "alone")
