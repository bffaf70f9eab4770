"""What all reproductions share: storage, runs of cells, tables, the command line; and the studies of the baselines."""

import json
import re
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from gossamer import Dense, Eden, OnWeights
from gossamer.core.errors import ConfigError
from helpers.inline import Inline
from helpers.markdown import only, parsed
from helpers.paths import ROOT
from reproduce import __main__ as dispatcher
from reproduce.baselines import classics, codecs, fashion, precision
from reproduce.common import cells, seeds, store, tables
from reproduce.common.cells import Cell
from reproduce.common.cli import Reproduction
from reproduce.fedmrn import studies

CELL = Cell("example-one", "fedavg", {"lr": 0.1}, "digits", "mlp", "iid", 0, 1)


# Storage.


def test_entries_are_stored_one_per_line_in_order_of_their_names(empty: Path) -> None:
    values: dict[str, Any] = {"b": {"z": 1, "a": [0.1, None]}, "a": 3, "c": [{"x": 1}, {"x": 2}]}
    for name, value in values.items():
        store.write("example", name, value)
    assert store.read("example") == values
    lines = (empty / "cells/example.json").read_text().splitlines()
    assert lines == ["{", '"a": 3,', '"b": {"z": 1, "a": [0.1, null]},', '"c": [', '{"x": 1},', '{"x": 2}', "]", "}"]
    store.write("example", "a", 4)
    assert store.read("example") == {**values, "a": 4}
    assert store.read("other") == {}


def _write(folder: Path, number: int) -> None:
    store.CELLS, store.RUNS = folder / "cells", folder / "runs"
    for count in range(5):
        store.write("example", f"{number}-{count}", count)


def test_several_processes_write_one_study(empty: Path) -> None:
    with ProcessPoolExecutor(4) as pool:
        list(pool.map(_write, [empty] * 4, range(4)))
    assert len(store.read("example")) == 20


def test_a_write_that_fails_leaves_the_last_complete_file(empty: Path) -> None:
    store.write("example", "a", 1)
    with pytest.raises(TypeError):
        store.write("example", "b", object())
    assert store.read("example") == {"a": 1}
    store.write("example", "b", 2)  # the lock is free again
    assert store.read("example") == {"a": 1, "b": 2}


@pytest.mark.parametrize("path", sorted((ROOT / "docs/reproduction/cells").iterdir()), ids=lambda path: path.name)
def test_the_stored_files_have_the_format_of_the_store(path: Path) -> None:
    assert path.suffix == ".json"
    entries = json.loads(path.read_text())
    assert path.read_text() == store._text(entries)
    cells_of = {name: value for name, value in entries.items() if isinstance(value, dict) and "method" in value}
    assert all(value["name"] == name for name, value in cells_of.items())


# Cells.


def test_a_cell_belongs_to_the_study_of_its_first_word(empty: Path) -> None:
    assert not CELL.stored
    cells.save(CELL, {"best": 1.0})
    assert CELL.stored
    assert store.read("example") == {"example-one": {"best": 1.0}}
    assert cells.read_all([CELL, CELL._replace(name="example-two")]) == [{"best": 1.0}]


@pytest.mark.parametrize(("gpu", "device", "usual", "wanted"), [
    (False, "cpu", "auto", "auto"), (True, "cuda", "captured", "captured-plain"),
])  # fmt: skip
def test_a_gpu_captures_and_a_cpu_does_not(
    gpu: bool, device: str, usual: str, wanted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu)
    assert cells.how() == {"device": device, "executor": usual}
    assert cells.how("captured-plain") == {"device": device, "executor": wanted}
    assert cells.how("stacked") == {"device": device, "executor": "stacked"}


def test_a_cell_that_fails_does_not_stop_the_others(
    empty: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    mine = list(studies.cifar())[:3]

    def keep(cell: Any, *rest: Any) -> str:
        if cell is mine[1]:
            raise OSError("No space left on device")
        return f"{cell.name}: done"

    monkeypatch.setattr(cells, "keep", keep)
    monkeypatch.setattr(cells, "Local", lambda jobs, fresh: Inline(jobs))
    with pytest.raises(SystemExit, match=rf"failed: {re.escape(mine[1].name)}; .* run again to resume"):
        cells.run(mine, empty, jobs=1, seconds=60)
    said = capsys.readouterr().out
    assert all(f"{cell.name}: done" in said for cell in (mine[0], mine[2]))
    assert f"{mine[1].name}: FAILED, OSError('No space left on device')" in said


def test_a_rounds_seconds_exclude_other_phases_of_the_run() -> None:
    spent = {
        "prepare": 100.0,
        "download": 1.0,
        "train": 2.0,
        "receive": 0.5,
        "other": 0.25,
        "evaluate": 50.0,
        "save": 9.0,
    }
    assert cells.seconds({"seconds": spent}) == 3.75


def test_the_first_round_is_the_first_that_reaches_the_target() -> None:
    facts = {"rounds_told": [5, 10, 15], "accuracy": [60.0, 80.0, 70.0], "personal": [1.0, 2.0, 3.0]}
    assert cells.first_round(facts, 70) == 10
    assert cells.first_round(facts, 3, "personal") == 15
    assert cells.first_round(facts, 81) is None


# Values over seeds, and tables.


def test_values_over_seeds() -> None:
    assert seeds.spread([1.0, 3.0], 1) == "2.0 (1.0 to 3.0)"
    assert seeds.spread([0.5], unit=" %") == "0.50 %"
    assert seeds.interval([1.0]) == "1.00"
    assert seeds.interval([1.0, 3.0]) == "2.00 ± 1.96"
    assert seeds.paired({0: 5, 1: 7, 2: 9}, {0: 1, 1: 2, 3: 0}, float) == [4.0, 5.0]


def test_a_table_has_its_values_in_their_columns() -> None:
    made = tables.section("A title", ["method", "best"], [["`fedavg`", "1.5"], ["`local`", ""]], "A note.")
    assert parsed(made) == [{"method": "fedavg", "best": "1.5"}, {"method": "local", "best": ""}]
    assert made.startswith("\n### A title\n\nA note.\n\n|")
    assert tables.section("A title", ["method"], []) == ""


def test_a_page_keeps_its_text_above_the_mark(empty: Path) -> None:
    (empty / "page.md").write_text(f"Words.\n\n{tables.MARK}\nold\n")
    tables.write("page", "new")
    assert (empty / "page.md").read_text() == f"Words.\n\n{tables.MARK}\nnew\n"


@pytest.mark.parametrize("page", sorted((ROOT / "docs/reproduction").glob("*.md")), ids=lambda path: path.stem)
def test_every_page_has_one_mark(page: Path) -> None:
    assert page.read_text().count(tables.MARK) == 1


# The command line.


def test_all_studies_have_a_module_with_a_command_line() -> None:
    for name in dispatcher.STUDIES:
        with pytest.raises(SystemExit) as stopped:
            dispatcher.main([name, "--help"])
        assert stopped.value.code == 0


def test_without_a_study_all_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    dispatcher.main([])
    said = capsys.readouterr().out
    assert all(f"  {name} " in said for name in dispatcher.STUDIES)
    with pytest.raises(SystemExit, match="unknown study 'nothing'"):
        dispatcher.main(["nothing"])


@pytest.mark.parametrize("module", ["reproduce.fedspa", pytest.param("reproduce.baselines", marks=pytest.mark.slow)])
def test_packages_run_as_modules(module: str) -> None:
    words = ["classics", "--help"] if module.endswith("baselines") else ["--list", "--only", "densities"]
    run = subprocess.run([sys.executable, "-m", module, *words], cwd=ROOT, capture_output=True, text=True, check=True)
    assert ("--data-dir" if "--help" in words else "fedspa-cifar-10-b-dst-0.2-0 (stored)") in run.stdout


def test_a_listing_has_each_cell_once_and_the_remaining_cost(empty: Path) -> None:
    two = CELL._replace(name="example-two")
    made = Reproduction("example", "", {"all": lambda: [CELL, two]}, page=lambda: "", cost=lambda cell: 1.5)
    cells.save(two, {})
    names = [line.split()[1] for line in made.listing([CELL, two, CELL]).splitlines()]
    assert names == ["example-one", "example-two", "PFLOP"]
    assert made.listing([CELL, two]).splitlines()[-1].split()[0] == "1.50"


def test_studies_run_in_turn_and_measurements_among_them(empty: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    monkeypatch.setattr(cells, "run", lambda mine, *rest: seen.append([cell.name for cell in mine]))
    (empty / "example.md").write_text(tables.MARK)
    two = CELL._replace(name="example-two", method="local")
    made = Reproduction(
        "example",
        "",
        {"one": lambda: [CELL, two], "two": lambda: [two]},
        page=lambda: "made",
        measurements={"times": seen.append},
    )
    made.main(["--only", "two", "times", "one", "--data-dir", "somewhere", "--methods", "local"])
    assert seen == [["example-two"], Path("somewhere"), ["example-two"]]
    assert (empty / "example.md").read_text().endswith("made\n")


# Baselines.


def test_fedavgs_cells_are_shared_with_fedmrn() -> None:
    mine, theirs = ({cell.name: cell for cell in found} for found in (studies.table1(), fashion.all_cells()))
    assert {name: cell for name, cell in mine.items() if cell.method == "fedavg"} == theirs


def test_fashion_has_best_and_last_rounds(empty: Path) -> None:
    for cell, best in zip(fashion.all_cells(), (92.0, 90.0, 88.0, 94.0), strict=False):
        cells.save(cell, {"best": best, "last": best - 1})
    row = only(fashion.table(), split="iid")
    assert (row["paper, best round"], row["best round"]) == ("92.0", "93.00 (92.00 to 94.00)")
    assert (row["last round"], row["seeds"]) == ("92.00 (91.00 to 93.00)", "2")
    assert only(fashion.table(), split="labels:3")["best round"] == "88.00"


def test_classics_take_the_best_setting_of_the_search(empty: Path) -> None:
    for cell in classics.search():
        good = cell.given["lr"] == 0.03 and cell.given.get("mu", 0.01) == 0.01
        cells.save(cell, {"last": 80.0 if good else 70.0})
    assert classics.chosen("fedprox") == {"lr": 0.03, "mu": 0.01}
    for cell in classics.final():
        twice = 1 + (cell.method == "scaffold")
        facts = {"last": 80.0, "bytes_round": twice * 10**6, "rounds_told": [25, 50, 75, 150]}
        cells.save(cell, {**facts, "accuracy": [60.0, 71.0, 74.0 + cell.seed, 79.0]})
    row, other = (only(classics.table(), method=method) for method in ("fedavg", "scaffold"))
    head = "with the bytes of 75 rounds of FedAvg"
    assert (row[head], row["MB per round"]) == ("75.0 (74.0 to 76.0)", "1.0")
    assert (row["rounds to 70 %"], row["rounds to 75 %"], row["rounds to 80 %"]) == ("50", "100", "0 of 3 seeds")
    assert other[head] == "60.0 (60.0 to 60.0)"


def test_classics_draw_both_axes(empty: Path) -> None:
    for cell in classics.search():
        cells.save(cell, {"last": 70.0})
    for cell in classics.final():
        cells.save(cell, {"bytes_round": 10**6, "rounds_told": [5, 10], "accuracy": [60.0, 70.0]})
    classics.draw()
    drawn = (empty / classics.PLOT).read_text()
    assert all(word in drawn for word in (*classics.OTHERS, "round", "GB, both directions"))


def test_precisions_are_compared_seed_by_seed(empty: Path) -> None:
    for name, lasts in {"float32": (90.0, 80.0, 85.0), "bf16": (91.0, 80.5)}.items():
        for seed, last in enumerate(lasts):
            cells.save(
                precision.cell("cifar", name, seed), {"last": last, "round_seconds": 0.5, "executor": "captured"}
            )
    row = only(precision.page(), data="cifar-10", precision="bf16")
    assert (row["accuracy, last round"], row["minus float32"], row["seeds"]) == (
        "85.75 (80.50 to 91.00)",
        "0.75 ± 0.49",
        "2",
    )
    assert only(precision.page(), data="cifar-10", precision="tf32")["accuracy, last round"] == "not run"
    assert "`cifar` (4 of 9 cells)" in precision.page()


def test_a_cell_is_trained_in_its_precision(empty: Path) -> None:
    def engine(*_: Any, **options: Any) -> Any:
        raise ConfigError(f"trained in {options['precision']}")

    for name in ("bf16", "float32"):
        cell = CELL._replace(name=f"precision-{name}", precision=name)
        assert cells.keep(cell, Path(), engine=engine).endswith(f"skipped, trained in {name}")


# Codecs.


def test_every_row_of_the_codec_table_is_a_method_of_its_own() -> None:
    every = [cell for study in codecs.STUDIES.values() for cell in study()]
    assert len({cell.name for cell in every}) == len(every) == 3 * 3 * len(codecs.ROWS)
    methods = {row: cells.method(codecs.cell("digits", row, 0)) for row in codecs.ROWS}
    assert len(set(map(repr, methods.values()))) == len(codecs.ROWS)
    assert methods["eden --bits 4 --coded --down eden:8"].codec == OnWeights(Eden(4, coded=True))
    assert methods["fedavg --codec dense:float16 --down dense:float16"].training.down == Dense("float16")
    with pytest.raises(ConfigError, match="--bitz"):
        cells.written("eden", {}, "--bitz 3")


def test_the_codec_table_counts_all_bits(empty: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    row = "eden --bits 4 --coded"
    monkeypatch.setattr(codecs, "ROWS", (row,))
    monkeypatch.setattr(codecs, "REPEATS", 1)
    monkeypatch.setattr(codecs, "WARM_UP", 0)
    small = codecs.TASKS["digits"]._replace(rounds=1, clients=30, per_round=2, epochs=1)
    monkeypatch.setitem(codecs.TASKS, "digits", small)
    for seed in codecs.SEEDS[:2]:
        cells.keep(codecs.cell("digits", row, seed), empty, codecs.more)
    codecs.measure(empty)
    facts = cells.read(codecs.cell("digits", row, 0))
    assert 8 * sum(facts["bytes_up"].values()) / 2 / 55_210 == pytest.approx(facts["up"], rel=0.01)
    assert facts["down"] == pytest.approx(32 + 8 * 58 / 55_210, abs=0.001)  # header and table
    page = codecs.page()
    line = parsed(page)[0]
    low, high = sorted(cells.read(codecs.cell("digits", row, seed))["last"] for seed in codecs.SEEDS[:2])
    assert line["digits, MLP"] == f"{(low + high) / 2:.1f} ({low:.1f} to {high:.1f})"
    assert line["encode"].endswith(" ms")
    assert "**Not run yet:** `digits` (1 of 3 cells), `fashion` (3 of 3 cells), `rows` (3 of 3 cells)." in page


def test_an_lstm_reads_an_image_from_top_to_bottom() -> None:
    net = cells.network("lstm-rows", torch.Size([1, 28, 28]), 10)
    image = torch.rand(2, 1, 28, 28)
    assert net(image).shape == (2, 10)
    last = image.clone()
    last[:, :, -1] += 1
    assert not torch.allclose(net(last), net(image))
    assert sum(weight.numel() for weight in net.parameters()) == 24_458
