"""The speed board has the published parameters, runs without a GPU, and is rendered from its results."""

import importlib
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from gossamer.engines.executors import threads
from helpers.markdown import only
from helpers.paths import ROOT

BENCH = ROOT / "bench"
PUBLISHED = {  # clients, cohort, samples, batch, epochs, learning rate, rounds, seconds, parameters
    "femnist": (3_400, 10, 671_585, 20, 1, 0.1, 1_500, 8 * 60 + 22, 1_206_590),
    "fed-cifar100": (500, 10, 50_000, 20, 1, 0.1, 4_000, 3_600 + 42 * 60 + 1, 11_227_812),
    "shakespeare": (715, 10, 48_204, 4, 1, 0.8, 1_200, 21 * 60 + 50, 822_570),
    "pfl-cifar10": (1_000, 50, 50_000, 10, 1, 0.1, 1_500, None, 1_626_442),
    "blazefl-cnn": (100, 100, 50_000, 50, 5, 0.1, 5, 30, 62_006),
    "blazefl-resnet18": (100, 100, 50_000, 50, 5, 0.1, 5, 115, 11_181_642),
}
Find = Callable[[str], Any]


@pytest.fixture
def board(monkeypatch: pytest.MonkeyPatch) -> Iterator[Find]:
    """Import modules of the board; remove them afterwards."""
    monkeypatch.syspath_prepend(str(BENCH))

    def find(name: str) -> ModuleType:
        return importlib.import_module(f"board.{name}")

    with threads(1):
        yield find
    for name in [name for name in sys.modules if name == "board" or name.startswith("board.")]:
        del sys.modules[name]


@pytest.mark.parametrize("name", PUBLISHED)
def test_workloads_have_the_published_parameters(name: str, board: Find) -> None:
    work = board("workloads").WORKLOADS[name]
    found = (work.clients, work.cohort, work.samples, work.batch, work.epochs, work.lr, work.rounds)
    networks = board("networks")
    assert (*found, work.published.seconds, networks.parameters(networks.network(work))) == PUBLISHED[name]
    assert all("https://" in where or "divided" in where for where in work.sources.values())
    if work.published.seconds:
        assert work.published.text.removeprefix("about ") == board("table").clock(work.published.seconds)


def test_there_is_no_other_workload(board: Find) -> None:
    assert list(board("workloads").WORKLOADS) == list(PUBLISHED)


@pytest.mark.parametrize("name", PUBLISHED)
def test_sizes_of_clients_have_the_published_total(name: str, board: Find) -> None:
    work = board("workloads").WORKLOADS[name]
    sizes = work.sizes()
    assert len(sizes) == work.clients
    assert sizes.sum() == work.samples
    assert sizes.min() >= 1
    assert sizes.std() / sizes.mean() == pytest.approx(work.spread, rel=0.3)


def test_cohorts_are_drawn_without_replacement(board: Find) -> None:
    cohorts = [board("workloads").cohort(20, 5, number) for number in range(50)]
    assert all(len(set(drawn)) == 5 and drawn == sorted(drawn) for drawn in cohorts)
    assert set(np.concatenate(cohorts).tolist()) == set(range(20))


class Rounds:
    """A line that asks for some rounds."""

    def __init__(self, left: int) -> None:
        self.left, self.notes = left, list[str]()

    def building(self) -> None: ...

    def ready(self) -> None: ...

    def go(self) -> bool:
        self.left -= 1
        return self.left >= 0

    def done(self, note: str = "") -> None:
        self.notes.append(note)


@pytest.mark.parametrize("name", ["femnist", "shakespeare"])
def test_the_plain_loop_and_gossamer_train(name: str, board: Find) -> None:
    line = board("systems.line")
    setting = {"workload": name, "count": 2, "small": True, "device": "cpu", "data": "", "options": {}}
    plain, ours = Rounds(2), Rounds(2)
    board("systems.plain").run(line.Setting.read(json.dumps(setting)), plain)
    board("systems.gossamer").run(line.Setting.read(json.dumps(setting)), ours)
    assert (plain.notes, ours.notes) == (["", ""], ["one-by-one"] * 2)


def test_an_option_that_gossamer_lacks_leaves_its_row_out(board: Find) -> None:
    line = board("systems.line")
    setting = {"workload": "femnist", "count": 2, "small": True, "device": "cpu", "data": ""}
    given = line.Setting.read(json.dumps({**setting, "options": {"precise": "very"}}))
    with pytest.raises(Exception, match="this version of Gossamer has no option precise"):
        board("systems.gossamer").run(given, Rounds(1))


def results(board: Find) -> dict[str, Any]:
    outcome = board("race").Outcome
    plain = outcome("plain loop", "plain", "", "torch 2", "", 0.5, 3.0, [1.0, 2.0, 3.0], 5_000_000)
    ours = outcome("Gossamer, captured", "gossamer", "", "torch 2", "captured", 1.0, 9.25, [0.25, 0.25, 0.25])
    less = outcome("Gossamer, captured, bf16", "gossamer", "bf16", "torch 2", "captured", 0.0, 0.1, [0.1])
    lost = outcome("pfl-research", "pfl", skipped="no reply")
    facts = {"data": "random", "device": "H200", "processor": "Xeon", "cores": 16, "day": "today", "timed_clients": 5}
    return {"femnist": {"about": facts, "systems": [found.store() for found in (plain, ours, less, lost)]}}


def test_the_whole_run_is_extrapolated_and_its_preparation_is_not(board: Find) -> None:
    shown = board("page").render(results(board))  # half of the cohort was timed, and there are 1,500 rounds
    plain, ours = only(shown, system="plain loop"), only(shown, system="Gossamer, captured")
    assert (plain["s per round"], plain["preparation s"], plain["peak GPU MB"]) == ("4.000", "1.5", "5")
    assert plain["whole run"] == board("table").clock(1.5 + 1_500 * 2 * 2) == "1:40:02"
    assert (ours["speed"], ours["whole run"]) == ("8.0x", board("table").clock(10 + 1_500 * 2 * 0.25))
    assert "A timed round has 5 of 10 clients; its time is multiplied by 2." in shown
    assert "- pfl-research: not measured: no reply" in shown


def test_the_summary_has_published_figure_and_hardware(board: Find) -> None:
    shown = board("page").render(results(board))
    row = only(shown, workload="FLUTE: FEMNIST, CNN")
    assert (row["Gossamer"], row["pfl-research"], row["published"]) == ("12:40", "not measured", "8:22")
    assert row["Gossamer, bf16"] == "5:00"
    assert "NCCL" in row["published on"]
    assert only(shown, workload="pfl-research: CIFAR-10, CNN with dropout")["published"] == "not found"


def test_the_page_shows_the_stored_results(board: Find) -> None:
    page = board("page")
    shown = page.PAGE.read_text().partition(page.BEGIN)[2].partition(page.END)[0]
    assert shown.strip() == page.render(page.read())


def test_a_measured_workload_replaces_its_earlier_result(board: Find, tmp_path: Path) -> None:
    page, path = board("page"), tmp_path / "there" / "board.json"
    page.merge(path, {"a": {"about": 1}, "b": {"about": 1}})
    page.merge(path, {"b": {"about": 2}})
    assert page.read(path) == {"a": {"about": 1}, "b": {"about": 2}}


@pytest.mark.parametrize(
    ("words", "names"),
    [
        ("", ["plain loop", "Gossamer, captured"]),
        ("--device cpu", ["plain loop", "Gossamer, auto"]),
        ("--pfl . --precision bf16", ["plain loop", "pfl-research", "Gossamer, captured", "Gossamer, captured, bf16"]),
        ("--executors auto,stacked --only plain,auto", ["plain loop", "Gossamer, auto"]),
    ],
)
def test_the_systems_of_a_run(words: str, names: list[str], board: Find, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BENCH_PFL", raising=False)
    cli, work = board("cli"), board("workloads").WORKLOADS["femnist"]
    assert [system.name for system in cli.systems(cli.arguments(words.split()), work)] == names


@pytest.mark.slow
def test_the_board_runs_without_a_gpu(
    board: Find, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = "--device cpu --small --rounds 2 --clients-per-round 2 --workloads femnist,blazefl-resnet18"
    monkeypatch.setenv("OUT", str(tmp_path))
    monkeypatch.setattr(sys, "argv", ["run", *words.split(), "--pfl", str(tmp_path)])  # a folder without pfl
    board("cli").main()
    said = capsys.readouterr().out
    assert "pfl-research: not measured: ended: ModuleNotFoundError" in said
    for found in json.loads((tmp_path / "board.json").read_text()).values():
        assert [len(system["seconds"]) for system in found["systems"]] == [2, 0, 2]
