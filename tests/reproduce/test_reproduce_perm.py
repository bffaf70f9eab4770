"""The script reproduce/perm.py: its cells can be run, what it counts is right, and its page says what is so."""

import importlib
import json
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gossamer.core.errors import ConfigError
from gossamer.core.random import key
from gossamer.tasks.objective import Objective
from helpers.paths import ROOT

sys.path.append(str(ROOT / "reproduce"))
cells, script, page, studies, facts, curves = (
    importlib.import_module(name)
    for name in ("cells", "perm", "perm_page", "perm_studies", "perm_facts", "perm_curves")
)
CLIENTS, ROUNDS = 6, 3


@pytest.fixture
def every(empty: Path) -> list[Any]:
    """All cells, as long as nothing was searched."""
    return [cell for study in studies.STUDIES.values() for cell in study()]


# Cells.


def test_a_name_stands_for_one_cell_alone(every: list[Any]) -> None:
    named = {cell.name: repr(cell) for cell in every}
    assert len(named) == len(set(named.values()))
    assert len(named) == len({(cell.name, repr(cell)) for cell in every})
    assert {cell.method for cell in every} == set(studies.METHODS)


def test_all_methods_take_the_same_steps_with_everybody_in_every_round(every: list[Any]) -> None:
    for cell in every:
        named = max((name for name in studies.SETTINGS if f"perm-{name}-" in cell.name), key=len)
        made, what = cells.method(cell), studies.SETTINGS[named]
        assert (made.solver.steps, made.solver.batch) == (what.steps, what.batch)
        assert cell.per_round == cell.clients == 50
        rounds = what.searched if cell.seed == studies.SEARCHED_ON else what.rounds
        assert (cell.data, cell.model, cell.split, cell.rounds) == (what.data, what.model, what.split, rounds)


def test_settings_are_the_papers() -> None:
    assert (studies.CLIENTS, studies.ROUNDS, studies.WARMUP) == (50, 100, 10)
    for setting, (model, split) in {
        "synthetic": ("logistic", "natural"),
        "one-class": ("mlp", "labels:1"),
        "cifar": ("cnn2", "slices:2"),
        "femnist": ("mlp", "natural:min_samples=50"),
    }.items():
        assert (studies.SETTINGS[setting].model, studies.SETTINGS[setting].split) == (model, split)
    assert cells.method(studies.cell("cifar", "perm")).server.warmup == 10
    assert cells.method(studies.cell("iid", "perm-two-stage")).server.warmup == studies.AVERAGED


def test_no_rate_of_the_search_is_capped_where_half_of_the_clients_are_learned_from() -> None:
    for choice in studies.choices("synthetic", "perm"):
        server = cells.method(studies.cell("synthetic", "perm", 0, choice)).server
        assert server.largest >= 2


def test_what_a_search_finds_counts_for_its_setting_and_those_that_follow_it(empty: Path) -> None:
    rates = list(studies.choices("synthetic", "per-fedavg"))
    assert studies.chosen("synthetic", "per-fedavg") == studies.chosen("literal", "per-fedavg") == rates[1]
    for rate, last in zip(rates, (70.0, 60.0, 50.0, 40.0), strict=True):
        put(studies.cell("synthetic", "per-fedavg", studies.SEARCHED_ON, rate), [last])
    assert studies.chosen("synthetic", "per-fedavg") == studies.chosen("literal", "per-fedavg") == rates[0]
    assert studies.chosen("cifar", "per-fedavg") != rates[0]
    assert f"perm-literal-per-fedavg-{rates[0]}-2" == studies.cell("literal", "per-fedavg", 2).name
    assert studies.cell("literal", "per-fedavg").given["inner"] == float(rates[0])


def test_fedavg_takes_the_rate_of_its_tuned_twin_and_is_not_searched(empty: Path) -> None:
    rates = list(studies.choices("cifar", "fedavg-tuned"))
    for rate, last in zip(rates, (1.0, 2.0, 3.0), strict=True):
        put(studies.cell("cifar", "fedavg-tuned", studies.SEARCHED_ON, rate), [last])
    assert studies.cell("cifar", "fedavg").given["lr"] == float(rates[2])
    assert "fedavg" not in {cell.method for cell in studies.search("cifar")}


def test_a_search_is_on_a_seed_that_no_table_has(every: list[Any]) -> None:
    searched = {cell.name for name in ("search", "cifar-search") for cell in studies.STUDIES[name]()}
    assert {cell.seed for cell in every if cell.name in searched}.isdisjoint(studies.SEEDS)
    assert {cell.seed for cell in every if cell.name not in searched} == set(studies.SEEDS)


def test_studies_are_run_in_turn_so_that_a_search_counts_for_the_next(
    empty: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []

    def run(mine: Any, *others: Any) -> None:
        seen.append([cell.name for cell in mine])
        for cell in mine:
            put(cell, [100.0 if "-0.02-" in cell.name else 1.0])

    monkeypatch.setattr(cells, "run", run)
    monkeypatch.setattr(cells, "write", lambda *given: None)
    monkeypatch.setattr(curves, "PAGES", empty)
    monkeypatch.setattr(sys, "argv", ["perm.py", "--only", "cifar-search", "cifar", "--methods", "local"])
    script.main()
    searched, after = seen
    assert searched == [f"perm-cifar-local-{rate}-100" for rate in ("0.02", "0.05", "0.1")]
    assert after == [f"perm-cifar-local-0.02-{seed}" for seed in (0, 1, 2)]


def test_a_cells_cost_is_that_of_its_samples(empty: Path) -> None:
    plain = studies.cell("cifar", "fedavg")._replace(rounds=1, eval_every=1)
    assert studies.cost(plain) == pytest.approx((3 * 50 * 1000 + 3 * 10_000) * 8.7e6 / 1e15)
    known = {method: studies.cost(studies.cell("cifar", method)) for method in studies.METHODS}
    assert known["fedavg"] < known["perm"] < known["pfedme"] < 6 * known["fedavg"]


# Small cells, whole.


def small(method: str, setting: str = "synthetic", rounds: int = ROUNDS) -> Any:
    """A cell of few clients and steps."""
    usual = studies.cell(setting, method)
    given = {**usual.given, "steps": 2, **({"warmup": 1} if method.startswith("perm") else {})}
    more = {"clients": CLIENTS, "per_round": CLIENTS, "eval_every": 2, "executor": "one-by-one"}
    return usual._replace(given=given, rounds=rounds, **more)


def keep(cell: Any, folder: Path) -> str:
    told: str = cells.keep(cell, folder, float("inf"), facts.facts, facts.engine)
    return told


@pytest.mark.parametrize("method", studies.METHODS)
def test_a_small_cell_runs_and_keeps_its_facts(method: str, empty: Path) -> None:
    cell = small(method)
    assert keep(cell, empty).startswith(f"{cell.name}: best ")
    found = cells.read(cell)
    assert found["failures"] == 0
    assert found["rounds_told"] == [2, 3]
    assert len(found["personal"]) == len(found["loss"]) == len(found["accuracy"]) == 2
    assert found["last"] == found["personal"][-1]
    assert (found["mixing"] is not None) == (found["visits"] is not None) == method.startswith("perm")
    assert not cell.folder.exists()
    assert f"| `{method}` |" in page.accuracies("synthetic")


def test_the_loss_is_the_mean_over_clients_of_that_on_their_own_test_samples(empty: Path) -> None:
    """All of them have equally many, so that of one model for all is its loss on the whole test set."""
    cell = small("fedavg")
    task = cells.task(cell, empty)
    result = facts.engine(cells.method(cell), task, out=empty / "run", resume=False, rounds=2, seed=0)
    assert [record["personal_loss"] for record in result.metrics] == pytest.approx(
        [record["loss"] for record in result.metrics]
    )
    alone = facts.engine(cells.method(small("local")), task, out=empty / "alone", resume=False, rounds=1, seed=0)
    assert alone.metrics[0]["personal_loss"] < alone.metrics[0]["loss"]  # on others' samples it is worse


def test_the_loss_is_that_of_what_clients_deploy(empty: Path) -> None:
    """A client that tunes alone, from a model that all trained not at all, is one that trains alone."""
    task = cells.task(small("local"), empty)
    given = {"lr": 0.5, "batch": 400}
    tuned = {**given, "steps": 1, "tune_epochs": 3}
    still = cells.METHODS["fedavg-tuned"](**{**tuned, "lr": 1e-12}).with_parts(
        tune=cells.METHODS["local"](**given, epochs=3).solver
    )
    alone = cells.METHODS["local"](**given, epochs=3)
    losses = [
        facts.engine(method, task, out=empty / name, resume=False, rounds=1, seed=0).metrics[0]["personal_loss"]
        for name, method in (("tuned", still), ("alone", alone))
    ]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


def test_a_cell_that_was_cut_off_goes_on(empty: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = small("perm")._replace(name="perm-synthetic-perm-whole-0")
    keep(whole, empty)
    cut, seen, real = small("perm")._replace(name="cut"), [], facts.WithLoss.__call__

    def stops(*given: Any) -> Any:
        seen.append(1)
        if len(seen) == 1:
            raise KeyboardInterrupt
        return real(*given)

    monkeypatch.setattr(facts.WithLoss, "__call__", stops)
    with pytest.raises(KeyboardInterrupt):
        keep(cut, empty)
    assert len((cut.folder / "metrics.jsonl").read_text().splitlines()) == 1
    keep(cut, empty)
    for same in ("personal", "loss", "accuracy", "mixing", "visits", "flops"):
        assert cells.read(cut)[same] == cells.read(whole)[same]


def test_a_cell_is_left_out_when_its_data_is_not_here(empty: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(*given: Any, **more: Any) -> None:
        raise ConfigError("femnist: its files are not there: put one of these\n    a file")

    monkeypatch.setattr(cells, "load", absent)
    cell = studies.cell("femnist", "perm")
    assert keep(cell, empty) == f"{cell.name}: left out, femnist: its files are not there: put one of these"
    assert not cell.path.exists()


# Who learns from whom.


def test_a_populations_clients_learn_from_each_other_alone(empty: Path) -> None:
    cell = small("perm")
    keep(cell, empty)
    mixed = cells.read(cell)["mixing"]
    assert mixed["groups"] == 3 * ["first"] + 3 * ["second"]
    assert (mixed["group"], mixed["group_peers"]) == (1.0, 3.0)
    weights = np.array(mixed["weights"])
    assert weights.sum(1) == pytest.approx(np.ones(CLIENTS), abs=3e-4)
    assert (weights[:3, 3:] == 0).all()
    assert mixed["own"] == pytest.approx(weights.diagonal().mean(), abs=1e-4)
    assert mixed["peers"] == pytest.approx((1 / (weights**2).sum(1)).mean(), abs=0.01)


def test_weights_are_kept_of_the_first_seed_alone(empty: Path) -> None:
    cell = small("perm", rounds=1)._replace(seed=1)
    keep(cell, empty)
    mixed = cells.read(cell)["mixing"]
    assert mixed["weights"] is None
    assert mixed["peers"] > 1


def test_clients_are_alike_that_have_the_same_labels(empty: Path) -> None:
    draw = np.random.default_rng(0)
    arrays: dict[str, Any] = {}
    for part in ("train", "test"):
        arrays[f"x_{part}"] = draw.integers(0, 256, (400, 32, 32, 3), dtype=np.uint8)
        arrays[f"y_{part}"] = (np.arange(400) % 10).astype(np.uint8)
    np.savez(empty / "cifar10.npz", **arrays)
    cell = studies.cell("cifar", "perm")._replace(clients=10)
    task = cells.task(cell, empty)
    names = facts.groups(cell, task)
    assert names == [f"{first}+{first + 5}" for first in range(5) for _ in range(2)]  # 20 slices, two of each label
    assert facts.same(names).sum(1).tolist() == [2] * 10
    assert facts.groups(cell._replace(split="natural"), task) is None
    assert facts.constant(task) == pytest.approx(0.1)
    assert Objective(task, "cpu", key(0)).layout.size == 672_212


# The page.


def put(cell: Any, personal: list[float], loss: float | None = 0.5, **more: Any) -> None:
    """Keep a cell with made-up figures."""
    found: dict[str, Any] = {"best": max(personal), "last": personal[-1], "personal": personal, "accuracy": personal}
    found |= {"rounds_told": [5 * (at + 1) for at in range(len(personal))], "loss": [loss] * len(personal)}
    found |= {"worst_tenth": 10.0, "constant": 51.0, "bytes_a_round": {"bytes_down": 10**8, "bytes_up": 5 * 10**7}}
    found |= {"flops": 3 * 10**12, "round_seconds": 1.5, "visits": None, "mixing": None, "executor": "stacked"}
    if cell.method in studies.PERM:
        weights = np.eye(4).tolist()
        mixed = {"own": 0.25, "peers": 3.9, "group": 0.75, "group_peers": 25.0, "lam": 160.0, "weights": weights}
        found["mixing"] = {**mixed, "groups": ["b", "a", "b", "a"]}
        found["visits"] = {"trained": 30, "skipped": 10, "capped": 4}
    cell.path.write_text(json.dumps({**cell._asdict(), **found, **more}))


def test_the_page_says_what_is_missing(empty: Path) -> None:
    assert page.page().startswith("\n**Not run yet:** `search` (21 of 21 cells), `synthetic` (42 of 42 cells)")
    assert "###" not in page.page()
    for cell in studies.maps():
        put(cell, [50.0])
    assert "maps" not in page.missing()


def test_the_page_of_the_repository_has_a_place_for_the_tables() -> None:
    assert (ROOT / "docs/reproduction/perm.md").read_text().count("<!-- table -->") == 1


def test_perm_stands_above_others_seed_by_seed(empty: Path) -> None:
    for seed, mine, theirs in ((0, 90.0, 80.0), (1, 85.0, 81.0)):
        put(studies.cell("synthetic", "perm", seed), [mine], loss=0.2)
        put(studies.cell("synthetic", "pfedme", seed), [theirs], loss=0.5 + 0.1 * seed)
    put(studies.cell("synthetic", "perm", 2), [10.0])
    line = "| synthetic | `perm` | `pfedme` | 7.00 (4.00 to 10.00) | 0.350 (0.300 to 0.400) | 2 |"
    assert line in page.differences()
    put(studies.cell("synthetic", "pfedme", 1), [81.0], loss=None)
    assert "| 7.00 (4.00 to 10.00) |  | 2 |" in page.differences()
    assert "| `pfedme` | lam-2 | 80.50 (80.00 to 81.00) |" in page.accuracies("synthetic")
    assert "| not finite | 2 |" in page.accuracies("synthetic")
    assert "right in 51.00" in page.accuracies("synthetic")


def test_a_spread_is_told_where_there_is_one() -> None:
    assert page.spread([1.0, 2.0]) == "1.50 (1.00 to 2.00)"
    assert page.spread([99.999, 100.0]) == "100.00"


def test_weights_are_told_in_figures(empty: Path) -> None:
    put(studies.cell("one-class", "perm-two-stage"), [90.0])
    wanted = "| one-class | `perm-two-stage` | 25.00 | 3.9 | 75.00 | 25 | 160.0 | 75.0 | 10.0 |"
    assert wanted in page.mixed()


def test_costs_are_those_of_a_client_and_round(empty: Path) -> None:
    put(studies.cell("cifar", "local"), [90.0])
    assert "| cifar | `local` | 2.00 MB | 1.00 MB | 3.00 TFLOP | 1.500 | stacked |" in page.costs()


def test_longer_runs_stand_beside_the_others_by_work(empty: Path) -> None:
    put(studies.cell("cifar", "fedavg-tuned"), [89.0])
    put(studies.cell("cifar-longer", "perm-two-stage"), [92.0], flops=10**12)
    put(studies.cell("synthetic", "local"), [93.0])
    told = page.worked().splitlines()[-2:]
    assert told[0] == "| `fedavg-tuned` | 60 | 3.00 TFLOP | 180 MB | 89.00 | 1 |"
    assert told[1] == "| `perm-two-stage` | 260 | 1.00 TFLOP | 780 MB | 92.00 | 1 |"


def test_what_was_chosen_stands_out(empty: Path) -> None:
    for rate, last in zip(studies.choices("synthetic", "local"), (88.0, 91.0, 91.5, 90.0), strict=True):
        put(studies.cell("synthetic", "local", studies.SEARCHED_ON, rate), [last])
    assert "| `local` | 0.3: 88.00, 1: 91.00, **3: 91.50**, 10: 90.00 |" in page.searched("synthetic")
    assert "`perm`" not in page.searched("synthetic")


# Pictures.


def test_curves_are_means_over_seeds_with_a_line_for_each_method(empty: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(curves, "PAGES", empty)
    put(studies.cell("synthetic", "perm", 0), [60.0, 90.0])
    put(studies.cell("synthetic", "perm", 1), [50.0, 80.0])
    put(studies.cell("synthetic", "local", 0), [70.0, 71.0], loss=None)
    named = {line.name: line.points for line in curves.series("synthetic", "personal")}
    assert named == {"perm": [(5, 55.0), (10, 85.0)], "local": [(5, 70.0), (10, 71.0)]}
    losses = {line.name: line.points for line in curves.series("synthetic", "loss")}
    assert losses["local"] == [(5, curves.CEILING), (10, curves.CEILING)]
    curves.draw()
    drawn = (empty / curves.name("synthetic", "personal")).read_text()
    assert drawn.count('class="line') == 2 * 2  # the line itself, and its key
    assert "<circle" not in drawn
    assert not (empty / curves.name("literal", "personal")).exists()


def test_heat_maps_have_clients_of_a_group_side_by_side(empty: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(curves, "PAGES", empty)
    put(studies.cell("one-class", "perm-two-stage"), [90.0])
    curves.draw()
    drawn = (empty / curves.name("one-class", "weights")).read_text()
    assert drawn.startswith('<svg xmlns="http://www.w3.org/2000/svg" ')
    named = re.findall(r'text-anchor="end">(\d)<', drawn)
    assert named == ["1", "3", "0", "2"]
    assert drawn.count("<style>") == 1
    assert f"]({curves.name('one-class', 'weights')})" in page.pictured("one-class")
    assert page.pictured("iid") == ""
