"""Trackers, against the packages themselves: what was logged is read back with their own readers."""

import importlib.util
import json
import time
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from gossamer import Task, __version__, fedavg, resume, simulate
from gossamer.core.errors import ConfigError, RunError
from gossamer.core.extras import MissingExtraError
from gossamer.runs.trackers import TRACKERS, Status, Tracker, Tracking, flat, hyperparameters, numbers, read_kept

TASK = Task.named("digits", clients=4, split="iid")
METHOD = fedavg(steps=1)


class Noted(Tracker):
    """Keeps what it is told."""

    def __init__(self, fails: str = "") -> None:
        self.fails, self.calls = fails, list[tuple[Any, ...]]()

    def _note(self, *call: Any) -> None:
        if call[0] == self.fails:
            raise OSError("no space left")
        self.calls.append(call)

    def start(self, about: Mapping[str, Any], id: str | None, folder: Path | None, first: int) -> str:
        self._note("start", id, first)
        return id or "new"

    def log(self, round: int, numbers: Mapping[str, float]) -> None:
        self._note("log", round)

    def finish(self, status: Status, summary: Mapping[str, Any]) -> None:
        self._note("finish", status, summary["rounds"])


def stop_at(last: int, how: type[BaseException] = KeyboardInterrupt) -> Any:
    def stop(record: dict[str, Any], run: Any) -> None:
        if record["round"] == last:
            raise how

    return stop


def interrupted(out: Path, track: Any) -> None:
    with pytest.raises(KeyboardInterrupt):
        simulate(METHOD, TASK, rounds=3, out=out, track=track, callbacks=[stop_at(2)])


@pytest.fixture
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the packages' own dependencies
        yield


def needs(name: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(importlib.util.find_spec(name) is None, reason=f"{name} is not installed")


# What every tracker is told.


def test_a_tracker_gets_every_round_once_and_the_status() -> None:
    seen = Noted()
    result = simulate(METHOD, TASK, rounds=2, track=seen)
    assert seen.calls == [("start", None, 1), ("log", 1), ("log", 2), ("finish", "finished", 2)]
    found = numbers(result.metrics[0])
    assert found["accuracy"] == result.metrics[0]["accuracy"]
    assert found["bytes_up"] == sum(result.metrics[0]["bytes_up"].values()) == found["bytes_up/codec.values"] + 232
    assert found["seconds/train"] == result.metrics[0]["seconds"]["train"]
    assert found["clients"] == 4
    about = hyperparameters(result.about)
    assert (about["recipe/name"], about["recipe/given/steps"]) == ("fedavg", 1)
    assert (about["task/data"], about["options/rounds"], about["machine/gossamer"]) == ("digits", 2, __version__)
    assert set(map(type, dict(flat(result.summary())).values())) <= {str, int, float, bool}


def test_a_resumed_run_continues_and_logs_no_round_twice(tmp_path: Path) -> None:
    first, again = Noted(), Noted()
    interrupted(tmp_path / "run", first)
    assert first.calls[-1] == ("finish", "interrupted", 2)
    assert read_kept(tmp_path / "run") == {"Noted": {"id": "new", "round": 1}}  # round 2 is saved, but not logged
    simulate(METHOD, TASK, rounds=3, out=tmp_path / "run", resume=True, track=again)
    assert again.calls == [("start", "new", 2), ("log", 2), ("log", 3), ("finish", "finished", 3)]
    assert [call[1] for call in first.calls + again.calls if call[0] == "log"] == [1, 2, 3]


@needs("tensorboard")
@pytest.mark.usefixtures("_quiet")
def test_a_run_that_is_resumed_by_its_folder_continues_its_trackers(tmp_path: Path) -> None:
    interrupted(tmp_path / "run", "tensorboard")
    before = read_kept(tmp_path / "run")["tensorboard"]
    resume(tmp_path / "run")
    assert read_kept(tmp_path / "run")["tensorboard"] == {"id": before["id"], "round": 3}


def test_a_round_that_was_saved_and_not_logged_is_logged_on_resume(tmp_path: Path) -> None:
    interrupted(tmp_path / "run", Noted())
    kept = Tracking()
    kept.path, kept.kept = tmp_path / "run" / "trackers.json", {"Noted": {"id": "new", "round": 1}}
    kept._keep()
    again = Noted()
    simulate(METHOD, TASK, rounds=3, out=tmp_path / "run", resume=True, track=again)
    assert again.calls[:3] == [("start", "new", 2), ("log", 2), ("log", 3)]


@pytest.mark.parametrize("fails", ["log", "finish"])
def test_a_tracker_that_fails_is_reported_once_and_the_run_goes_on(fails: str) -> None:
    broken, other = Noted(fails), Noted()
    with pytest.warns(UserWarning, match=r"^tracker Noted failed, the run goes on without it: OSError: no space left$"):
        result = simulate(METHOD, TASK, rounds=2, track=[broken, other])
    assert len(result.metrics) == 2
    assert other.calls[-1] == ("finish", "finished", 2)
    assert [call[0] for call in broken.calls] == (["start"] if fails == "log" else ["start", "log", "log"])


def test_a_run_that_fails_is_marked() -> None:
    seen = Noted()
    with pytest.raises(RunError, match="ZeroDivisionError"):
        simulate(METHOD, TASK, rounds=2, track=seen, callbacks=[stop_at(1, ZeroDivisionError)])
    assert seen.calls[-1] == ("finish", "failed", 1)


def test_a_tracker_that_cannot_start_ends_the_run_before_its_first_round(monkeypatch: pytest.MonkeyPatch) -> None:
    rounds: list[Any] = []
    monkeypatch.setattr(Noted, "advice", ": log in")
    with pytest.raises(RunError, match=r"tracker Noted cannot be started: OSError: no space left: log in$"):
        simulate(METHOD, TASK, rounds=2, track=Noted("start"), callbacks=[lambda record, run: rounds.append(record)])
    assert rounds == []


@pytest.mark.parametrize(
    ("track", "line"),
    [
        ("tensorbord", r"^unknown tracker 'tensorbord': did you mean tensorboard\?"),
        (["tensorboard", 3], "^track must be a Tracker or one of tensorboard, mlflow, wandb, got a int$"),
        (Noted, r"^track: Noted is a class: write Noted\(\)$"),
    ],
)
def test_what_is_no_tracker_is_refused(track: Any, line: str) -> None:
    with pytest.raises(ConfigError, match=line):
        simulate(METHOD, TASK, rounds=1, track=track)


@pytest.mark.parametrize("name", TRACKERS)
def test_a_missing_package_is_named_before_any_work(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, name, None)
    with pytest.raises(MissingExtraError, match=rf"this needs {name}: pip install 'gossamer\[{name}\]'"):
        Tracking.of(name)


# The packages themselves.


@needs("tensorboard")
@pytest.mark.usefixtures("_quiet")
def test_tensorboard_reads_what_was_logged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    interrupted(tmp_path / "run", "tensorboard")
    simulate(METHOD, TASK, rounds=3, out=tmp_path / "run", resume=True)
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

    events = EventAccumulator(str(tmp_path / "run" / "tensorboard"))
    events.Reload()
    records = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    for name in ("accuracy", "train_loss", "bytes_up"):
        found = [(event.step, event.value) for event in events.Scalars(name)]
        assert found == [(r["round"], pytest.approx(numbers(r)[name])) for r in records]
    assert events.Scalars("final/accuracy")[-1].value == pytest.approx(records[-1]["accuracy"])
    started = HParamsPluginData.FromString(events.PluginTagToContent("hparams")["_hparams_/session_start_info"])
    assert started.session_start_info.hparams["task/data"].string_value == "digits"
    status = events.Tensors("status/text_summary")
    assert status[-1].tensor_proto.string_val == [b"finished"]
    monkeypatch.chdir(tmp_path)
    simulate(METHOD, TASK, rounds=1, track="tensorboard")
    assert len(list((tmp_path / "runs" / "tensorboard").glob("*/events*"))) == 1


@needs("mlflow")
@pytest.mark.usefixtures("_quiet")
@pytest.mark.slow
def test_mlflow_reads_what_was_logged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'store.db'}")
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "thin links")
    from mlflow import MlflowClient

    interrupted(tmp_path / "run", "mlflow")
    id, client = read_kept(tmp_path / "run")["mlflow"]["id"], MlflowClient()
    assert client.get_run(id).info.status == "KILLED"
    result = simulate(METHOD, TASK, rounds=3, out=tmp_path / "run", resume=True)
    run = client.get_run(id)
    assert run.info.status == "FINISHED"
    assert run.data.params["task/data"] == "digits"
    assert run.data.params["recipe/given/steps"] == "1"
    history = [(metric.step, metric.value) for metric in client.get_metric_history(id, "accuracy")]
    assert history == [(record["round"], record["accuracy"]) for record in result.metrics]
    assert run.data.metrics["final/accuracy"] == result.accuracy
    experiment = client.get_experiment_by_name("thin links")
    assert experiment is not None
    assert len(client.search_runs([experiment.experiment_id])) == 1


@pytest.mark.slow
@needs("wandb")
@pytest.mark.usefixtures("_quiet")
def test_wandb_reads_what_was_logged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"WANDB_MODE": "offline", "WANDB_DIR": str(tmp_path), "WANDB_SILENT": "true"}.items():
        monkeypatch.setenv(name, value)
    interrupted(tmp_path / "run", "wandb")
    result = simulate(METHOD, TASK, rounds=3, out=tmp_path / "run", resume=True)
    id = read_kept(tmp_path / "run")["wandb"]["id"]
    files = sorted(tmp_path.glob(f"wandb/offline-run-*/run-{id}.wandb"))
    assert len(files) == 2  # each process writes a file of its own; wandb sync joins them by the ID
    found = [row for file in files for row in logged(file)]
    assert [(row["_step"], row["accuracy"]) for row in found] == [(r["round"], r["accuracy"]) for r in result.metrics]


def logged(file: Path) -> list[dict[str, Any]]:
    """Return the history of an offline run."""
    from wandb.proto import wandb_internal_pb2

    records: list[Any] = []
    until = time.monotonic() + 30
    while not records or records[-1].WhichOneof("record_type") != "exit":  # another process writes the file
        assert time.monotonic() < until
        time.sleep(0.05)
        records = [wandb_internal_pb2.Record.FromString(data) for data in pieces(file.read_bytes())]  # type: ignore[attr-defined]
    rows = [record.history.item for record in records if record.WhichOneof("record_type") == "history"]
    return [{item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in row} for row in rows]


def pieces(data: bytes, block: int = 2**15, head: int = 7) -> Iterator[bytes]:
    """Yield the records of a LevelDB log, which W&B writes: blocks of pieces with checksum, length and type."""
    at, record = head, b""
    while at + head <= len(data):
        if block - at % block < head:
            at += block - at % block
            continue
        length, kind = int.from_bytes(data[at + 4 : at + 6], "little"), data[at + 6]
        record += data[at + head : at + head + length]
        at += head + length
        if kind in (1, 4):  # the whole of a record, or its last piece
            yield record
            record = b""
