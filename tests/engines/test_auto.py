"""What ``auto`` chooses, with seconds per step that are given, not measured."""

from pathlib import Path
from typing import Any

import pytest
import torch

from gossamer import Options, fedavg, simulate
from gossamer.core.chunks import cores
from gossamer.core.exchange import GLOBAL
from gossamer.engines.executors import EXECUTORS, OneByOne, SideBySide, Threaded, auto, side_by_side, threads
from gossamer.engines.executors.auto import Choice, Stopwatch, choose
from gossamer.engines.executors.compiled import CompiledSideBySide
from gossamer.engines.run import Stage
from gossamer.engines.simulation import Simulation
from gossamer.runs.records import read_about
from gossamer.testing import tiny_task

NAMES = {OneByOne: "one-by-one", SideBySide: "side-by-side", CompiledSideBySide: "compiled", Threaded: "threaded"}


def steps_take(
    monkeypatch: pytest.MonkeyPatch, of_one: dict[str, float], of_all: dict[str, float] | None = None
) -> None:
    """Give seconds per step on two cores: of one client by processor time, and of clients at once by the clock.

    A program is kept if it has seconds.
    """

    def seconds(watch: Stopwatch, steps: int, by_processor: bool) -> float:
        given = of_one if by_processor else of_all or {}
        return steps * given[NAMES[type(watch.executor)]]

    for module in (auto, side_by_side):
        monkeypatch.setattr(module, "cores", lambda: 2)
    monkeypatch.setattr(Stopwatch, "seconds", seconds)
    monkeypatch.setattr(CompiledSideBySide, "is_kept", lambda *_: "compiled" in of_one)
    monkeypatch.setattr(CompiledSideBySide, "prepare", lambda *_: None)


def chosen(clients: int, rounds: int) -> Choice:
    """What is chosen for some rounds of 100 steps per client."""
    simulation = Simulation(fedavg(steps=100), tiny_task(), Options(rounds=1))
    client_task, _ = simulation.client_task(Stage(simulation.method.training, 0, {0: GLOBAL}), 0, {})
    return choose(simulation.client, client_task, clients, rounds)


def test_threads_win_if_steps_are_long_and_they_are_faster_by_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    steps_take(monkeypatch, {"one-by-one": 0.1, "side-by-side": 0.1}, {"side-by-side": 0.117, "threaded": 0.052})
    found = chosen(clients=2, rounds=2)
    assert found.name == "threaded"
    assert found.rates == pytest.approx({"one-by-one": 10, "side-by-side": 20, "threaded": 20 * 0.117 / (2 * 0.052)})


def test_threads_that_wait_for_each_other_on_a_busy_machine_lose(monkeypatch: pytest.MonkeyPatch) -> None:
    steps_take(monkeypatch, {"one-by-one": 0.1, "side-by-side": 0.1}, {"side-by-side": 0.2, "threaded": 0.5})
    assert chosen(clients=2, rounds=2).name == "side-by-side"


@pytest.mark.slow
def test_a_kept_program_wins_by_little_where_rounding_may_change_anyway(monkeypatch: pytest.MonkeyPatch) -> None:
    of_one = {"one-by-one": 0.1, "side-by-side": 0.1, "compiled": 0.09}
    steps_take(monkeypatch, of_one, {"compiled": 0.091, "threaded": 0.052})
    assert chosen(clients=2, rounds=2).name == "compiled"


def test_with_short_steps_a_kept_program_must_be_clearly_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    steps_take(monkeypatch, {"one-by-one": 0.01, "side-by-side": 0.01, "compiled": 0.009})
    found = chosen(clients=2, rounds=10)
    assert found.name == "side-by-side"
    assert set(found.rates) == {"one-by-one", "side-by-side", "compiled"}


@pytest.mark.parametrize(("threaded", "name"), [(0.006, "threaded"), (0.0099, "one-by-one"), (0.02, "one-by-one")])
def test_one_client_may_use_all_cores(threaded: float, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    steps_take(monkeypatch, {"one-by-one": 0.01}, {"one-by-one": 0.01, "threaded": threaded})
    found = chosen(clients=1, rounds=10)
    assert found.name == name
    assert set(found.rates) == {"one-by-one", "threaded"}


def test_short_runs_choose_among_equal_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    steps_take(monkeypatch, {"one-by-one": 0.001, "side-by-side": 0.001, "compiled": 0.0001})
    assert set(chosen(clients=2, rounds=2).rates) == {"one-by-one", "side-by-side"}


@pytest.mark.slow
def test_cores_that_the_last_client_leaves_idle_count(monkeypatch: pytest.MonkeyPatch) -> None:
    steps_take(monkeypatch, {"one-by-one": 0.001, "side-by-side": 0.001})
    assert chosen(clients=3, rounds=2).rates["side-by-side"] == pytest.approx(1500)
    assert chosen(clients=4, rounds=2).rates["side-by-side"] == pytest.approx(2000)


@pytest.mark.parametrize("failing", ["side-by-side", "threaded"])
def test_threads_need_a_comparison_in_which_no_client_fails(failing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    of_all = {"side-by-side": 0.1, "threaded": 0.1, failing: float("inf")}
    steps_take(monkeypatch, {"one-by-one": 0.1, "side-by-side": 0.1}, of_all)
    found = chosen(clients=2, rounds=2)
    assert (found.name, found.rates["threaded"]) == ("side-by-side", 0.0)


def test_a_run_that_chose_threads_is_resumed_with_them(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    steps_take(monkeypatch, {"one-by-one": 0.1, "side-by-side": 0.1}, {"side-by-side": 1.0, "threaded": 0.1})
    monkeypatch.setattr(auto, "SHORT", 0.0)

    def stop(record: dict[str, Any], run: Any) -> None:
        if record["round"] == 1:
            raise KeyboardInterrupt

    options: dict[str, Any] = {"rounds": 2, "per_round": 2, "executor": "auto"}
    with pytest.raises(KeyboardInterrupt):
        simulate(fedavg(), tiny_task(), out=tmp_path / "run", callbacks=[stop], **options)
    assert read_about(tmp_path / "run")["executor"] == "threaded"
    resumed = simulate(fedavg(), tiny_task(), out=tmp_path / "run", resume=True, **options)
    whole = simulate(fedavg(), tiny_task(), **{**options, "executor": "threaded"})
    assert resumed.about["executor"] == "threaded"
    state = whole.model.state_dict()
    assert all(torch.equal(tensor, state[name]) for name, tensor in resumed.model.state_dict().items())


@pytest.mark.parametrize(("number", "wanted"), [(1, 1), (10**3, cores())])
def test_threads_are_those_of_torch_within_the_quota(number: int, wanted: int) -> None:
    client = Simulation(fedavg(), tiny_task(), Options(rounds=1)).client
    with threads(number):
        assert EXECUTORS["threaded"](client).threads == wanted
