"""A run under a schedule that is killed after any round, and resumed, ends with the same bytes."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from gossamer import METHODS, simulate
from gossamer.runs.records import read_metrics
from helpers import recorder
from helpers.toy_devices import ToyDevices

ROUNDS = 5
DEVICES = ToyDevices(leaving=True, lossy=True, speed=1e6, rate=2e3)
TIMED = ("metrics.jsonl", "manifest.json", "run.lock")
SCHEDULES = {
    "fedbuff:buffer=2,concurrency=4": DEVICES,
    "fedasync:concurrency=3,max_staleness=1": replace(DEVICES, pausing=True),
    "deadline:4s,over=1.4,late=fold": replace(DEVICES, coarse=True),
    "sync": DEVICES,
}


class Killed(BaseException):
    """The end of a process."""


def run(name: str, schedule: str, out: Path, kill: int | None = None, **options: Any) -> None:
    """Run a method; end it after a round, as if its process were killed."""

    def end(record: dict[str, Any], run: Any) -> None:
        if record["round"] == kill:
            raise Killed

    given: dict[str, Any] = {
        "rounds": ROUNDS,
        "per_round": 3,
        "eval_every": 2,
        "callbacks": [end],
        "channel": SCHEDULES[schedule],
    }
    method = METHODS[name](**recorder.SGD)
    simulate(method, recorder.task(), schedule=schedule, out=out, **given, **options)


def contents(path: Path) -> tuple[dict[str, bytes], list[dict[str, Any]]]:
    """Return all files but those with times, and the records without them."""
    files = [file for file in path.rglob("*") if file.is_file() and file.name not in TIMED]
    records = [{k: v for k, v in r.items() if k not in ("seconds", "memory_bytes")} for r in read_metrics(path)]
    return {str(file.relative_to(path)): file.read_bytes() for file in files}, records


MEMORY = ("topk", "ef21", "scaffold")
"""Methods whose clients keep a state, beside FedSpa."""


@pytest.mark.parametrize(
    ("schedule", "name"),
    [
        *((schedule, "fedspa") for schedule in SCHEDULES),
        *(pytest.param(schedule, name, marks=pytest.mark.slow) for schedule in SCHEDULES for name in MEMORY),
    ],
)
def test_a_run_that_is_killed_after_each_round_ends_with_the_same_bytes(
    schedule: str, name: str, tmp_path: Path
) -> None:
    run(name, schedule, tmp_path / "whole")
    for kill in range(1, ROUNDS):
        with pytest.raises(Killed):
            run(name, schedule, tmp_path / "killed", kill, resume=kill > 1)
    run(name, schedule, tmp_path / "killed", resume=True)
    assert contents(tmp_path / "killed") == contents(tmp_path / "whole")


@pytest.mark.slow
@pytest.mark.parametrize("kill", range(1, ROUNDS))
def test_a_run_that_is_killed_once_ends_with_the_same_bytes(kill: int, tmp_path: Path) -> None:
    schedule = "fedbuff:buffer=2,concurrency=4"
    with pytest.raises(Killed):
        run("fedspa", schedule, tmp_path / "killed", kill)
    run("fedspa", schedule, tmp_path / "killed", resume=True)
    run("fedspa", schedule, tmp_path / "whole")
    assert contents(tmp_path / "killed") == contents(tmp_path / "whole")


def test_a_checkpoint_has_tasks_by_version_and_no_results(tmp_path: Path) -> None:
    run("fedavg", "fedbuff:buffer=2,concurrency=4", tmp_path)
    last = max((tmp_path / "checkpoints").rglob("*.safetensors"))
    entries = {name: tensor for name, tensor in load_file(last).items() if "virtual_time" in name}
    names = {name.partition("virtual_time")[2].strip("/.") for name in entries}
    assert {name for name in names if "version" not in name} == {"now", "client", "start"}
