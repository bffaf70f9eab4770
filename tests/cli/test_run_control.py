"""Runs by their folder on the command line: config files, runs from Python, more rounds."""

import json
from pathlib import Path
from typing import Any

import pytest

from gossamer import Task, fedavg, simulate
from gossamer.cli import main
from gossamer.cli.request import expanded
from gossamer.core.errors import ConfigError
from gossamer.runs.records import read_metrics

SMALL = ["--clients", "4", "--epochs", "1", "--executor", "one-by-one"]


def kept(path: Path) -> list[dict[str, Any]]:
    return [{k: v for k, v in r.items() if k not in ("seconds", "memory_bytes")} for r in read_metrics(path)]


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_the_file_of_a_run_repeats_it(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    words = ["--rounds", "2", "--seed", "3", "--lr", "0.2", "--codec", "eden:2", "--set", "solver.momentum=0.5"]
    assert main(["run", "fedavg", *SMALL, *words, "--until", "loss<0", "--patience", "9", "--out", "a"]) == 0
    capsys.readouterr()
    assert main(["show", "a", "--config"]) == 0
    Path("run.toml").write_text(capsys.readouterr().out)
    assert main(["run", "--config", "run.toml", "--out", "b"]) == 0
    assert kept(Path("a")) == kept(Path("b"))
    assert main(["show", "b", "--config"]) == 0
    assert Path("run.toml").read_text() in capsys.readouterr().out
    assert main(["run", "--config", "run.toml", "--rounds", "1", "--out", "c"]) == 0
    assert kept(Path("c"))[0]["loss"] == kept(Path("a"))[0]["loss"]
    assert len(kept(Path("c"))) == 1, "typed flags win"


def test_a_rule_of_the_last_rounds_is_no_rule_of_the_repeated_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "fedavg", *SMALL, "--rounds", "2", "--patience", "8", "--out", "a"]) == 0
    assert main(["resume", "a", "--rounds", "3", "--until", "loss<99"]) == 0
    capsys.readouterr()
    assert main(["show", "a", "--config"]) == 0
    text = capsys.readouterr().out
    note = "# until applied only after round 2: this file does not repeat the run"
    assert f'{note}\n# until = "loss<99"\n' in text
    assert "\npatience = 8\n" in text
    Path("run.toml").write_text(text)
    assert main(["run", "--config", "run.toml", "--out", "b"]) == 0
    assert kept(Path("b"))[:2] == kept(Path("a"))[:2]


def test_a_config_file_becomes_words() -> None:
    Path("run.toml").write_text(
        'method = "topk"\nper_round = 3\nshare = 1e-3\nfeedback = true\nrescale = false\n'
        'capacities = [1, 0.5]\nset = ["solver.momentum=0.9", "solver.clip=none"]\n'
    )
    sets = ["--set=solver.momentum=0.9", "--set=solver.clip=none"]
    flags = ["--per-round=3", "--share=0.001", "--feedback", "--no-rescale", "--capacities=1+0.5", *sets]
    assert expanded(["--config", "run.toml", "--lr", "1"]) == ["topk", *flags, "--lr", "1"]
    assert expanded(["fedavg", "--config=run.toml"]) == ["fedavg", *flags]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("rouds = 3", "unknown flag --rouds: did you mean --rounds?"),
        ("rounds = ", "--config run.toml: it is not TOML: Invalid value"),
        ("[solver]\nlr = 1", "--config run.toml: solver must be a number, a text, true, false, or a list of these"),
        ("rounds = 0", "rounds must be at least 1, got 0"),
    ],
)
def test_a_wrong_config_file_is_refused(text: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("run.toml").write_text(text)
    assert main(["run", "fedavg", "--config", "run.toml"]) == 2
    assert message in capsys.readouterr().err
    assert not Path("runs").exists()


def test_a_missing_config_file_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"--config none\.toml: it cannot be read: No such file"):
        expanded(["fedavg", "--config", "none.toml"])


def named_task() -> Task:
    return Task.named("digits", clients=4, split="iid", seed=5)


def test_a_run_of_a_recipe_and_a_named_task_needs_no_script(capsys: pytest.CaptureFixture[str]) -> None:
    simulate(fedavg(lr=0.2, epochs=1), named_task(), rounds=2, seed=1, out="x", callbacks=[lambda record, run: "one"])
    assert main(["resume", "x"]) == 0
    assert (
        "x: already finished after round 1: one; gossamer resume x --rounds N gives it more" in capsys.readouterr().err
    )
    assert main(["resume", "x", "--rounds", "3"]) == 0
    assert main(["export", "x", "--client", "1"]) == 0
    assert Path("x/export/client-1/model.safetensors").is_file()
    simulate(fedavg(lr=0.2, epochs=1), named_task(), rounds=3, seed=1, out="whole")
    first, *rest = kept(Path("x"))
    assert first.pop("stopped") == "one"
    assert [first, *rest] == kept(Path("whole"))
    assert main(["show", "x", "--config"]) == 0
    shown = capsys.readouterr().out
    assert "data-seed = 5" in shown
    assert "# The run was extended after round 1, when it had 2 rounds." in shown
    assert json.loads(Path("x/run.json").read_text())["task_call"]["split"] == "iid"


SCRIPT = """
from gossamer import SGD, Dense, Full, Mean, compose
from gossamer.testing import tiny_task

task = tiny_task()
method = compose(Full(), SGD(lr=0.3, epochs=1), Dense(), Mean())
"""


def test_a_run_of_own_objects_says_what_it_needs(capsys: pytest.CaptureFixture[str]) -> None:
    Path("script.py").write_text(SCRIPT)
    names: dict[str, Any] = {}
    exec(SCRIPT, names)
    simulate(names["method"], names["task"], rounds=1, out="x")
    assert main(["resume", "x", "--rounds", "2"]) == 2
    assert (
        "its method and task cannot be built from the folder: add --method FILE.py:NAME --task"
        in capsys.readouterr().err
    )
    assert main(["show", "x", "--config"]) == 2
    assert "objects of its own, which no file describes" in capsys.readouterr().err
    assert main(["run", "fedavg", "--task", "script.py:tsk"]) == 2
    message = "--task script.py:tsk: unknown name 'tsk': did you mean task? known: method, task\n"
    assert message in capsys.readouterr().err
    own = ["--method", "script.py:method", "--task", "script.py:task"]
    assert main(["resume", "x", "--rounds", "2", *own]) == 0
    assert main(["export", "x", *own]) == 0
    simulate(names["method"], names["task"], rounds=2, out="whole")
    assert kept(Path("x")) == kept(Path("whole"))
    assert main(["resume", "x", "--rounds", "two", "--until", "high"]) == 2
    err = capsys.readouterr().err
    assert "--rounds must be a whole number, got 'two'" in err
    assert "--until must be a metric and a number, such as accuracy=0.9 or loss<0.3, got 'high'" in err


def test_a_run_starts_from_a_file_or_a_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "fedavg", *SMALL, "--rounds", "1", "--out", "a"]) == 0
    assert main(["run", "fedavg", *SMALL, "--rounds", "1", "--init", "a", "--out", "b"]) == 0
    assert kept(Path("b"))[0]["train_loss"] < kept(Path("a"))[0]["train_loss"]
    assert main(["run", "fedavg", *SMALL, "--model", "cnn4", "--data", "nope", "--init", "none.pt"]) == 2
    err = capsys.readouterr().err
    assert "init: there is no file or run none.pt" in err
    assert "unknown data set 'nope'" in err


def test_what_a_run_keeps_is_refused_on_resume_with_what_may_change(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "fedavg", *SMALL, "--rounds", "1", "--out", "a"]) == 0
    capsys.readouterr()
    assert main(["resume", "a", "--precision", "bf16"]) == 2
    rule = "a run keeps the value that it was started with"
    may = "resume can change --rounds, --until, --patience, --cluster and --actors"
    assert capsys.readouterr().err == f"gossamer: --precision: {rule}, float32; {may}\n"
    assert main(["resume", "--seed=3", "a", "--lr", "0.2", "--rounds", "2"]) == 2
    assert capsys.readouterr().err.splitlines()[1:] == [f"  - --seed: {rule}, 0; {may}", f"  - --lr: {rule}; {may}"]
    assert main(["resume", "a", "--bogus", "2"]) == 2
    assert "unrecognized arguments: --bogus 2" in capsys.readouterr().err
    assert len(kept(Path("a"))) == 1
