"""Costs until a target: rounds, virtual time, joules and bytes, of one run and over seeds."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gossamer import ConfigError, fedavg, simulate
from gossamer.cli import main
from gossamer.engines.result import Result
from gossamer.runs.folder import RunFolder
from gossamer.runs.records import read_about
from gossamer.runs.report.targets import Reached, Target, compared, over_seeds, targets_for, to_target
from gossamer.testing import tiny_task
from helpers.records import write_records
from helpers.scheduled import about, buffered, rounds_with_deadline

RECORDS = rounds_with_deadline(30, evaluated=4)
ABOUT = about("deadline:20s", 12, 4, 30)


def reached(text: str, records: Any = RECORDS) -> Reached:
    (target,) = targets_for(text, [ABOUT])
    return to_target(target, ABOUT, records)


def test_costs_are_those_until_the_first_evaluated_round_that_reaches_the_target() -> None:
    found = reached("accuracy=0.3")  # round 10 would reach it; rounds 8 and 12 are evaluated
    assert found.round == 12
    assert found.time == RECORDS[11]["time"] == pytest.approx(201.28, abs=0.01)
    assert found.joules == pytest.approx(sum(record["joules"] for record in RECORDS[:12]))
    assert found.bytes_up == sum(sum(record["bytes_up"].values()) for record in RECORDS[:12])
    assert found.bytes_down == sum(sum(record["bytes_down"].values()) for record in RECORDS[:12])
    assert "first reached by the evaluation of round 12, virtual time 3:21" in found.words


@given(st.floats(0, 1), st.lists(st.none() | st.floats(0, 1), min_size=1, max_size=8))
def test_a_target_is_reached_where_a_loop_finds_it(value: float, accuracies: list[float | None]) -> None:
    records = [
        {**RECORDS[at], "round": at + 1, "accuracy": accuracy} if accuracy is not None else
        {name: each for name, each in RECORDS[at].items() if name != "accuracy"}
        for at, accuracy in enumerate(accuracies)
    ]  # fmt: skip
    wanted = None
    for record in records:
        if wanted is None and record.get("accuracy") is not None and record["accuracy"] >= value:
            wanted = record["round"]
    assert to_target(Target("accuracy", "=", value), ABOUT, records).round == wanted


def test_a_target_that_is_never_reached_says_so() -> None:
    assert reached("accuracy=0.95") == Reached("accuracy=0.95")
    assert reached("accuracy=0.95").words == "not reached"
    assert reached("accuracy=0.3", []) == Reached("accuracy=0.3")


def test_without_a_schedule_time_is_what_the_channel_counts_if_it_does() -> None:
    plain = [{name: value for name, value in record.items() if name not in ("time", "tasks")} for record in RECORDS]
    assert reached("accuracy=0.3", plain).time == pytest.approx(RECORDS[11]["time"])
    free = [{**record, "delay": 0.0, "joules": 0.0} for record in plain]
    assert reached("accuracy=0.3", free).time is None
    assert "virtual" not in reached("accuracy=0.3", free).words
    assert "J" not in reached("accuracy=0.3", free).words
    head = compared(["a"], [reached("accuracy=0.3", free)]).splitlines()[1]
    assert head.split() == ["run", "round", "up", "down"], "columns without a value are left out"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("acuracy=0.9", "target: unknown metric 'acuracy': did you mean accuracy?"),
        ("accuracy", "target must be a metric and a number, such as accuracy=0.9 or loss<0.3, got 'accuracy'"),
        ("accuracy=85", "target: accuracy=85: accuracy is at most 1: write accuracy=0.85"),
        ("joules=3", "target: joules=3: write joules<3 or joules>3"),
    ],
)
def test_a_wrong_target_is_refused(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        targets_for(text, [ABOUT])
    assert message in str(refused.value)


def test_over_seeds_there_are_means_of_those_that_reach_it_and_their_number() -> None:
    seeds = [Reached("x=1", 10, 100.0, 4.0, 1000, 2000), Reached("x=1", 20, 300.0, 8.0, 3000, 4000), Reached("x=1")]
    title, head, _, row, none = over_seeds(["a", "b"], [seeds, seeds[2:]]).splitlines()
    assert "costs until x=1 (means over the seeds that reach it), in the first evaluated round" in title
    assert head.split() == ["runs", "reached", "round", "virtual", "time", "energy", "up", "down"]
    costs = "15 ± 7.071 3:20 ± 2:21 6 J ± 2.828 J 2.00 kB ± 1.41 kB 3.00 kB ± 1.41 kB"
    assert " ".join(row.split()) == f"a 2 of 3 {costs}"
    assert none.split()[:4] == ["b", "0", "of", "1"]


# Python and the command line.


def folder_of(path: Path, records: Any, schedule: str, seed: int = 0) -> Path:
    """A run folder with the records of a scheduled run."""
    simulate(fedavg(epochs=1), tiny_task(12), rounds=1, seed=seed, out=path)
    folder = RunFolder.open(path)
    options = {**read_about(path)["options"], "schedule": schedule, "rounds": len(records)}
    folder.rewrite({"options": options, "slots": 4})
    folder.close()
    write_records(path, records)
    return path


@pytest.fixture
def late(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return folder_of(Path("late"), RECORDS, "deadline:20s")


def test_show_and_the_page_have_the_costs_of_a_target(late: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", "late", "--target", "accuracy=0.3,accuracy=99%"]) == 0
    said = capsys.readouterr().out
    assert "\naccuracy=0.3: first reached by the evaluation of round 12, virtual time 3:21" in said
    assert "\naccuracy=0.99: not reached\n" in said
    assert "\nschedule           deadline:20s\n" in said
    assert main(["show", "late", "--json", "--target", "accuracy=0.3"]) == 0
    (found,) = json.loads(capsys.readouterr().out)["targets"]
    assert found == reached("accuracy=0.3")._asdict()
    assert main(["show", "late", "--html", "--target", "loss<0.2"]) == 0
    text = (late / "report.html").read_text()
    assert "<td>loss&lt;0.2</td>" in text
    assert main(["show", "late", "--target", "accurcy=0.3"]) == 2
    assert "unknown metric 'accurcy'" in capsys.readouterr().err


def test_compare_puts_schedules_side_by_side_until_a_target(late: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder_of(Path("buffer"), buffered(30), "fedbuff:buffer=3,concurrency=6")
    folder_of(Path("again"), rounds_with_deadline(30, seed=1, gain=0.001), "deadline:20s", seed=1)
    capsys.readouterr()
    assert main(["compare", "late", "buffer", "again", "--target", "accuracy=0.3", "--out", "c.png"]) == 0
    table, _, rest = capsys.readouterr().out.partition("\n\n")
    assert "fedavg schedule=fedbuff:buffer=3,concurrency=6" in table
    single, means, differ, _ = rest.split("\n\n")
    assert "costs until accuracy=0.3, in the first evaluated round that reaches it" in single
    rows = {line.split()[0]: line for line in single.splitlines()[3:]}
    assert rows["late"].split()[1:3] == ["12", "3:21"]
    assert rows["buffer"].split()[1] == "10"
    assert "not reached" in rows["again"]
    assert re.search(r"schedule=deadline:20s +1 of 2 ", means)
    assert "schedule" in differ
    assert Path("c.png").exists()


def test_python_gives_the_costs_too() -> None:
    result = Result(ABOUT, RECORDS, None, lambda: pytest.fail("no model is needed"))
    assert result.to_target(accuracy=0.3) == result.to_target("accuracy=30%") == reached("accuracy=0.3")
    assert result.to_target(accuracy=0.99).round is None
    for text, values in ((None, {}), ("loss<1", {"accuracy": 0.3}), (None, {"accuracy": 0.3, "loss": 1.0})):
        with pytest.raises(ConfigError, match="to_target takes one target"):
            result.to_target(text, **values)
