"""reproduce/fedspa: its cells run, its counts are correct, and its tables have the right values."""

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from gossamer import Task, simulate
from gossamer.core.errors import ConfigError
from gossamer.core.random import key
from gossamer.parts.solvers import Exponential
from gossamer.parts.views import masks
from gossamer.parts.views.personal_mask import PersonalMask
from gossamer.parts.views.sparsity import erk, kept
from gossamer.tasks.objective import Objective
from helpers.markdown import only, parsed
from reproduce.common import cells
from reproduce.common.cells import Cell
from reproduce.fedspa import __main__ as script
from reproduce.fedspa import drift, facts, page, paper, studies

EVERY = [cell for study in studies.STUDIES.values() for cell in study()]
NAMES = [*studies.METHODS, *studies.VARIANTS]
CLIENTS, TRAIN, TEST, BATCH, ROUNDS = 20, 80, 40, 2, 3
Make = Callable[..., Cell]


# Cells.


def test_a_name_stands_for_one_cell_alone() -> None:
    named = {cell.name: repr(cell) for cell in EVERY}
    assert len(named) == len(set(named.values()))
    assert len(named) == len({(cell.name, repr(cell)) for cell in EVERY})
    assert {studies.variant(cell) for cell in EVERY} == set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_all_methods_train_alike(name: str) -> None:
    for data in studies.SETS:
        made = cells.method(studies.cell(data, "b", name))
        solver: Any = made.solver
        batch = 20 if data == "fashion-mnist" else 128
        assert (solver.lr, solver.batch, solver.momentum) == (0.1, batch, 0.0)
        assert (solver.weight_decay, solver.clip, solver.schedule) == (5e-4, 10.0, Exponential(0.998))
        assert solver.epochs + getattr(solver, "personal_epochs", 0) == 5


def test_variants_differ_in_what_they_say() -> None:
    for name, (base, more) in studies.VARIANTS.items():
        one, other = (studies.cell("cifar-10", "b", each) for each in (name, base))
        assert {key: value for key, value in one.given.items() if other.given.get(key) != value} == more
        assert cells.method(one) != cells.method(other)


def test_tables_3_and_4_are_studied_in_every_setting_of_cifar_100() -> None:
    found = {(cell.split, studies.variant(cell)) for cell in studies.cifar_100()}
    splits = [studies.split("cifar-100", setting) for setting in studies.SETTINGS]
    for method in (*studies.DENSITIES, "dst", "dst-uniform"):
        assert {split for split, name in found if name == method} == set(splits)
        assert method in paper.ACCURACIES["cifar-100"]
    assert {variant for _, variant in found} == set(NAMES)


@pytest.mark.parametrize("target", [0.2, 0.5, 0.8])
def test_sub_fedavg_reaches_its_target_with_the_last_of_its_prunings(target: float) -> None:
    share = studies.pruning(target)["share"]
    held = 10**6
    for _ in range(studies.PRUNINGS):
        assert held > target * 10**6
        held -= int(share * held)
    assert 0.93 * target * 10**6 < held <= target * 10**6


def wanted(names: list[str], methods: list[str] | None = None) -> list[Cell]:
    return [cell for study in names for cell in script.REPRODUCTION.wanted(study, methods)]


def test_the_most_important_cells_come_first() -> None:
    found = wanted(list(studies.DEFAULT))
    assert [cell.name for cell in found[:3]] == [f"fedspa-cifar-10-b-{m}-0" for m in ("dst", "rsm", "fedavg")]
    assert len(found) == len({cell.name for cell in found})
    assert {cell.data for cell in found} == {"cifar-10"}
    few = wanted(["claims", "densities"], ["dst-0.2", "rsm"])
    assert [studies.variant(cell) for cell in few] == ["rsm", "rsm", "rsm", "dst-0.2"]


def test_a_cells_cost_is_that_of_its_images() -> None:
    plain = studies.cell("cifar-10", "b", "fedavg")._replace(rounds=1, eval_every=1)
    images = 3 * 10 * 2500 + 2 * 10_000
    assert studies.cost(plain) == pytest.approx(images * 305.7e6 / 1e15)
    alone = studies.cell("cifar-10", "b", "local")
    assert alone.eval_every > plain.eval_every  # or evaluating would cost more than training
    assert studies.cost(alone) < 1.5 * studies.cost(studies.cell("cifar-10", "b", "fedavg"))


def test_settings_are_the_papers() -> None:
    assert studies.split("cifar-10", "iid") == "iid"
    assert [studies.split("cifar-10", s) for s in ("a", "b")] == ["dirichlet-client:0.5", "dirichlet-client:0.3"]
    assert [studies.split("cifar-100", s) for s in ("a", "b")] == ["dirichlet-client:0.2", "dirichlet-client:0.1"]
    for data, rows in paper.ACCURACIES.items():
        assert set(studies.METHODS) <= set(rows) <= set(NAMES)
        assert set(rows) == set(paper.COSTS[data])


# Small cells, whole.


def thin(classes: int) -> nn.Module:
    """Two convolutions over a coarse image, and a linear layer."""
    layers = [nn.Conv2d(3, 8, 4, 4), nn.GroupNorm(2, 8), nn.ReLU(), nn.Conv2d(8, 16, 3, 2), nn.ReLU()]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(144, classes))


@pytest.fixture
def small(empty: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    """Cells on eighty images with a small network."""
    monkeypatch.setattr(cells, "network", lambda name, shape, classes: thin(classes))
    draw = np.random.default_rng(0)
    arrays: dict[str, Any] = {}
    for part, many in (("train", TRAIN), ("test", TEST)):
        arrays[f"x_{part}"] = draw.integers(0, 256, (many, 32, 32, 3), dtype=np.uint8)
        arrays[f"y_{part}"] = np.arange(many, dtype=np.uint8) % 10
    np.savez(empty / "cifar10.npz", **arrays)

    def made(method: str, rounds: int = ROUNDS) -> Cell:
        usual = studies.cell("cifar-10", "b", method)
        given = {**usual.given, "batch": BATCH}
        more: dict[str, Any] = {"clients": CLIENTS, "per_round": 2, "eval_every": 2, "executor": "one-by-one"}
        return usual._replace(given=given, rounds=rounds, **more)

    return made


def small_task(small: Make, empty: Path) -> Task:
    return cells.task(small("dst"), empty)


@pytest.mark.parametrize("method", [*studies.METHODS, "dst-random"])
def test_a_small_cell_runs_and_keeps_its_facts(method: str, small: Make, empty: Path) -> None:
    cell = small(method)
    assert cells.keep(cell, empty, facts.facts).startswith(f"{cell.name}: best ")
    found = cells.read(cell)
    assert found["failures"] == 0
    assert found["rounds_told"] == [2, 3]
    assert len(found["personal"]) == len(found["accuracy"]) == len(found["bytes"]) == 2
    assert found["last"] == found["personal"][-1]
    assert found["bytes"][0] < found["bytes"][1] or method == "local"
    assert not cell.folder.exists()
    row = only(page.accuracies("cifar-10", "b"), method=method)
    assert row["last"] == f"{found['last']:.2f}"


def test_bytes_as_the_paper_counts_them_are_four_a_held_value(small: Make, empty: Path) -> None:
    shapes = {name: p.shape for name, p in small_task(small, empty).model().named_parameters()}
    every, half = sum(shape.numel() for shape in shapes.values()), sum(kept(shapes, erk(shapes, 0.5)).values())
    assert every / 2 - len(shapes) < half <= every / 2
    overhead = {}
    for method, values in {"fedavg": every, "dst": half, "rsm": half}.items():
        cell = small(method)
        cells.keep(cell, empty, facts.facts)
        found = cells.read(cell)
        assert found["paper_bytes"][-1] == 2 * 4 * values * cell.per_round * ROUNDS
        overhead[method] = found["bytes"][-1] - found["paper_bytes"][-1]
    assert overhead["dst"] > overhead["rsm"]  # masks move, and travel
    assert overhead["rsm"] == overhead["fedavg"]


def test_flops_as_the_paper_counts_them(small: Make, empty: Path) -> None:
    task = small_task(small, empty)
    metrics = [{"clients": [0, 1]}, {"clients": [3, 7]}]
    counted = {m: facts.paper_flops(small(m), task, metrics) for m in ("fedavg", "ditto", "dst", "rsm", "sub-fedavg")}
    module = task.model()
    sizes = {name: p.shape for name, p in module.named_parameters()}
    sides = _sides(module, task.data.train.x[:1])
    each = TRAIN // CLIENTS
    dense = sum((2 * sizes[f"{layer}.weight"].numel() + out) * area for layer, (out, area) in sides.items())
    assert counted["fedavg"] == counted["ditto"] == 4 * 3 * 5 * each * dense
    assert counted["sub-fedavg"] is None
    view = cells.method(small("dst")).bind(Objective(task, "cpu", key(0))).training.view
    assert isinstance(view, PersonalMask)
    held = {n: masks.count(packed) for n, packed in view.first(0)["mask"].items()}
    whole = {name: held.get(name, shape.numel()) for name, shape in sizes.items()}
    sparse = sum((2 * whole[f"{layer}.weight"] + out) * area for layer, (out, area) in sides.items())
    assert sparse < dense
    assert counted["dst"] == counted["rsm"] == 4 * 3 * (5 * each * sparse + BATCH * dense)


def _sides(module: nn.Module, x: torch.Tensor) -> dict[str, tuple[int, int]]:
    """Of each convolution and linear layer, how many biases it has and how often it is applied to a sample."""
    found: dict[str, tuple[int, int]] = {}
    for name, layer in module.named_modules():
        if isinstance(layer, nn.Conv2d | nn.Linear):
            bias = 0 if layer.bias is None else len(layer.bias)

            def note(_: Any, __: Any, output: torch.Tensor, name: str = name, bias: int = bias) -> None:
                found[name] = bias, output[0].numel() // output.shape[1]

            layer.register_forward_hook(note)
    module(x)
    return found


def test_a_cell_that_was_cut_off_goes_on(small: Make, empty: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = small("dst")._replace(name="whole")
    cells.keep(whole, empty, facts.facts)
    cut = small("dst")._replace(name="cut")
    seen: list[int] = []
    real = simulate

    def stops(*given: Any, **more: Any) -> Any:
        def watch(record: Any, run: Any) -> None:
            seen.append(record["round"])
            if seen == [1]:
                raise KeyboardInterrupt

        return real(*given, **more, callbacks=[watch])

    monkeypatch.setattr(cells, "simulate", stops)
    with pytest.raises(KeyboardInterrupt):
        cells.keep(cut, empty, facts.facts)
    assert cut.folder.exists()
    cells.keep(cut, empty, facts.facts)
    assert seen == [1, 2, 3]
    for same in ("personal", "accuracy", "bytes", "flops", "masks"):
        assert cells.read(cut)[same] == cells.read(whole)[same]


def test_a_cell_is_left_out_when_time_is_up_or_its_data_is_not_here(
    empty: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def absent(*given: Any, **more: Any) -> None:  # as if there were no files, and nowhere to download them from
        raise ConfigError("emnist-letters: files not found: put one of these\n    a file")

    monkeypatch.setattr(cells, "load", absent)
    cell = studies.cell("emnist-letters", "b", "dst")
    cells.run([cell], empty, jobs=1, seconds=0, more=facts.facts)
    assert capsys.readouterr().out == f"{cell.name}: not started\n"
    line = f"{cell.name}: skipped, emnist-letters: files not found: put one of these"
    assert cells.keep(cell, empty, facts.facts) == line
    assert not cell.stored


# The page.


def put(cell: Cell, personal: list[float], **more: Any) -> None:
    """Store a cell with made-up values."""
    found: dict[str, Any] = {"best": max(personal), "last": personal[-1], "personal": personal, "accuracy": personal}
    found |= {"rounds_told": [4 * (at + 1) for at in range(len(personal))], "worst_tenth": 10.0, "masks": None}
    found |= {"bytes": [10**9] * len(personal), "paper_bytes": [9 * 10**8] * len(personal), "paper_flops": 10**15}
    found |= {"flops": 3 * 10**15, "useful_flops": 2 * 10**15, "round_seconds": 1.5}
    cells.save(cell, {**cell._asdict(), **found, **more})


def test_the_page_names_what_is_missing(empty: Path) -> None:
    assert page.page().startswith("\n**Not run yet:** `claims` (10 of 10 cells)")
    assert parsed(page.page()) == []
    for cell in studies.densities():
        put(cell, [50.0])
    assert "`densities`" not in page.page().splitlines()[1]


def test_claims_are_compared_seed_by_seed(empty: Path) -> None:
    for seed, dst, rsm in ((0, 60.0, 58.0), (1, 50.0, 51.0)):
        put(studies.cell("cifar-10", "b", "dst", seed), [dst])
        put(studies.cell("cifar-10", "b", "rsm", seed), [rsm])
    put(studies.cell("cifar-10", "b", "dst", 2), [99.0])
    (row,) = parsed(page.claims())
    assert (row["data"], row["setting"], row["difference"]) == ("CIFAR-10", "B", "dst - rsm")
    assert (row["paper"], row["here"], row["rounds"], row["seeds"]) == ("7.3", "0.50 (-1.00 to 2.00)", "60", "2")
    for method, last in (("dst", 76.0), ("rsm", 72.0)):
        put(studies.cell("cifar-10", "b", method, rounds=studies.LONGER), [last])
    row = only(page.claims(), rounds="240")
    assert (row["paper"], row["here"], row["seeds"]) == ("7.3", "4.00", "1")


def test_rounds_to_an_accuracy_are_the_first_that_reach_it_in_every_run(empty: Path) -> None:
    put(studies.cell("cifar-10", "a", "ditto"), [25.0, 45.0, 38.0, 52.0])
    put(studies.cell("cifar-10", "a", "ditto", 1), [31.0, 33.0, 41.0, 42.0])
    row = only(page.speeds("cifar-10"), method="ditto", setting="A")
    assert (row["30 %"], row["40 %"]) == ("6 (4 to 8)", "10 (8 to 12)")
    assert row["50 %"] == row["60 %"] == row["70 %"] == f"> {studies.ROUNDS}"
    assert (row["paper, 75 %"], row["paper, 80 %"]) == ("334", "466")


def test_longer_runs_have_a_separate_table(empty: Path) -> None:
    put(studies.cell("cifar-10", "b", "dst"), [99.0])
    assert page.longer() == ""
    cell = studies.cell("cifar-10", "b", "dst", rounds=studies.LONGER)
    assert (cell.rounds, cell.eval_every) == (240, 16)
    put(cell, [25.0, 45.0, 76.0])
    row = only(page.longer(), method="dst")
    assert (row["paper, 1000 rounds"], row["last"], row["global model"]) == ("88.2", "76.00", "76.00")
    assert [row[f"{target} %"] for target in (30, 40, 50, 75)] == ["8", "8", "12", "12"]
    assert row["paper, 75 %"] == "206"
    page.draw()
    for axis in page.AXES:
        file = page.file("cifar-10", "b", axis, studies.LONGER)
        assert (empty / file).exists()
        assert f"]({file})" in page.longer()


def test_variants_are_compared_with_the_method_that_they_vary(empty: Path) -> None:
    put(studies.cell("cifar-100", "b", "dst-uniform"), [40.0])
    put(studies.cell("cifar-100", "b", "dst"), [50.0])
    (row,) = parsed(page.ablations())
    assert (row["method"], row["with"], row["difference"]) == ("dst", "distribution=uniform", "dst-uniform - dst")
    assert (row["paper"], row["here"]) == ("-10.6", "-10.00")


def test_costs_are_scaled_to_the_papers_rounds(empty: Path) -> None:
    put(studies.cell("cifar-10", "b", "dst"), [40.0])
    put(studies.cell("cifar-10", "b", "sub-fedavg"), [40.0], paper_flops=None)
    row, scale = only(page.costs(), method="dst"), 1000 / studies.ROUNDS
    assert (row["GB, paper"], row["10^14 FLOP, paper"], row["per round"]) == ("369.2", "173.5", "1.50 s")
    heads = ("GB, paper's count", "GB, all bytes", "paper's count", "executed", "executed on kept weights")
    wanted = [value * scale for value in (0.9, 1, 10, 30, 20)]
    assert [float(row[head]) for head in heads] == pytest.approx(wanted, abs=0.05)
    other = only(page.costs(), method="sub-fedavg")
    assert (other["10^14 FLOP, paper"], other["paper's count"]) == ("119.8", "")


def test_plots_have_a_curve_per_method_and_none_by_bytes_without_communication(empty: Path) -> None:
    put(studies.cell("cifar-10", "iid", "dst"), [40.0, 50.0])
    put(studies.cell("cifar-10", "iid", "local"), [20.0], bytes=[0])
    named = {axis: {line.name: line.points for line in page.curves("cifar-10", "iid", axis)} for axis in page.AXES}
    assert named["rounds"] == {"dst": [(4, 40.0), (8, 50.0)], "local": [(4, 20.0)]}
    assert named["bytes"] == {"dst": [(1.0, 40.0), (1.0, 50.0)]}
    page.draw()
    by_round, by_bytes = ((empty / page.file("cifar-10", "iid", axis)).read_text() for axis in ("rounds", "bytes"))
    assert ("local" in by_round, "local" in by_bytes) == (True, False)
    assert ("GB sent and received" in by_round, "GB sent and received" in by_bytes) == (False, True)


# The drift of masks.


@pytest.mark.parametrize("name", drift.METHODS)
def test_the_local_steps_are_repeated_exactly(name: str) -> None:
    problem, rate = drift.Problem(1), 0.02
    found = drift.states(problem, drift.METHODS[name](problem, rate), 3)
    for before, after in pairwise(found):
        first, *_, last = (models for models, _ in drift.local_steps(problem, before, rate))
        assert torch.allclose(before.w - (first - last).mean(0), after.w, rtol=0, atol=1e-12)


def test_planted_masks_have_a_drift_of_at_most_1_and_others_obey_the_rate_of_the_theorem() -> None:
    ideal, random = (drift.course(name, 6, 0) for name in ("planted", "rsm"))
    assert max(ideal["drifts"]) <= 1 < min(random["drifts"])
    assert ideal["allowed"]
    assert random["allowed"]
    assert (ideal["held"], ideal["rate"] > random["rate"]) == (1, True)


def test_the_gradients_of_the_convex_problem_are_those_of_its_loss() -> None:
    problem = drift.Problem(2)
    w = torch.ones(drift.ENTRIES, dtype=torch.float64, requires_grad=True)
    whole = ((problem.x @ w - problem.y).square().mean(1) / 2).sum()
    (slope,) = torch.autograd.grad(whole, w)
    assert torch.allclose(problem.gradients(w.detach().expand(drift.CLIENTS, -1)).sum(0), slope)
    assert problem.least < problem.value(w.detach())


def test_the_page_has_the_drift_of_each_kind_of_mask(empty: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "`drift`" in page.page().splitlines()[1]
    monkeypatch.setattr(drift, "ROUNDS", (2,))
    monkeypatch.setattr(drift, "SEEDS", (0, 1))
    drift.keep(empty)
    rows = parsed(drift.table())
    assert [row["masks"] for row in rows] == list(drift.METHODS)
    assert {row["seeds"] for row in rows} == {"2"}
    drift.draw()
    assert "dst-own" in (empty / "fedspa-drift.svg").read_text()
    assert "`drift`" not in page.page().splitlines()[1]
