"""The examples with models of transformers: they run on the command line, with and without Shakespeare, and learn."""

import json
import re
import runpy
from pathlib import Path

import pytest

from gossamer.cli import main, user_files
from gossamer.runs.records import read_metrics
from helpers.paths import ROOT

pytest.importorskip("transformers")

NAMES = ("bert_classifier", "gpt_shakespeare")
SPEECHES = {"ANN": "to be or not to be, that is the question. ", "BOB": "now is the winter of our discontent! "}


@pytest.fixture(params=NAMES)
def example(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An example; the data folder is empty."""
    monkeypatch.setenv("GOSSAMER_DATA", str(tmp_path))
    return ROOT / f"examples/{request.param}.py"


def test_the_example_runs_on_the_command_line(example: Path, tmp_path: Path) -> None:
    roles = {name: [speech * 20, speech * 10] for name, speech in SPEECHES.items()}
    (tmp_path / "tinyshakespeare_roles.json").write_text(json.dumps({"roles": roles}))
    flags = ["--rounds", "1", "--epochs", "1", "--executor", "one-by-one", "--out"]
    words = ["run", f"{example}:fedavg_adam", "--task", f"{example}:task", *flags, str(tmp_path / "run")]
    assert main(words) == 0
    (record,) = read_metrics(tmp_path / "run")
    assert record["failures"] == []
    assert len(record["clients"]) == (8 if "bert" in example.name else len(roles))


def test_the_example_needs_no_files(example: Path) -> None:
    task = user_files.load(f"{example}:task", "--task")()  # type: ignore[operator]
    assert len(task.data.train) > 1000


@pytest.mark.slow
def test_the_example_learns(example: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(example), run_name="__main__")
    found = re.findall(r"accuracy ([\d.]+)%; .*: ([\d.]+)%", capsys.readouterr().out)
    assert found
    assert all(float(accuracy) > 1.2 * float(trivial) for accuracy, trivial in found), found
