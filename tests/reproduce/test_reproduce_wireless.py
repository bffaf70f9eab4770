"""reproduce/wireless: its cells run, its counts are correct, and its tables have the right values."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gossamer import Dense, MagnitudePruned, Mean, Perfect, SumThenDecode, Wireless
from gossamer.core.random import fold, key
from gossamer.fleet.fleet import Fleet
from gossamer.fleet.radio import outage, rate
from helpers.markdown import only, parsed
from reproduce.common import cells
from reproduce.common.cells import Cell
from reproduce.wireless import convex, facts, page, sensing_quality, studies

COMPARED = [(name, lr) for name, row in studies.COMPARED.items() for lr in row.rates]
EACH, ROUNDS = 5, 4


def small(cell: Cell) -> Cell:
    """The same on digits, a few rounds long."""
    given = {**cell.given, **({"epochs": 1} if "epochs" in cell.given else {})}
    return cell._replace(data="digits", given=given, samples=EACH, split="iid", rounds=ROUNDS, eval_every=2)


def kept(cell: Cell, data: Path) -> dict[str, Any]:
    """Run a cell and return what is stored of it."""
    assert cells.keep(cell, data, facts.facts).startswith(f"{cell.name}: best ")
    return cells.read(cell)


# Cells.


def test_a_name_stands_for_one_cell_alone() -> None:
    every = [studies.compared(*pair) for pair in COMPARED] + list(studies.sweep()) + list(studies.search())
    assert len({cell.name for cell in every}) == len(every)
    assert list(studies.compare()) != []
    assert {cell.name for cell in studies.compare()} == {studies.compared(*pair).name for pair in COMPARED}


def test_rows_differ_in_what_they_say_and_in_nothing_else() -> None:
    made = {name: cells.method(studies.compared(name, 0.2)) for name, _ in COMPARED}
    assert (made["pruned"].view, made["dense"].view) == (MagnitudePruned((studies.PRUNED,)), type(made["dense"].view)())
    assert made["pruned"].codec == made["dense"].codec == Dense()
    assert made["one-bit"].view == made["one-bit-signs"].view == made["pruned"].view
    assert type(made["pruned"].server) is Mean
    assert type(made["one-bit"].server) is SumThenDecode
    for name in ("dense", "pruned", "one-bit", "one-bit-change", "one-bit-signs"):
        assert made[name].solver == made["dense"].solver
    channels = {(c.fleet, c.clients, c.per_round, c.seed, c.split, c.samples, c.model) for c in studies.compare()}
    assert len(channels) == 1


def test_the_cell_has_links_from_good_to_bad_and_the_far_one_loses_every_second_message() -> None:
    near, far = (Fleet.read(cells.FLEETS / f"wireless_{name}.toml") for name in ("cell", "far"))
    assert near.clients == far.clients == studies.DEVICES
    drawn = [outage(near.link(client, 20, 0, fold(key(0), "wireless", 0))) for client in range(20)]
    assert min(drawn) < 0.1
    assert max(drawn) > 0.7
    assert outage(far.link(0, 20, 0, key(0))) == pytest.approx(0.5, abs=0.005)


@pytest.mark.parametrize("name", [*studies.COMPARED, "one-bit-retry", "z-sign"])
def test_a_small_cell_runs_and_keeps_its_facts(name: str, empty: Path) -> None:
    cell = small(studies.compared(name, page.ROWS[name].rates[0]))
    found = kept(cell, empty)
    assert found["failures"] == 0
    assert found["rounds_told"] == [2, 4]
    assert found["messages"] == ROUNDS * studies.DEVICES
    assert 0 < found["lost"] < found["messages"]
    for axis in ("computing", "sending", "delays"):
        first, last = found[axis]
        assert last == pytest.approx(2 * first, rel=0.35)  # signs that were lost are sent again
    assert only(page.searched(), row=name)["last, %"] == f"{found['last']:.2f}"
    assert not cell.folder.exists()


def test_energy_is_that_of_the_bytes_sent(empty: Path) -> None:
    found = kept(small(studies.compared("dense", 0.2)), empty)
    fleet = Fleet.read(cells.FLEETS / "wireless_cell.toml")
    links = [fleet.link(client, 20, 0, fold(key(0), "wireless", 0)) for client in range(20)]
    size = sum(found["arrays"].values())
    joules = sum(ROUNDS * link.power * 8 * size / rate(link) for link in links)
    assert found["sending"][-1] == pytest.approx(joules, rel=1e-5)


def test_the_pruned_row_computes_and_sends_less_and_one_bit_far_less(empty: Path) -> None:
    found = {name: kept(small(studies.compared(name, 0.2)), empty) for name in ("dense", "pruned", "one-bit")}
    sending = {name: one["sending"][-1] for name, one in found.items()}
    assert sending["pruned"] / sending["dense"] == pytest.approx(1 - studies.PRUNED, abs=0.03)
    assert sending["dense"] / sending["one-bit"] > 10
    assert found["one-bit"]["computing"] == found["pruned"]["computing"]
    assert found["pruned"]["computing"][-1] < found["dense"]["computing"][-1]


def test_a_client_has_the_given_number_of_samples(empty: Path) -> None:
    task = cells.task(small(studies.compared("dense", 0.2)), empty)
    assert task.split.sizes().tolist() == [EACH] * studies.DEVICES


# The page.


def put(cell: Cell, accuracy: list[float], **more: Any) -> None:
    """Store a cell with made-up values: one joule and one second per round, a tenth of the joules for sending."""
    at = list(range(1, len(accuracy) + 1))
    found: dict[str, Any] = {"best": max(accuracy), "last": accuracy[-1], "accuracy": accuracy, "rounds_told": at}
    found |= {"losses": [1.0] * len(at), "delays": at, "outages": [0.1, 0.5, 0.9], "messages": 10, "lost": 5}
    found |= {"computing": [0.9 * r for r in at], "sending": [0.1 * r for r in at]}
    found |= {"arrays": {"values": 90.0, "overhead": 10.0}}
    cells.save(cell, {**cell._asdict(), **found, **more})


def test_the_page_names_what_is_missing(empty: Path) -> None:
    assert page.page().startswith("\n**Not run yet:** `compare` (")
    assert parsed(page.page()) == []


def test_a_price_is_that_of_the_first_round_that_reaches_the_target(empty: Path) -> None:
    put(studies.compared("dense", 0.2), [50.0, 79.9, 80.0, 85.0], sending=[1.0, 2.0, 3.0, 4.0])
    put(studies.compared("one-bit", 0.2), [79.0, 81.0])
    put(studies.compared("eden", 0.1), [70.0, 79.9])
    dense, one_bit, eden = (only(page.prices(), row=name) for name in ("dense", "one-bit", "eden"))
    heads = ("step", "rounds", "J sending", "J computing", "J total", "s", "computing share")
    assert [dense[head] for head in heads] == ["0.2", "3", "3", "2.7", "5.7", "3", "47%"]
    assert [one_bit[head] for head in heads] == ["0.2", "2", "0.2", "1.8", "2", "2", "90%"]
    ratios = ("sending, dense takes", "total, dense takes")
    assert [one_bit[head] for head in ratios] == ["15 x", "2.85 x"]
    assert (dense["best accuracy, %"], one_bit["best accuracy, %"]) == ("85.00", "81.00")
    assert (eden["rounds"], eden["J total"]) == ("> 12", "")


def test_the_step_size_is_the_one_with_the_least_energy_to_the_target(empty: Path) -> None:
    put(studies.compared("dense", 0.2), [70.0, 71.0, 82.0])
    put(studies.compared("dense", 0.4), [70.0, 80.5, 80.0])
    assert page.chosen()["dense"]["given"]["lr"] == 0.4
    put(studies.compared("dense", 0.4), [70.0, 70.5, 79.9])
    assert page.chosen()["dense"]["given"]["lr"] == 0.2


def test_messages_and_links_are_summarized(empty: Path) -> None:
    put(studies.compared("dense", 0.2), [60.0])
    put(studies.compared("one-bit", 0.2), [60.0], arrays={"signs": 15.0, "overhead": 5.0})
    row = only(page.messages(), row="one-bit")
    assert (row["bytes"], row["header and table"], row["times smaller than dense"]) == ("20", "5", "5.0")
    (link,) = parsed(page.links())
    assert (link["minimum"], link["median"], link["maximum"], link["mean"]) == ("10 %", "50 %", "90 %", "50 %")


def test_retention_has_the_step_size_of_the_search_and_is_compared_seed_by_seed(empty: Path) -> None:
    assert list(studies.retention()) == []
    for name, row in studies.RETAINED.items():
        for lr in row.rates:
            put(studies.retained(name, lr, studies.SEARCHED), [50.0], losses=[lr if name == "change" else 1 - lr])
    rates = {cell.given["lr"] for cell in studies.retention() if "change" in cell.name}
    assert rates == {min(studies.TRIED)}
    assert only(page.retention_search(), row="change")["0.1"] == "0.100"
    for seed, plain, with_it in ((0, 60.0, 63.0), (1, 70.0, 71.0)):
        put(studies.retained("nothing", max(studies.TRIED), seed), [plain])
        put(studies.retained("change", min(studies.TRIED), seed), [with_it], losses=[0.5])
    found = only(page.retentions(), row="change")
    assert (found["accuracy, %"], found["loss"]) == ("67.00 ± 7.84", "0.500 ± 0.000")
    assert (found["change in accuracy"], found["change in loss"]) == ("2.00 ± 1.96", "-0.500 ± 0.000")
    assert (found["bytes per message"], found["lost"], found["seeds"]) == ("100", "50%", "2")


def test_the_plot_has_a_curve_for_each_row_on_each_axis(empty: Path) -> None:
    page.draw()
    assert not (empty / page.PLOT).exists()
    put(studies.compared("dense", 0.2), [60.0, 70.0])
    put(studies.compared("fedmrn", 0.1), [60.0, 80.0])
    page.draw()
    drawn = (empty / page.PLOT).read_text()
    assert all(name in drawn for name in page.AXES.values())
    assert "dense" in drawn
    assert "fedmrn" in drawn


def test_downloads_are_those_of_the_rounds_to_the_target(empty: Path) -> None:
    put(studies.compared("dense", 0.2), [50.0, 80.0], arrays={"values": 1000.0})
    put(studies.compared("one-bit", 0.2), [50.0, 60.0, 70.0, 80.0])
    one, twice = (float(only(page.downloads(), row=name)["J receiving"]) for name in ("dense", "one-bit"))
    assert twice == pytest.approx(2 * one, rel=0.01)
    fleet = Fleet.read(cells.FLEETS / "wireless_cell.toml")
    up = [fleet.link(client, 20, 0, fold(key(0), "wireless", 0)) for client in range(20)]
    down = [replace(link, power=1.0, bandwidth=20e6) for link in up]
    assert one == pytest.approx(2 * sum(0.5 * 8000 / rate(link) for link in down), rel=0.01)


def test_excess_losses_of_the_convex_problem(empty: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Dense gradients without losses reach the minimum; devices that lose most messages are not represented."""
    monkeypatch.setattr(convex, "ROUNDS", 24)
    assert outage(convex.FLEET.link(0, 10, 0, key(0))) == pytest.approx(0.04, abs=0.005)
    assert outage(convex.FLEET.link(1, 10, 0, key(0))) == pytest.approx(0.71, abs=0.005)
    sure, lossy = (convex.PROBLEM.excess(Dense(), 1.0, channel, 0) for channel in (Perfect(), Wireless(convex.FLEET)))
    assert abs(sure) < 1e-9 < lossy
    assert convex.page() == ""


# Decoders.


def test_a_known_mask_helps_a_decoder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sensing_quality, "DRAWS", 1)
    names = ("back-projection", "least squares, known mask")
    found = sensing_quality.quality("hadamard", 0.5, 0.05, True, names)
    assert 0 < found[names[0]] < found[names[1]] < 1
