"""reproduce/fedmrn: its cells run, its tables have the right values, and its measurements are correct."""

from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
import torch

from gossamer import Task
from gossamer.analysis.theory import progressive_factor_by_entry
from gossamer.core.codec import Coding
from gossamer.core.random import key, uniform
from gossamer.core.types import Layout
from gossamer.engines.run import CodecWarning
from gossamer.parts.codecs import MaskedNoise, OnWeights
from gossamer.tasks.data import Data
from gossamer.tasks.data.samples import Samples
from gossamer.tasks.nets import build
from helpers.markdown import only, parsed
from helpers.small_files import shakespeare_roles
from reproduce.common import cells, store
from reproduce.common.cells import Cell
from reproduce.fedmrn import bits, error, page, studies, times

EVERY = [cell for study in studies.STUDIES.values() for cell in study()]


def put(cell: Cell, *accuracy: float) -> None:
    """Store a cell with a made-up curve."""
    found = {"best": max(accuracy), "last": accuracy[-1], "accuracy": list(accuracy)}
    cells.save(cell, {**cell._asdict(), **found})


# Cells.


def test_a_name_stands_for_one_cell_alone() -> None:
    assert len({cell.name for cell in EVERY}) == len({repr(cell) for cell in EVERY})
    for study in studies.STUDIES.values():
        names = [cell.name for cell in study()]
        assert len(set(names)) == len(names)


@pytest.mark.parametrize("cell", EVERY, ids=lambda cell: cell.name)
def test_every_recipe_takes_its_parameters(cell: Cell) -> None:
    solver: Any = cells.method(cell).solver
    assert solver.lr == cell.given["lr"]


def test_of_the_lstm_all_but_the_embedding_is_masked() -> None:
    model = cells.network("lstm", torch.Size([80]), 80)
    layout = Layout.of(dict(model.named_parameters()))
    for cell in studies.shakespeare():
        if cell.method != "fedavg":
            codec = cells.method(cell).codec
            assert isinstance(codec, OnWeights)
            masked, rest = codec.pieces(layout)
            assert [name for name, _ in masked.layout.shapes] == ["hidden.weight", "input.weight", "output.weight"]
            assert [name for name, _ in rest.layout.shapes] == ["embedding.weight"]


def test_shakespeare_runs(tmp_path: Path, empty: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cells, "how", lambda wanted: {"executor": "one-by-one"})
    shakespeare_roles(tmp_path)
    cell = next(cell for cell in studies.shakespeare() if cell.method == "fedmrn")
    small = cell._replace(clients=1, per_round=1, rounds=1, given={**cell.given, "steps": 1, "batch": 2})
    with pytest.warns(CodecWarning, match=r"alpha=0\.003 is small"):
        assert cells.keep(small, tmp_path).startswith(f"{cell.name}: best ")
    found = cells.read(small)
    assert found["failures"] == 0
    assert len(found["accuracy"]) == 1


# The page.


def test_rows_are_in_order_where_the_paper_says_so_clearly() -> None:
    paper = {"a": 90.0, "b": 89.0, "c": 88.9, "d": 80.0}
    here = {"a": {0: 70.0, 1: 90.0}, "b": {0: 71.0}, "c": {0: 60.0, 1: 95.0}, "d": {0: 65.0, 2: 99.0}}
    assert set(page.clear_pairs(paper)) == {("a", "c"), ("a", "d"), ("b", "d"), ("c", "d")}
    assert page.misordered(paper, here) == {("c", "d"): -5.0}
    assert page.misordered(paper, {**here, "a": {}}) == {("c", "d"): -5.0}


def test_a_gap_of_just_one_point_is_not_clear() -> None:
    assert list(page.clear_pairs({"a": 88.9, "b": 87.9})) == []  # 1.0000000000000142 in floating point


def test_the_page_names_what_is_missing(empty: Path) -> None:
    assert "`cifar` (5 of 5 cells)" in page.missing()
    assert "`times`" in page.missing()
    for cell in studies.cifar():
        put(cell, 50.0)
    assert "`cifar`" not in page.missing()


def test_a_row_has_best_and_last_round_over_seeds(empty: Path) -> None:
    curves = [(90.0, 91.0, 89.0), (92.0, 93.0, 92.0)]
    for cell, accuracy in zip(page.of_table1("fedmrn", "iid"), curves, strict=False):
        put(cell, *accuracy)
    row = only(page.split_table("iid"), method="fedmrn")
    assert (row["setting"], row["paper, best round"], row["seeds"]) == ("lr=0.1", "91.8", "2")
    assert (row["best round"], row["last round"]) == ("92.00 (91.00 to 93.00)", "90.50 (89.00 to 92.00)")
    assert row in parsed(page.page())


def test_sums_compare_the_seeds_that_both_have(empty: Path) -> None:
    for split in studies.SPLITS:
        for cell, accuracy in zip(page.of_table1("fedavg", split), (90.0, 80.0, 70.0), strict=True):
            put(cell, accuracy)
        put(page.of_table1("eden", split)[0], 89.0)
    row = only(page.sums(), method="eden")
    assert (row["paper"], row["here"]) == ("-1.8", "-3.0")


def test_plots_have_the_names_of_their_curves(empty: Path) -> None:
    for method in ("fedavg", "eden"):
        put(page.of_table1(method, "iid")[0], *(10.0 + number for number in range(80)))
    page.draw()
    assert [path.name for path in empty.glob("*.svg")] == ["fedmrn-iid.svg"]
    drawn = ElementTree.parse(empty / "fedmrn-iid.svg").getroot()
    assert drawn.tag == "{http://www.w3.org/2000/svg}svg"
    assert {"fedavg", "eden", "round"} <= {word.text for word in drawn.iter("{http://www.w3.org/2000/svg}text")}


def test_curves_are_running_means_above_the_floor() -> None:
    assert page.smooth([10.0] * 5 + [60.0] * 5) == [(5, 40), (6, 40), (7, 40), (8, 40), (9, 50), (10, 60)]


def test_measured_noise_is_shown_beside_fedavg_with_its_bits(empty: Path) -> None:
    cell = next(cell for cell in studies.auto() if cell.method == "fedmrn" and cell.split == "iid")
    costs = {"bits_per_parameter": 0.81, "mask_bits": 0.7, "clipped": 0.2}
    cells.save(cell, {**cell._asdict(), "best": 91.5, "last": 91.0, **costs})
    put(page.of_table1("fedavg", "iid")[0], 92.0, 91.8)
    row = only(page.auto_table(), method="fedmrn")
    assert (row["bits per parameter"], row["bits per masked weight"], row["clipped"]) == ("0.81", "0.70", "20 %")
    assert (row["FedAvg, seed 0"], row["published noise, seed 0"]) == ("92.00, 91.80", "not run")
    assert row["masks"] == "in training"
    assert cells.method(cell).codec == OnWeights(MaskedNoise(block=None, learn_masks=True))
    names = {made.name: made for made in studies.auto()}
    default = names["fedmrn-default-fedmrn-iid-0"]
    assert cells.method(default).codec == OnWeights(MaskedNoise(learn_masks=False)), "what MaskedNoise() does"


def test_table_3_has_all_columns_of_the_paper_and_names_the_artefact(empty: Path) -> None:
    found = list(studies.roles())
    for cell in found:
        put(cell, 50.0)
    rows = parsed(page.role_table("Table 3", found, list(studies.ROLE_METHODS)))
    paper = {row["method"]: (row["paper"], row["rounds"]) for row in rows}
    assert paper["signsgd"] == ("38.0", "100")
    assert paper["eden"] == ("49.6", "100")
    assert "train_base=True" in next(row for row in rows if "trained-base" in row["method"])["with"]
    assert {cell.given["weights"] for cell in found} == {"samples"}


def test_validation_holds_out_roles_or_samples() -> None:
    samples = Samples(torch.zeros(40, 1), torch.arange(40), np.repeat([7, 3, 9, 5], 10))
    data = Data("text", samples, samples, 40, split="natural", model="mlp")
    held = cells.validation(data, 2)
    assert held.test.y.tolist() == list(range(20))  # owners 3 and 7, the first and third in order
    assert held.train.y.tolist() == list(range(20, 40))
    plain = replace(data, train=replace(samples, group=None))
    assert cells.validation(plain, 10).test.y.tolist() == [0, 10, 20, 30]
    assert len(cells.validation(plain, 10).train) == 36


def test_bits_count_all_uploads(tmp_path: Path, empty: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cells, "how", lambda wanted: {"executor": "one-by-one"})
    shakespeare_roles(tmp_path)
    cell = next(cell for cell in studies.roles() if cell.name.endswith("fedmrn-auto"))
    small = cell._replace(clients=1, per_round=1, rounds=1, given={**cell.given, "steps": 1, "batch": 2})
    small = small._replace(data="shakespeare")
    cells.keep(small, tmp_path, bits.measured)
    found, parameters = cells.read(small), 80 * 8 + 4 * 256 * (8 + 256) + 80 * 256
    assert found["bits_per_parameter"] == pytest.approx(8 * sum(found["bytes_up"].values()) / parameters, abs=1e-4)
    mask = sum(size for name, size in found["bytes_up"].items() if not name.endswith(("rest.values", "overhead")))
    assert found["mask_bits"] == pytest.approx(8 * mask / (parameters - 80 * 8), abs=1e-4)
    assert 0 < found["clipped"] < 0.5


# The masking error.


@pytest.mark.parametrize("signed", [False, True])
def test_errors_of_a_change_are_those_of_its_messages(signed: bool) -> None:
    """Within the noise, progressive masking leaves what masking entry by entry does; beyond it, it saves nothing."""
    codec, layout = MaskedNoise(signed, alpha=0.01), Layout((("w", torch.Size([200, 100])),))
    ctx = Coding(layout, key(4))
    noise = codec.draw(ctx)
    small = noise * (uniform(key(5), layout.size) * (1.8 if signed else 0.9) - (0.9 if signed else 0))
    found = error.errors(codec, small, ctx, 20)
    decoded = codec.decode(codec.encode(small, ctx), ctx)
    assert found["beyond"] == 0
    assert found["whole"] == pytest.approx(float((decoded - small).norm() / small.norm()), rel=0.03)
    assert found["clipped"] == pytest.approx(found["whole"], rel=1e-5)
    left = found["whole, progressive"] / found["whole"]
    assert left == pytest.approx(progressive_factor_by_entry(20), rel=0.01)
    large = error.errors(codec, 3 * noise, ctx, 20)
    assert [large["beyond"], large["clipped"]] == pytest.approx([1, 0], abs=1e-6)
    assert [large["whole"], large["whole, progressive"]] == pytest.approx([2 / 3, 2 / 3])


def test_errors_of_real_updates_are_stored_and_shown(
    empty: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, y = uniform(key(0), 30 * 16).view(30, 1, 4, 4), torch.arange(30) % 10
    small = Task.of(lambda: build("logistic", (1, 4, 4), 10), (x, y), (x, y), clients=3)
    monkeypatch.setattr(cells, "task", lambda cell, data_dir: small)
    monkeypatch.setattr(error, "STEPS", 2)
    monkeypatch.setattr(error, "METHODS", ("fedmrns",))
    with pytest.warns(CodecWarning, match="clipped"):
        error.keep(tmp_path)
    found = store.read("fedmrn")["fedmrn-error"]["found"]["fedmrns"]
    assert [row["round"] for row in found] == [1, 1, 2, 2, 3, 3]
    assert "error" not in page.missing()
    rows = parsed(error.section())
    assert [(row["method"], row["round"]) for row in rows] == [("fedmrns", str(number)) for number in (1, 2, 3)]
    mean = (found[0]["whole"] + found[1]["whole"]) / 2
    assert float(rows[0]["q"]) == pytest.approx(mean, abs=5e-4)


# Times.


@pytest.mark.slow
def test_times_are_measured_in_turns_and_shown(empty: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(times, "SAMPLES", {"cnn4": (4, (1, 16, 16))})
    monkeypatch.setattr(times, "COMMON", {"steps": 1})
    monkeypatch.setitem(times.PLANS, "cpu", {"executor": "one-by-one", "models": ("cnn4",), "repeats": 1})
    times.keep(empty)
    assert list(store.read("fedmrn")) == ["fedmrn-times-cpu"]
    measured = store.read("fedmrn")["fedmrn-times-cpu"]["times"]["cnn4"]
    assert list(measured) == list(studies.SETTINGS)
    assert all(found[part] > 0 for found in measured.values() for part in ("train", "encode", "fold", "bytes"))
    assert measured["fedmrn"]["bytes"] < measured["fedavg"]["bytes"] / 20
    row = only(times.section(), method="eden")
    assert row["training"] == f"{measured['eden']['train']:.1f} ms"
    assert float(row["relative to FedAvg"]) == pytest.approx(
        measured["eden"]["train"] / measured["fedavg"]["train"], abs=0.005
    )
    assert "`times`" not in page.missing()
