"""Results that are not accuracies are shown by the name, the direction and the format of their metric."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from gossamer import Task, fedavg, simulate
from gossamer.cli import main
from gossamer.runs.records import read_about
from gossamer.runs.report.curves import figure
from gossamer.runs.report.progress import Progress
from gossamer.runs.report.scores import ACCURACY, Score, column, scores_of

RMSE = Score("rmse", "lower", "number")
FLAGS = ("--clients", "5", "--rounds", "3", "--epochs", "1", "--executor", "one-by-one")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs on numbers and one on classes."""
    home = tmp_path_factory.mktemp("runs")
    assert main(["run", "fedavg", "--data", "diabetes", *FLAGS, "--out", str(home / "numbers")]) == 0
    assert main(["run", "fedprox", "--data", "diabetes", *FLAGS, "--out", str(home / "other")]) == 0
    assert main(["run", "fedavg", "--data", "breast-cancer", *FLAGS, "--out", str(home / "classes")]) == 0
    return home


def test_show_names_the_metric_and_its_values(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", str(runs / "numbers")]) == 0
    out = capsys.readouterr().out
    assert re.search(r"^rmse +0\.\d+$", out, re.M)
    assert re.search(r"^personal rmse +0\.\d+ \(mean over clients\)$", out, re.M)
    assert re.search(r"^worst tenth, mae +\d\.\d+ \(of clients\)$", out, re.M)
    assert "accuracy" not in out
    assert "%" not in out


def test_the_summary_has_the_best_round_by_direction(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    summaries: dict[str, Any] = {}
    for name in ("numbers", "classes"):
        main(["show", str(runs / name), "--json"])
        summaries[name] = json.loads(capsys.readouterr().out)
        records = [json.loads(line) for line in (runs / name / "metrics.jsonl").read_text().splitlines()]
        primary, choose = ("rmse", min) if name == "numbers" else ("accuracy", max)
        assert summaries[name]["best"]["value"] == choose(record[primary] for record in records)
    assert [each["name"] for each in summaries["numbers"]["metrics"]] == ["rmse", "mae"]
    assert "accuracy" not in summaries["numbers"]
    assert summaries["classes"]["auroc"] > 0.8


def test_runs_and_compare_name_the_metric_once_if_all_share_it(
    runs: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    picture = str(tmp_path / "curves.svg")
    assert main(["compare", str(runs / "numbers"), str(runs / "other"), "--out", picture]) == 0
    out = capsys.readouterr().out
    assert "rmse" in out.splitlines()[0].split()
    assert "%" not in out
    assert "rmse on the test set" in Path(picture).read_text()
    assert main(["runs", str(runs)]) == 0
    head, _, *rows = capsys.readouterr().out.splitlines()
    assert "score" in head.split()
    assert [bool(re.search(r"rmse \d\.\d+ ", row)) for row in rows] == [False, True, True]
    assert re.search(r"accuracy \d+\.\d\d %", rows[0])


def test_compare_draws_no_curves_of_different_metrics(
    runs: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    picture = tmp_path / "curves.png"
    assert main(["compare", str(runs / "numbers"), str(runs / "classes"), "--out", str(picture)]) == 0
    assert "no curves: the runs have different metrics" in capsys.readouterr().out
    assert not picture.exists()


def test_the_page_names_the_metric(runs: Path) -> None:
    page = (runs / "numbers" / "report.html").read_text()
    text = re.sub(r"<style.*?</style>|<svg.*?</svg>", "", page, flags=re.S)
    assert "RMSE by upload" in text
    assert "personal rmse" in text
    assert "and quantile of the target" in text
    assert "ccuracy" not in text
    assert not re.search(r"\d %|\(%\)", text)


def test_progress_lines_and_export_name_the_metric(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record = {"round": 1, "rmse": 1.2799, "loss": 1.0, "bytes_up": {}, "bytes_down": {}, "failures": [], "lost": []}
    Progress(2, [record], RMSE)(record)
    assert "rmse 1.28  loss 1  up" in capsys.readouterr().err
    assert main(["export", str(runs / "numbers")]) == 0
    assert re.search(
        r"^rmse +0\.\d+ on all test samples; the run recorded 0\.\d+ of the", capsys.readouterr().out, re.M
    )


def test_a_run_folder_without_metrics_is_one_of_accuracy(tmp_path: Path) -> None:
    assert scores_of({}) == (ACCURACY,)
    x, y = torch.zeros(8, 2), torch.arange(8) % 2
    simulate(fedavg(), Task.of(lambda: nn.Linear(2, 2), (x, y), (x, y), clients=2), rounds=1, out=tmp_path / "old")
    assert "metrics" not in read_about(tmp_path / "old")["task"]
    assert main(["show", str(tmp_path / "old")]) == 0


def test_best_and_reached_follow_the_direction() -> None:
    records: list[dict[str, Any]] = [
        {"rmse": None},
        {"rmse": 3.0},
        {"rmse": 1.0},
        {"loss": 0.0},
        {"rmse": 1.0, "round": 4},
    ]
    assert RMSE.best(records) is records[2]
    assert Score("rmse").best(records) is records[1]
    assert RMSE.best([]) is None
    assert [RMSE.reaches(value, 2.0) for value in (1.0, 2.0, 3.0)] == [True, True, False]
    assert [ACCURACY.reaches(value, 0.5) for value in (0.4, 0.5, 0.6)] == [False, True, True]
    assert RMSE.gap(1.0, 3.0) == 2
    assert ACCURACY.gap(0.9, 0.7) == pytest.approx(0.2)


def test_a_column_without_values_has_blanks() -> None:
    assert column([RMSE, ACCURACY], [None, 0.5]) == ("score", ["–", "accuracy 50.00 %"])
    assert column([RMSE, RMSE], [1.28, None]) == ("rmse", ["1.28", "–"])


def test_curves_have_the_scale_of_the_metric() -> None:
    record = {"round": 1, "rmse": 1.28, "bytes_up": {"x": 1}, "joules": 0, "delay": 0}
    first, *_ = figure(["a"], [[record]], RMSE).axes
    assert first.get_ylabel() == "rmse on the test set"
    assert np.asarray(first.lines[0].get_ydata()).tolist() == [1.28]
