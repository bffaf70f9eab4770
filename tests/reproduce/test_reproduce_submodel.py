"""reproduce/submodel: its cells run, its measurements are correct, and its tables have the right values."""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from gossamer import Method, Result, Task, simulate
from gossamer.core.random import key
from gossamer.core.types import Clock
from gossamer.fleet.capacity import SHARES
from gossamer.parts.solvers import Steps
from gossamer.parts.views.sliced import narrowed
from gossamer.tasks.batch_norms import OfBatch
from gossamer.tasks.nets import build
from gossamer.tasks.nets.images import resnet18
from gossamer.tasks.objective import Objective
from helpers.markdown import only, parsed
from helpers.narrow import present
from reproduce.common import cells, store
from reproduce.common.cells import Cell
from reproduce.submodel import __main__ as script
from reproduce.submodel import curves, facts, page, studies, times

EVERY = [cell for study in studies.STUDIES.values() for cell in study()]
SHAPE = torch.Size([3, 8, 8])


def small_task(model: str = "resnet18", clients: int = 2) -> Task:
    """A few random images, and a network so thin that each layer still has four channels to choose from."""
    draw = torch.Generator().manual_seed(0)
    x, y = torch.randn(12, *SHAPE, generator=draw), torch.arange(12) % 3
    net = partial(resnet18, SHAPE, 3, 1 / 16) if model == "resnet18" else partial(build, model, SHAPE, 3)
    return Task.of(net, (x, y), (x, y), clients=clients)


def recipe(method: str, **given: Any) -> Method:
    return studies.recipe(method, steps=1, batch=4, **given)


# Cells.


def test_a_name_stands_for_one_cell_alone() -> None:
    assert len({cell.name for cell in EVERY}) == len({repr(cell) for cell in EVERY}) == len(EVERY)


@pytest.mark.parametrize("cell", EVERY, ids=lambda cell: cell.name)
def test_every_recipe_takes_its_parameters(cell: Cell) -> None:
    made: Any = cells.method(cell)
    assert (made.solver.lr, made.solver.momentum, made.solver.clip) == (cell.given["lr"], 0.9, 1.0)
    over = "cohort" if "cohort" in cell.name else "holders"
    assert (made.server.over, made.server.weights, made.training.labels) == (over, "uniform", "own")
    assert made.view.capacities == cell.given["capacities"]
    if cell.schedule != "constant":
        assert made.solver.schedule == Steps((cell.rounds // 2, 3 * cell.rounds // 4), 0.25)


def test_the_most_important_cells_come_first() -> None:
    found = [cell.name for study in studies.DEFAULT for cell in script.REPRODUCTION.wanted(study)]
    assert found[:2] == [f"submodel-cifar-10-high-1-{method}-0" for method in ("rolling", "published")]
    assert found[-2:] == [cell.name for cell in studies.low()][-2:]
    assert len(set(found)) == len(found)
    static = script.REPRODUCTION.wanted("high", ["static"])
    assert [cell.name for cell in static] == [f"submodel-cifar-10-high-{c}-static-0" for c in ("mixed", "1-16")]


def test_costs_go_with_the_square_of_the_width() -> None:
    whole, sixteenth = (
        studies.cell("cifar-10", "high", c, "rolling")._replace(eval_every=10**6) for c in ("1", "1-16")
    )
    assert studies.cost(whole) == pytest.approx(256 * studies.cost(sixteenth))
    assert studies.cost(whole._replace(rounds=1)) == pytest.approx(10 * 500 * 3.3e9 / 1e15)


@pytest.mark.parametrize("data", ["cifar-10", "fashion"])
def test_fiarse_sends_as_many_weights_as_a_network_of_the_width(data: str) -> None:
    model = studies.PROBLEMS[data].model
    shape = torch.Size([3, 32, 32] if data == "cifar-10" else [1, 28, 28])
    x, y = torch.randn(4, *shape), torch.arange(4) % 2
    objective = Objective(Task.of(partial(build, model, shape, 10), (x, y), (x, y), clients=1), "cpu", key(0))
    rule, like = objective.widths(), objective.initial()

    def weights(share: float) -> int:
        return sum(tensor.numel() for tensor in narrowed(rule, like, share).values() if tensor.dim() >= 2)

    for width, share in studies.WEIGHTS[model].items():
        assert share == pytest.approx(weights(width) / weights(1.0), rel=0.03)


# The published draw.


def trained(method: str, **given: Any) -> dict[str, Tensor]:
    result = simulate(recipe(method, **given), small_task(), rounds=2)
    assert not any(record["failures"] for record in result.metrics)
    return result.model.state_dict()


@pytest.mark.slow
def test_at_capacity_one_all_methods_are_one_but_for_the_published_draw() -> None:
    models = {method: trained(method, capacities=(1.0,)) for method in studies.METHODS if method != "fiarse"}
    rolling = models.pop("rolling")
    same = {method: all(torch.equal(rolling[n], model[n]) for n in rolling) for method, model in models.items()}
    assert same == {method: method != "published" for method in models}


@pytest.mark.parametrize(("model", "differs"), [("resnet18", True), ("mlp", False)])
def test_the_published_draw_makes_another_network_only_where_there_is_a_residual_stream(
    model: str, differs: bool
) -> None:
    objective = Objective(small_task(model), "cpu", key(1))
    like = objective.initial()
    view = recipe("published", capacities=(1.0,)).bind(objective).training.view
    held = view.part(like, Clock(0, 1, 0), key(2)).take(like)
    assert {n: t.shape for n, t in held.items()} == {n: t.shape for n, t in like.items()}
    assert any(not torch.equal(held[name], like[name]) for name in like)
    mine, whole = (objective.evaluate(p, *objective.samples.read(slice(None))).loss for p in (held, like))
    assert (abs(mine - whole) > 1e-4) == differs


def test_the_published_draw_has_distinct_channels_per_layer() -> None:
    objective = Objective(small_task(), "cpu", key(1))
    view = recipe("published", capacities=(0.5,)).bind(objective).training.view
    index = view.part(objective.initial(), Clock(0, 1, 0), key(2)).index
    streams = [present(index[f"{block}.conv2.weight"][0]).tolist() for block in (7, 8)]  # one stream: 32 channels
    assert [len(set(found)) for found in streams] == [16, 16]
    assert streams[0] != streams[1]
    assert streams[0] == present(index["8.conv1.weight"][1]).tolist()


# A small cell, whole.


@pytest.fixture
def small_cell(empty: Path, monkeypatch: pytest.MonkeyPatch) -> Cell:
    """A cell on forty images with a thin network."""
    monkeypatch.setattr(cells, "network", lambda name, shape, classes: resnet18(shape, classes, 1 / 16))
    draw = np.random.default_rng(0)
    arrays: dict[str, Any] = {}
    for part, many in (("train", 40), ("test", 20)):
        arrays[f"x_{part}"] = draw.integers(0, 256, (many, 32, 32, 3), dtype=np.uint8)
        arrays[f"y_{part}"] = np.arange(many, dtype=np.uint8) % 10
    np.savez(empty / "cifar10.npz", **arrays)
    usual = studies.cell("cifar-10", "high", "mixed", "random")
    given = {**usual.given, "batch": 2}
    more: dict[str, Any] = {
        "clients": 20,
        "per_round": 2,
        "rounds": 3,
        "eval_every": 2,
        "statistics": "batch:7",
        "executor": "one-by-one",
    }
    return usual._replace(given=given, schedule="steps:1+2,0.25", **more)


def test_a_small_cell_runs_and_keeps_its_facts(small_cell: Cell, empty: Path) -> None:
    assert cells.keep(small_cell, empty, facts.facts).startswith(f"{small_cell.name}: best ")
    found = cells.read(small_cell)
    assert found["failures"] == 0
    assert len(found["accuracy"]) == len(found["loss"]) == 2  # after rounds 2 and 3
    assert found["gap"]["test_accuracy"] == pytest.approx(found["last"], abs=0.01)
    assert found["gap"]["test_loss"] == pytest.approx(found["loss"][-1], abs=1e-4)
    assert found["executor"] == "one-by-one"
    assert 1 / 16 <= found["rate"] <= 1
    assert found["round_seconds"] > 0
    assert not small_cell.folder.exists()
    row = only(page.accuracies("cifar-10", "high"), capacities="drawn", channels="random")
    assert (row["best"], row["last"]) == (f"{found['best']:.2f}", f"{found['last']:.2f}")


def test_widths_are_those_that_were_trained_and_training_is_measured_without_augmentation(
    small_cell: Cell, empty: Path
) -> None:
    seen: list[tuple[Task, Result]] = []

    def more(cell: Cell, task: Task, result: Result) -> store.Facts:
        seen.append((task, result))
        return {}

    cells.outcome(small_cell, empty, more)
    ((task, result),) = seen
    objective = Objective(task, "cpu", key(0))
    rule, like = objective.widths(), objective.initial()
    sizes = {share: 4 * sum(t.numel() for t in narrowed(rule, like, share).values()) for share in SHARES}
    widths = facts.widths(small_cell, result.metrics)
    assert len(widths) == 6
    assert len(set(widths)) > 1
    sent = sum(size for record in result.metrics for kind, size in record["bytes_down"].items() if kind != "overhead")
    assert sent == sum(sizes[width] for width in widths)

    rows = np.sort(task.split.train_index)
    assert len(rows) < len(task.data.train)  # some client drew a label twice
    assert task.data.augment is not None
    losses, right = [], []
    for at in range(0, len(rows), 7):
        picked = torch.from_numpy(rows[at : at + 7])
        with torch.no_grad():
            output = result.model(task.data.train.x[picked])
        losses += F.cross_entropy(output, task.data.train.y[picked], reduction="none").tolist()
        right += (output.argmax(1) == task.data.train.y[picked]).tolist()
    assert task.statistics == OfBatch(7)
    gap = facts.gap(small_cell, task, result, "cpu")
    assert gap["train_loss"] == pytest.approx(np.mean(losses), abs=1e-4)
    assert gap["train_accuracy"] == pytest.approx(100 * np.mean(right), abs=1e-3)


# The page.


def put(
    cell: Cell, best: float, last: float, gap: tuple[float, ...] = (1.0, 1.1, 60.0, 59.0), rate: float = 0.3875
) -> None:
    """Store a cell with made-up values."""
    found: dict[str, Any] = {"best": best, "last": last, "loss": [2.0, 1.1], "rate": rate, "round_seconds": 1.5}
    found |= {"accuracy": [best, last], "gap": dict(zip(page.FIGURES, gap, strict=True))}
    found |= {"bytes_a_client": {"bytes_down": 12_000_000, "bytes_up": 11_900_000}}
    cells.save(cell, {**cell._asdict(), **found})


def test_the_page_names_what_is_missing(empty: Path) -> None:
    assert page.page().startswith("\n**Not run yet:** `high` (12 of 12 cells)")
    assert parsed(page.page()) == []
    for cell in studies.narrow():
        put(cell, 50.0, 50.0)
    assert "narrow" not in page.missing()


def test_rolling_is_compared_seed_by_seed_in_every_setting(empty: Path) -> None:
    for seed, rolling, random in ((0, 60.0, 58.0), (1, 50.0, 51.0)):
        put(studies.cell("cifar-10", "high", "mixed", "rolling", seed), rolling, rolling - 1)
        put(studies.cell("cifar-10", "high", "mixed", "random", seed), random, random - 1)
    put(studies.cell("cifar-10", "high", "mixed", "rolling", 2), 99.0, 99.0)
    for method, best in (("rolling", 58.0), ("static", 51.0)):
        put(studies.cell("cifar-10", "low", "1-16", method), best, best)
    first, second = parsed(page.differences())
    assert (first["labels"], first["capacities"], first["rolling above"]) == ("2", "drawn", "random")
    assert (first["best"], first["last"], first["seeds"]) == ("0.50 (-1.00 to 2.00)", "0.50 (-1.00 to 2.00)", "2")
    assert (second["labels"], second["capacities"], second["best"]) == ("5", "all 1/16", "7.00")
    row = only(page.accuracies("cifar-10", "high"), channels="random")
    assert row["best"] == "54.50 (51.00 to 58.00)"


def test_gaps_and_costs_are_next_to_the_published_ones(empty: Path) -> None:
    put(studies.cell("cifar-10", "high", "mixed", "random"), 60.0, 59.0)
    put(studies.cell("cifar-10", "high", "1", "rolling"), 70.0, 69.0, (0.5, 0.75, 80.0, 69.0), rate=1.0)
    random, full = (only(page.gaps(), channels=channels) for channels in ("random", "rolling"))
    assert [random[head] for head in ("train loss", "test loss", "train %", "test %")] == [
        "1.0000", "1.1000", "60.00", "59.00",
    ]  # fmt: skip
    heads = ("loss: train - test", "%: train - test", "paper, loss", "paper, %")
    assert [random[head] for head in heads] == ["-0.1000", "1.00", "0.0126", "0.38"]
    assert [full[head] for head in heads] == ["-0.2500", "11.00", "0.0190", "-1.49"]
    random, full = (only(page.costs(), channels=channels) for channels in ("random", "rolling"))
    assert (random["model rate"], random["paper, rate"]) == ("0.3875", "0.3921")
    assert (random["download per client"], random["upload per client"]) == ("12.00 MB", "11.90 MB")
    assert (random["per round"], random["paper, per round"]) == ("1.50 s", "9.70 s")
    assert (full["paper, rate"], full["paper, per round"]) == ("", "")


def test_curves_are_means_over_seeds_and_shown_where_drawn(empty: Path) -> None:
    assert curves.section() == ""
    for seed in (0, 1):
        put(studies.cell("cifar-10", "high", "mixed", "rolling", seed)._replace(rounds=20), 50.0, 40.0)
    ((file, title, found),) = curves.pictures()
    assert (file, list(found)) == ("submodel-cifar-10-high-mixed.svg", ["rolling"])
    assert curves.rounds(found["rolling"][0]) == [10, 20]
    assert curves.rounds({"rounds": 25, "eval_every": 10}) == [10, 20, 25]
    curves.draw()
    assert "rolling" in (store.PAGES / file).read_text()
    assert f"![{title}]({file})" in curves.section()


def test_table_4_has_the_papers_values_for_its_own_data_only(empty: Path) -> None:
    put(studies.cell("cifar-10", "high", "1-4+1-8", "rolling"), 50.0, 49.0)
    put(studies.cell("cifar-100", "high", "1-4+1-8", "static"), 30.0, 29.0)
    assert [only(page.static(), channels="rolling")[head] for head in ("paper, %", "last %")] == ["", "49.00"]
    assert [only(page.static(), channels="static")[head] for head in ("paper, %", "last %")] == ["34.37", "29.00"]


@pytest.mark.slow
def test_times_are_measured_in_turns_and_shown(empty: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(times, "SHARES", (1 / 16,))
    monkeypatch.setitem(times.PLANS, "cpu", {"samples": 2, "repeats": 1})
    times.keep(empty)
    measured = store.read("submodel")["submodel-times-cpu"]["times"]
    assert list(measured) == ["1/16"]
    assert list(measured["1/16"]) == list(times.RACED)
    assert min(measured["1/16"].values()) > 0
    assert only(times.section(), width="1/16")["rolling"] == f"{measured['1/16']['rolling']:.1f} ms (1.00)"
    assert "`times`" not in page.missing()
