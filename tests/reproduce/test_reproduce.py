"""The scripts in reproduce/: their cells can be run, and what they say of cells is true."""

import importlib
import json
import re
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import torch

from gossamer import Task
from gossamer.analysis.theory import progressive_factor_by_entry
from gossamer.core.random import key, uniform
from gossamer.core.types import Layout
from gossamer.parts.codecs import MaskedNoise
from gossamer.tasks.nets import build
from helpers.paths import ROOT
from helpers.small_files import shakespeare_roles

sys.path.append(str(ROOT / "reproduce"))
cells, fashion, curves, errors, page, studies, times = (
    importlib.import_module(name)
    for name in ("cells", "fashion", "fedmrn_curves", "fedmrn_error", "fedmrn_page", "fedmrn_studies", "fedmrn_times")
)
EVERY = [cell for study in studies.STUDIES.values() for cell in study()]


def put(cell: Any, *accuracy: float) -> None:
    """Keep a cell with a made-up curve."""
    found = {"best": max(accuracy), "last": accuracy[-1], "accuracy": accuracy}
    cell.path.write_text(json.dumps({**cell._asdict(), **found}))


def column(method: str, split: str) -> list[Any]:
    return [cell for cell in studies.table1() if (cell.method, cell.split) == (method, studies.SPLITS[split])]


# Cells.


def test_a_name_stands_for_one_cell_alone() -> None:
    assert len({cell.name for cell in EVERY}) == len({repr(cell) for cell in EVERY})
    for study in studies.STUDIES.values():
        names = [cell.name for cell in study()]
        assert len(set(names)) == len(names)


@pytest.mark.parametrize("cell", EVERY, ids=lambda cell: cell.name)
def test_every_recipe_takes_its_parameters(cell: Any) -> None:
    made = cells.method(cell)
    assert made.solver.lr == cell.given["lr"]


def test_fedavgs_cells_are_shared_with_the_page_about_fashion_mnist() -> None:
    mine, theirs = ({cell.name: cell for cell in found} for found in (studies.table1(), fashion.all_cells()))
    assert {name: cell for name, cell in mine.items() if cell.method == "fedavg"} == theirs


def test_of_the_lstm_all_but_the_embedding_is_masked() -> None:
    model = cells.network("lstm", torch.Size([80]), 80)
    layout = Layout.of(dict(model.named_parameters()))
    for cell in studies.shakespeare():
        if cell.method != "fedavg":
            masked, rest = cells.method(cell).codec.pieces(layout)
            assert [name for name, _ in masked.layout.shapes] == ["hidden.weight", "input.weight", "output.weight"]
            assert [name for name, _ in rest.layout.shapes] == ["embedding.weight"]


def test_a_network_that_draws_is_not_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    with_dropout, without = (cells.network(name, torch.Size([80]), 80) for name in ("lstm", "lstm-plain"))
    assert cells.how(with_dropout) == cells.how(without, "captured-plain") == {"device": "cpu", "executor": "auto"}
    assert cells.how(without, "stacked") == {"device": "cpu", "executor": "stacked"}
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert [cells.how(model)["executor"] for model in (with_dropout, without)] == ["one-by-one", "captured"]
    assert cells.how(with_dropout, "captured-plain") == {"device": "cuda", "executor": "captured-plain"}


def test_shakespeare_runs(tmp_path: Path, empty: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cells, "how", lambda model, wanted: {"executor": "one-by-one"})
    monkeypatch.setattr(cells, "UNDER_WAY", tmp_path / "runs")
    shakespeare_roles(tmp_path)
    cell = next(cell for cell in studies.shakespeare() if cell.method == "fedmrn")
    small = cell._replace(clients=1, per_round=1, rounds=1, given={**cell.given, "steps": 1, "batch": 2})
    assert cells.keep(small, tmp_path, until=float("inf")).startswith(f"{cell.name}: best ")
    found = cells.read(small)
    assert found["failures"] == 0
    assert len(found["accuracy"]) == 1


def test_a_cell_that_fails_keeps_no_other_from_being_done(
    empty: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    mine = list(studies.cifar())[:3]

    def keep(cell: Any, *rest: Any) -> str:
        if cell is mine[1]:
            raise OSError("No space left on device")
        return f"{cell.name}: done"

    monkeypatch.setattr(cells, "keep", keep)
    monkeypatch.setattr(cells, "ProcessPoolExecutor", lambda jobs, context: ThreadPoolExecutor(jobs))
    with pytest.raises(SystemExit, match=rf"failed: {re.escape(mine[1].name)}; .* run again to go on"):
        cells.run(mine, empty, jobs=1, seconds=60)
    said = capsys.readouterr().out
    assert all(f"{cell.name}: done" in said for cell in (mine[0], mine[2]))
    assert f"{mine[1].name}: FAILED, OSError('No space left on device')" in said


# The page.


def test_rows_are_in_order_where_the_paper_says_so_clearly() -> None:
    paper = {"a": 90.0, "b": 89.0, "c": 88.9, "d": 80.0}
    here = {"a": {0: 70.0, 1: 90.0}, "b": {0: 71.0}, "c": {0: 60.0, 1: 95.0}, "d": {0: 65.0, 2: 99.0}}
    assert set(page.clear_pairs(paper)) == {("a", "c"), ("a", "d"), ("b", "d"), ("c", "d")}
    assert page.misordered(paper, here) == {("c", "d"): -5.0}
    assert page.misordered(paper, {**here, "a": {}}) == {("c", "d"): -5.0}


def test_a_gap_of_just_one_point_is_not_clear() -> None:
    assert list(page.clear_pairs({"a": 88.9, "b": 87.9})) == []  # 1.0000000000000142 in floating point


def test_the_page_says_what_is_missing(empty: Path) -> None:
    assert "`cifar` (5 of 5 cells)" in page.missing()
    assert "`times`" in page.missing()
    for cell in studies.cifar():
        put(cell, 50.0)
    assert "cifar" not in page.missing()


def test_a_row_has_best_and_last_round_over_seeds(empty: Path) -> None:
    for cell, accuracy in zip(column("fedmrn", "iid"), [(90.0, 91.0, 89.0), (92.0, 93.0, 92.0)], strict=False):
        put(cell, *accuracy)
    assert "| `fedmrn` | lr=0.1 | 91.8 | 92.00 (91.00 to 93.00) | 90.50 (89.00 to 92.00) | 2 |" in page.page()


def test_sums_compare_the_seeds_that_both_have(empty: Path) -> None:
    for split in studies.SPLITS:
        for cell, accuracy in zip(column("fedavg", split), (90.0, 80.0, 70.0), strict=True):
            put(cell, accuracy)
        put(column("eden", split)[0], 89.0)
    assert "| `eden` | -1.8 | -3.0 |" in page.sums()


def test_the_pictures_stand_on_their_own(empty: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(curves, "PAGES", tmp_path)
    for method in ("fedavg", "eden"):
        put(column(method, "iid")[0], *(10.0 + number for number in range(80)))
    curves.draw()
    assert [path.name for path in tmp_path.glob("*.svg")] == ["fedmrn-iid.svg"]
    drawn = ElementTree.parse(tmp_path / "fedmrn-iid.svg").getroot()
    assert drawn.tag == "{http://www.w3.org/2000/svg}svg"
    assert {"fedavg", "eden"} <= {word.text for word in drawn.iter("{http://www.w3.org/2000/svg}text")}


def test_curves_are_means_of_a_few_rounds_and_end_at_the_floor() -> None:
    assert curves.smooth([10.0] * 5 + [60.0] * 5) == [(5, 40), (6, 40), (7, 40), (8, 40), (9, 50), (10, 60)]


# The masking error.


@pytest.mark.parametrize("signed", [False, True])
def test_errors_of_a_change_are_those_of_its_messages(signed: bool) -> None:
    """Within the noise, progressive masking leaves what masking entry by entry does; beyond it, it saves nothing."""
    codec, layout = MaskedNoise(signed, alpha=0.01), Layout((("w", torch.Size([200, 100])),))
    noise = codec.draw(layout, key(4))
    small = noise * (uniform(key(5), layout.size) * (1.8 if signed else 0.9) - (0.9 if signed else 0))
    found = errors.facts(codec, small, layout, key(4), 20)
    decoded = codec.decode(codec.encode(small, layout, key(4)), layout, key(4))
    assert found["beyond"] == 0
    assert found["whole"] == pytest.approx(float((decoded - small).norm() / small.norm()), rel=0.03)
    assert found["clipped"] == pytest.approx(found["whole"], rel=1e-5)
    left = found["whole, progressive"] / found["whole"]
    assert left == pytest.approx(progressive_factor_by_entry(20), rel=0.01)
    large = errors.facts(codec, 3 * noise, layout, key(4), 20)
    assert (large["beyond"], large["clipped"]) == (1, pytest.approx(0, abs=1e-6))
    assert [large["whole"], large["whole, progressive"]] == pytest.approx([2 / 3, 2 / 3])


def test_real_updates_are_watched_and_told(empty: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = uniform(key(0), 30 * 16).view(30, 1, 4, 4), torch.arange(30) % 10
    small = Task.of(lambda: build("logistic", (1, 4, 4), 10), (x, y), (x, y), clients=3)
    monkeypatch.setattr(cells, "task", lambda cell, data_dir: small)
    monkeypatch.setattr(errors, "STEPS", 2)
    monkeypatch.setattr(errors, "METHODS", ("fedmrns",))
    errors.keep(tmp_path)
    assert [row["round"] for row in json.loads(errors.path().read_text())["found"]["fedmrns"]] == [1, 1, 2, 2, 3, 3]
    assert "error" not in page.missing()
    assert errors.table().count("| `fedmrns` |") == 3


# Times.


def test_times_are_measured_in_turns_and_told(empty: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(times, "SAMPLES", {"cnn4": (4, (1, 16, 16))})
    monkeypatch.setattr(times, "COMMON", {"steps": 1})
    monkeypatch.setitem(times.PLANS, "cpu", {"executor": "one-by-one", "models": ("cnn4",), "repeats": 1})
    times.keep()
    (path,) = (empty / "cells").glob("*.json")
    assert path.name == "fedmrn-times-cpu.json"
    measured = json.loads(path.read_text())["times"]["cnn4"]
    assert list(measured) == list(studies.SETTINGS)
    assert all(found[part] > 0 for found in measured.values() for part in ("train", "encode", "fold", "bytes"))
    assert measured["fedmrn"]["bytes"] < measured["fedavg"]["bytes"] / 20
    assert "| `fedavg` | " in times.tables()
    assert "`times`" not in page.missing()
