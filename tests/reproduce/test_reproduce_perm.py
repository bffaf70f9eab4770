"""reproduce/perm: its cells run, its values are correct, and its tables have them in the right columns."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gossamer import METHODS
from gossamer.core.errors import ConfigError
from gossamer.core.random import key
from gossamer.tasks.objective import Objective
from helpers.markdown import only, parsed
from reproduce.common import cells, tables
from reproduce.common.cells import Cell
from reproduce.perm import __main__ as script
from reproduce.perm import facts, page, studies

CLIENTS, ROUNDS = 6, 3
WARMED_UP = (("cifar", "perm"), ("iid", "perm-two-stage"))


@pytest.fixture
def every(empty: Path) -> list[Cell]:
    """All cells, before a search."""
    return [cell for study in studies.STUDIES.values() for cell in study()]


# Cells.


def test_a_name_stands_for_one_cell_alone(every: list[Cell]) -> None:
    named = {cell.name: repr(cell) for cell in every}
    assert len(named) == len(set(named.values()))
    assert len(named) == len({(cell.name, repr(cell)) for cell in every})
    assert {cell.method for cell in every} == set(studies.METHODS)


def test_all_methods_take_the_same_steps_with_everybody_in_every_round(every: list[Cell]) -> None:
    for cell in every:
        named = max((name for name in studies.SETTINGS if f"perm-{name}-" in cell.name), key=len)
        solver: Any = cells.method(cell).solver
        what = studies.SETTINGS[named]
        assert (solver.steps, solver.batch) == (what.steps, what.batch)
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
    servers: list[Any] = [cells.method(studies.cell(*pair)).server for pair in WARMED_UP]
    assert [server.warmup for server in servers] == [10, studies.AVERAGED]


def test_no_rate_of_the_search_is_capped_where_half_of_the_clients_are_learned_from() -> None:
    for choice in studies.choices("synthetic", "perm"):
        server: Any = cells.method(studies.cell("synthetic", "perm", 0, choice)).server
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


def test_a_search_is_on_a_seed_that_no_table_has(every: list[Cell]) -> None:
    searched = {cell.name for name in ("search", "cifar-search") for cell in studies.STUDIES[name]()}
    assert {cell.seed for cell in every if cell.name in searched}.isdisjoint(studies.SEEDS)
    assert {cell.seed for cell in every if cell.name not in searched} == set(studies.SEEDS)


def test_studies_are_run_in_turn_so_that_a_search_counts_for_the_next(
    empty: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[list[str]] = []

    def run(mine: Any, *others: Any) -> None:
        seen.append([cell.name for cell in mine])
        for cell in mine:
            put(cell, [100.0 if "-0.02-" in cell.name else 1.0])

    monkeypatch.setattr(cells, "run", run)
    monkeypatch.setattr(tables, "write", lambda *given: None)
    script.main(["--only", "cifar-search", "cifar", "--methods", "local"])
    searched, after = seen
    assert searched == [f"perm-cifar-local-{rate}-100" for rate in ("0.02", "0.05", "0.1")]
    assert after == [f"perm-cifar-local-0.02-{seed}" for seed in (0, 1, 2)]


def test_a_cells_cost_is_that_of_its_samples(empty: Path) -> None:
    plain = studies.cell("cifar", "fedavg")._replace(rounds=1, eval_every=1)
    assert studies.cost(plain) == pytest.approx((3 * 50 * 1000 + 3 * 10_000) * 8.7e6 / 1e15)
    known = {method: studies.cost(studies.cell("cifar", method)) for method in studies.METHODS}
    assert known["fedavg"] < known["perm"] < known["pfedme"] < 6 * known["fedavg"]


# Small cells, whole.


def small(method: str, setting: str = "synthetic", rounds: int = ROUNDS) -> Cell:
    """A cell of few clients and steps."""
    usual = studies.cell(setting, method)
    given = {**usual.given, "steps": 2, **({"warmup": 1} if method.startswith("perm") else {})}
    more: dict[str, Any] = {"clients": CLIENTS, "per_round": CLIENTS, "eval_every": 2, "executor": "one-by-one"}
    return usual._replace(given=given, rounds=rounds, **more)


def keep(cell: Cell, folder: Path) -> str:
    return cells.keep(cell, folder, facts.facts, facts.engine)


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
    row = only(page.accuracies("synthetic"), method=method)
    assert row["last"] == f"{found['last']:.2f}"


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
    still = METHODS["fedavg-tuned"](**{**tuned, "lr": 1e-12}).with_parts(
        tune=METHODS["local"](**given, epochs=3).solver
    )
    alone = METHODS["local"](**given, epochs=3)
    losses = [
        facts.engine(method, task, out=empty / name, resume=False, rounds=1, seed=0).metrics[0]["personal_loss"]
        for name, method in (("tuned", still), ("alone", alone))
    ]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


def test_a_cell_that_was_cut_off_goes_on(empty: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = small("perm")._replace(name="perm-synthetic-perm-whole-0")
    keep(whole, empty)
    cut, real = small("perm")._replace(name="cut"), facts.WithLoss.__call__
    seen: list[int] = []

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
        raise ConfigError("femnist: files not found: put one of these\n    a file")

    monkeypatch.setattr(cells, "load", absent)
    cell = studies.cell("femnist", "perm")
    assert keep(cell, empty) == f"{cell.name}: skipped, femnist: files not found: put one of these"
    assert not cell.stored


# Mixing weights.


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
    assert names is not None
    assert names == [f"{first}+{first + 5}" for first in range(5) for _ in range(2)]  # 20 slices, two of each label
    assert facts.same(names).sum(1).tolist() == [2] * 10
    assert facts.groups(cell._replace(split="natural"), task) is None
    assert facts.constant(task) == pytest.approx(0.1)
    assert Objective(task, "cpu", key(0)).layout.size == 672_212


# The page.


def put(cell: Cell, personal: list[float], loss: float | None = 0.5, **more: Any) -> None:
    """Store a cell with made-up values."""
    found: dict[str, Any] = {"best": max(personal), "last": personal[-1], "personal": personal, "accuracy": personal}
    found |= {"rounds_told": [5 * (at + 1) for at in range(len(personal))], "loss": [loss] * len(personal)}
    found |= {"worst_tenth": 10.0, "constant": 51.0, "bytes_a_round": {"bytes_down": 10**8, "bytes_up": 5 * 10**7}}
    found |= {"flops": 3 * 10**12, "round_seconds": 1.5, "visits": None, "mixing": None, "executor": "stacked"}
    if cell.method in studies.PERM:
        weights = np.eye(4).tolist()
        mixed = {"own": 0.25, "peers": 3.9, "group": 0.75, "group_peers": 25.0, "lam": 160.0, "weights": weights}
        found["mixing"] = {**mixed, "groups": ["b", "a", "b", "a"]}
        found["visits"] = {"trained": 30, "skipped": 5, "capped": 4, "idle": 5}
    cells.save(cell, {**cell._asdict(), **found, **more})


def test_the_page_names_what_is_missing(empty: Path) -> None:
    assert page.page().startswith("\n**Not run yet:** `search` (21 of 21 cells), `synthetic` (42 of 42 cells)")
    assert parsed(page.page()) == []
    for cell in studies.maps():
        put(cell, [50.0])
    assert "maps" not in page.page().splitlines()[1]


def test_perm_is_compared_with_others_seed_by_seed(empty: Path) -> None:
    for seed, mine, theirs in ((0, 90.0, 80.0), (1, 85.0, 81.0)):
        put(studies.cell("synthetic", "perm", seed), [mine], loss=0.2)
        put(studies.cell("synthetic", "pfedme", seed), [theirs], loss=0.5 + 0.1 * seed)
    put(studies.cell("synthetic", "perm", 2), [10.0])
    (row,) = parsed(page.differences())
    assert (row["setting"], row["method"], row["above"], row["seeds"]) == ("synthetic", "perm", "pfedme", "2")
    assert (row["points"], row["lower loss by"]) == ("7.00 (4.00 to 10.00)", "0.350 (0.300 to 0.400)")
    put(studies.cell("synthetic", "pfedme", 1), [81.0], loss=None)
    (row,) = parsed(page.differences())
    assert (row["points"], row["lower loss by"]) == ("7.00 (4.00 to 10.00)", "")
    row = only(page.accuracies("synthetic"), method="pfedme")
    assert (row["step size"], row["last"]) == ("lam-2", "80.50 (80.00 to 81.00)")
    assert (row["last loss"], row["seeds"]) == ("not finite", "2")
    assert "51.00 percent" in page.accuracies("synthetic")


def test_a_spread_is_shown_where_values_differ() -> None:
    assert page.spread([1.0, 2.0]) == "1.50 (1.00 to 2.00)"
    assert page.spread([99.999, 100.0]) == "100.00"


def test_mixing_weights_are_summarized(empty: Path) -> None:
    put(studies.cell("one-class", "perm-two-stage"), [90.0])
    (row,) = parsed(page.mixed())
    assert (row["setting"], row["method"], row["lambda"]) == ("one-class", "perm-two-stage", "160.0")
    assert (row["own weight, %"], row["effective clients"]) == ("25.00", "3.9")
    assert (row["weight in own group, %"], row["group size"]) == ("75.00", "25")
    assert (row["trained, %"], row["idle, %"], row["capped, %"]) == ("75.0", "12.5", "10.0")


def test_costs_are_those_of_a_client_and_round(empty: Path) -> None:
    put(studies.cell("cifar", "local"), [90.0])
    (row,) = parsed(page.costs())
    assert (row["download"], row["upload"], row["all rounds"]) == ("2.00 MB", "1.00 MB", "3.00 TFLOP")
    assert (row["seconds per round"], row["executor"]) == ("1.500", "stacked")


def test_longer_runs_are_compared_by_work(empty: Path) -> None:
    put(studies.cell("cifar", "fedavg-tuned"), [89.0])
    put(studies.cell("cifar-longer", "perm-two-stage"), [92.0], flops=10**12)
    put(studies.cell("synthetic", "local"), [93.0])
    heads = ("method", "rounds", "operations", "bytes per client, both directions", "last")
    assert [tuple(row[head] for head in heads) for row in parsed(page.worked())] == [
        ("fedavg-tuned", "60", "3.00 TFLOP", "180 MB", "89.00"),
        ("perm-two-stage", "260", "1.00 TFLOP", "780 MB", "92.00"),
    ]


def test_the_chosen_step_size_is_bold(empty: Path) -> None:
    for rate, last in zip(studies.choices("synthetic", "local"), (88.0, 91.0, 91.5, 90.0), strict=True):
        put(studies.cell("synthetic", "local", studies.SEARCHED_ON, rate), [last])
    (row,) = parsed(page.searched("synthetic"))
    found = row["step size: personal accuracy after the last round"]
    assert (row["method"], found) == ("local", "0.3: 88.00, 1: 91.00, **3: 91.50**, 10: 90.00")


# Plots.


@pytest.mark.slow
def test_curves_are_means_over_seeds(empty: Path) -> None:
    put(studies.cell("synthetic", "perm", 0), [60.0, 90.0])
    put(studies.cell("synthetic", "perm", 1), [50.0, 80.0])
    put(studies.cell("synthetic", "local", 0), [70.0, 71.0], loss=None)
    named = {line.name: line.points for line in page.curves("synthetic", "personal")}
    assert named == {"perm": [(5, 55.0), (10, 85.0)], "local": [(5, 70.0), (10, 71.0)]}
    losses = {line.name: line.points for line in page.curves("synthetic", "loss")}
    assert losses["local"] == [(5, page.CEILING), (10, page.CEILING)]
    page.draw()
    drawn = (empty / page.file("synthetic", "personal")).read_text()
    assert ">perm<" in drawn
    assert ">local<" in drawn
    assert not (empty / page.file("literal", "personal")).exists()


def test_matrices_have_clients_ordered_by_group(empty: Path) -> None:
    cell = studies.cell("one-class", "perm-two-stage")
    put(cell, [90.0])
    assert page.by_group(cells.read(cell)["mixing"]) == [1, 3, 0, 2]
    page.draw()
    assert "mixing weights" in (empty / page.file("one-class", "weights")).read_text()
    assert f"]({page.file('one-class', 'weights')})" in page.pictured("one-class")
    assert page.pictured("iid") == ""
