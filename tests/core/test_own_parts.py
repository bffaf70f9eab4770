"""Parts of users: old ones are refused by name, flags reach them, and their errors name the place in their code."""

import importlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from gossamer import SGD, ConfigError, Dense, Full, Mean, Method, PowerOfChoice, fedavg, ifca, simulate
from gossamer.cli import main
from gossamer.parts.servers import Server, WeightedMean
from gossamer.runs.records import read_about
from gossamer.runs.report import tables
from gossamer.testing import check_server, tiny_task

WRITTEN = dict.fromkeys(("begin", "fold", "finish"), lambda self, *given: None)
"""The methods that a server must have."""


def old(base: type, **members: Any) -> Any:
    return type("Mine", (base,), {"__module__": "mine", **members})()


@pytest.mark.parametrize(
    ("part", "reason"),
    [
        ({"server": Mean}, "server: Mean is a class: write Mean()"),
        ({"solver": Mean()}, "solver must be a gossamer Solver, got Mean, which is a Server"),
        (
            {"server": old(WeightedMean, finish=Mean.finish, notes=lambda self, state, acc: {})},
            "server Mine: it has the interface of version 0.1: notes is now measure(state, acc)",
        ),
        (
            {"server": old(object, notes=None, empty=None)},
            "server must be a gossamer Server, got Mine: it has the interface of version 0.1: "
            "notes is now measure(state, acc); empty is now begin(state, assigned)",
        ),
        (
            {"server": old(WeightedMean, finish=Mean.finish, weigh=lambda self, samples, batches: 1.0)},
            "server Mine: weigh is called with (arrival), but takes (samples, batches)",
        ),
        (
            {"solver": old(SGD, begin=lambda self, start, state, steps: {})},
            "solver Mine: begin is called with (start, sections, memory, steps), but takes (start, state, steps)",
        ),
        (
            {"solver": old(SGD, end=lambda self, carry: {})},
            "solver Mine: end is called with (carry, info), but takes (carry)",
        ),
        (
            {"server": old(Mean, measure=lambda self, state, acc: {})},
            "server Mine: Mean has no subclasses: extend WeightedMean, or hold a Mean in a field",
        ),
        (
            {"server": old(Server, **WRITTEN, replays=True, mean_only=True)},
            "server Mine: it has the interface of version 0.2: replays is now unreplayable(whole), which returns an "
            "empty text if clients can repeat the aggregation; mean_only is now takes_any_mean",
        ),
        (
            {"codec": old(Dense, encode=lambda self, x, layout, key: {})},
            "codec Mine: encode is called with (x, ctx), but takes (x, layout, key)",
        ),
        (
            {"codec": old(Dense, of_client=lambda self, client: self, sum_limit=lambda self, layout: 1)},
            "codec Mine: it has the interface of version 0.1: sum_limit is now sum_segments(layout); "
            "of_client is now ctx.client, in encode",
        ),
    ],
)
def test_what_is_no_part_or_an_old_one_is_refused_before_any_work(part: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigError) as error:
        fedavg().with_parts(**part)
    assert str(error.value) == reason


@pytest.mark.parametrize(
    ("package", "name", "now"),
    [
        ("servers", "BoundServer", "BoundServer is now Server"),
        ("views", "ViewMemory", "is now View, with section = CHANGE"),
    ],
)
def test_old_base_classes_are_named_with_what_they_are_now(package: str, name: str, now: str) -> None:
    with pytest.raises(ImportError, match=now):
        getattr(importlib.import_module(f"gossamer.parts.{package}"), name)


def test_new_members_may_be_overridden_and_take_more() -> None:
    @dataclass(frozen=True)
    class Mine(WeightedMean):
        def weigh(self, arrival: Any, scale: float = 2.0) -> float:
            return scale * super().weigh(arrival)

        def finish(self, state: Any, acc: Any, clock: Any) -> Any:
            return self.moved(state, acc)

    fedavg().with_parts(server=Mine())


def test_a_recipe_that_was_not_called_and_parts_without_an_exchange_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"must be a gossamer Method, got the function fedavg: write fedavg\(\)"):
        simulate(fedavg, tiny_task(), rounds=1)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"write compose\(view, solver"):
        Method(Full(), SGD(), Dense(), Mean())  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"channel must be a Channel, got 'lossy:0\.1'"):
        simulate(fedavg(), tiny_task(), rounds=1, channel="lossy:0.1")


def test_losses_of_several_models_are_not_asked_for() -> None:
    with pytest.raises(ConfigError, match="needs losses of the global model, but this method has several"):
        simulate(ifca().with_parts(sampler=PowerOfChoice(4)), tiny_task(), rounds=1)


OWN = """
from dataclasses import dataclass
from gossamer import SGD
from gossamer.parts.servers import WeightedMean

@dataclass(frozen=True)
class Steps(SGD):
    lr: float = 0.5

@dataclass(frozen=True)
class Sick(WeightedMean):
    where: str = "finish"

    def fold(self, acc, arrival):
        if self.where == "fold":
            raise KeyError("fever")
        return super().fold(acc, arrival)

    def finish(self, state, acc, clock):
        if self.where == "finish":
            raise KeyError("fever")
        return self.moved(state, acc)

def folding():
    return Sick(where="fold")
"""
RUN = ["--rounds", "1", "--clients", "4", "--epochs", "1", "--executor", "one-by-one", "--out", "run"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("own.py").write_text(OWN)
    return tmp_path


@pytest.mark.parametrize(("given", "lr"), [([], 0.5), (["--lr", "0.003"], 0.003)])
def test_flags_reach_a_part_with_fields_of_their_names(folder: Path, given: list[str], lr: float) -> None:
    assert main(["run", "fedavg", "--solver", "own.py:Steps", *given, *RUN]) == 0
    assert f"Steps(lr={lr}, epochs=1," in read_about(Path("run"))["method"]["solver"]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("fedprox --mu 0.5 --solver own.py:Steps", "--mu changes nothing with --solver own.py:Steps"),
        ("fedavg --weights uniform --server own.py:folding", "--weights changes nothing with --server own.py:folding"),
        ("fedprox --mu 0.5 --solver adam", "--mu changes nothing with --solver adam"),
        ("eden --bits 2 --codec eden:1", "--bits changes nothing with --codec eden:1"),
        ("eden --bits 1 --codec topk:0.1", "--bits changes nothing with --codec topk:0.1"),
        ("fedprox --mu -1", "--mu must not be negative, got -1.0"),
    ],
)
def test_flags_that_do_nothing_or_wrong_are_named(
    folder: Path, capsys: pytest.CaptureFixture[str], line: str, reason: str
) -> None:
    assert main(["run", *line.split(), *RUN]) == 2
    assert f"gossamer: {reason}" in capsys.readouterr().err
    assert not Path("run").exists()


def test_flags_of_replaced_parts_that_still_count_are_kept(folder: Path) -> None:
    words = "topk --share 0.1 --weights uniform --lr 0.1 --server median --solver sgd --down eden --sampler by-size"
    assert main(["run", *words.split(), *RUN[:-2], "--per-round", "3", "--out", "run"]) == 0
    method = read_about(Path("run"))["method"]
    assert "weights='uniform'" in method["server"]
    assert "TopK(share=0.1)" in method["codec"]


@pytest.mark.parametrize(("part", "line"), [("Sick", 21), ("folding", 16)])
def test_an_error_in_a_part_names_its_file_and_line(
    folder: Path, capsys: pytest.CaptureFixture[str], part: str, line: int
) -> None:
    assert main(["run", "fedavg", "--server", f"own.py:{part}", *RUN]) == 1
    message = capsys.readouterr().err.splitlines()[-1]
    assert "KeyError: 'fever'" in message
    assert message.endswith(f"(own.py, line {line}); --debug shows the traceback")
    assert main(["run", "fedavg", "--server", f"own.py:{part}", *RUN[:-2], "--out", "again", "--debug"]) == 1
    assert "Traceback" in capsys.readouterr().err


def test_runs_of_one_method_differ_by_their_parts() -> None:
    one, other = (simulate(method, tiny_task(), rounds=1) for method in (fedavg(lr=0.1), fedavg(lr=0.2)))
    both = [one.summary(), other.summary()]
    assert tables.differences(both, [one.about["method"], other.about["method"]]) == ["solver"]
    assert tables.differences(both, [one.about["method"], one.about["method"]]) == []


@dataclass(frozen=True)
class Measured(WeightedMean):
    """Figures that go wrong where nothing arrived, or cannot be kept."""

    odd: bool = False

    def finish(self, state: Any, acc: Any, clock: Any) -> Any:
        return self.moved(state, acc)

    def measure(self, state: Any, acc: Any) -> Any:
        return {"odd": object()} if self.odd else {"samples": 1 / acc.weight}


@pytest.mark.parametrize(("odd", "reason"), [(False, "round without arrivals"), (True, "the figure odd")])
def test_a_measure_that_fails_is_found(odd: bool, reason: str) -> None:
    with pytest.raises(AssertionError, match=reason):
        check_server(Measured(odd=odd))
