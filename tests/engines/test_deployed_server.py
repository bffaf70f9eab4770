"""What goes wrong in the field, on a real network: ``make deploy-test``."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr")

from gossamer import Feedback, Method, OnWeights, Task, TopK, fedavg, simulate
from gossamer.cli.flower_app import project
from gossamer.engines.flower.network import LocalNetwork
from gossamer.runs.records import read_about, read_metrics

pytestmark = pytest.mark.network

METHOD = fedavg(epochs=1).with_parts(codec=Feedback(OnWeights(TopK(0.1))))
TASK = Task.named("digits", split="iid", clients=3)

APP = """
import time
from pathlib import Path

from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict

from gossamer import Feedback, OnWeights, Task, TopK, fedavg
from gossamer.engines.flower import client_app, server_app

method = fedavg(epochs=1).with_parts(codec=Feedback(OnWeights(TopK(0.1))))


def task():
    return Task.named("digits", split="iid", clients=3)


client = client_app(method, task)
server = server_app(method, task, rehearsal=True)
honest = client._registered_funcs["train.default"]


def wait(hold):
    if hold.exists():
        hold.with_suffix(".reached").touch()
        while hold.exists():
            time.sleep(0.1)


def garbled(message, context):
    wait(Path(context.node_config.get("hold", "never")))
    reply = honest(message, context)
    if context.node_config.get("garbage"):
        words = reply.content.config_records["gossamer"]
        noise = ArrayRecord({"bytes": Array("uint8", (999,), "gossamer", bytes(999))})
        reply = Message(RecordDict({"gossamer": words, "message": noise}), reply_to=message)
    return reply


client._registered_funcs["train.default"] = garbled
"""

CONFIG = """rounds = 1
out = ""
resume = false
eval-every = 1000
schedule = ""
deadline = 40.0
wait = 120.0"""


class Field:
    """A network, an app on it, and the folder of its run."""

    def __init__(self, network: LocalNetwork, folder: Path) -> None:
        self.network, self.out = network, folder / "run"
        self.app = folder / "app"
        self.app.mkdir()
        (self.app / "app.py").write_text(APP)
        (self.app / "pyproject.toml").write_text(project("field", "three nodes, one of which may misbehave", CONFIG))

    def run(self, **config: Any) -> str:
        return self.network.run(self.app, {"out": str(self.out), **config})

    def done(self) -> list[dict[str, Any]]:
        return read_metrics(self.out) if (self.out / "metrics.jsonl").exists() else []

    def finish(self, run: str, seconds: float = 500) -> list[dict[str, Any]]:
        self.until(lambda: self.network.state(run).status != "running", seconds)
        assert self.network.state(run).status == "finished", self.network.tail()
        return self.done()

    def until(self, holds: Callable[[], bool], seconds: float = 200) -> None:
        end = time.monotonic() + seconds
        while not holds():
            assert time.monotonic() < end, self.network.tail()
            time.sleep(0.1)


@contextmanager
def field(folder: Path, **more: Callable[[int], Any]) -> Iterator[Field]:
    """Three nodes; ``more`` is additional configuration of each."""

    def config(node: int) -> dict[str, Any]:
        own = {"partition-id": node, "state-dir": str(folder / f"memory-{node}")}
        return own | {name: tell(node) for name, tell in more.items()}

    with LocalNetwork(folder / "network", 3, config) as network:
        yield Field(network, folder)


def model(method: Method, rounds: int, folder: Path) -> bytes:
    """What the simulator ends with."""
    simulate(method, TASK, rounds=rounds, out=folder, eval_every=1000)
    return (folder / f"checkpoints/{rounds}/server.safetensors").read_bytes()


def test_a_node_that_is_killed_does_not_stop_the_run_and_comes_back_with_its_memory(tmp_path: Path) -> None:
    rounds, hold = 60, tmp_path / "hold"
    with field(tmp_path, hold=lambda node: str(hold if node == 2 else tmp_path / "never")) as out:
        run = out.run(rounds=rounds)
        out.until(lambda: len(out.done()) == 1)
        hold.touch()
        out.until(hold.with_suffix(".reached").exists)
        out.network.kill_node(2)
        hold.unlink()
        out.network.start_node(2)
        records = out.finish(run)
    missed = [record["round"] for record in records if 2 not in record["clients"] or record["failures"]]
    assert len(records) == rounds
    assert missed
    assert 1 not in missed
    assert rounds not in missed
    reasons = [failure["reason"] for record in records for failure in record["failures"]]
    assert reasons
    assert not any("the state of client" in reason for reason in reasons)
    assert all(failure["client"] == 2 for record in records for failure in record["failures"])


def test_a_server_that_is_killed_ends_where_it_would_have_ended(tmp_path: Path) -> None:
    with field(tmp_path) as out:
        out.run(rounds=6)
        out.until(lambda: len(out.done()) == 1)
        out.network.kill_server()
        assert len(out.done()) < 6
        records = out.finish(out.run(rounds=6, resume=True))
    assert [record["round"] for record in records] == [1, 2, 3, 4, 5, 6]
    assert not any(record["failures"] for record in records)
    ended = (out.out / "checkpoints/6/server.safetensors").read_bytes()
    assert ended == model(METHOD, 6, tmp_path / "simulated")


def test_a_node_that_sends_garbage_is_named_and_ignored(tmp_path: Path) -> None:
    with field(tmp_path, garbage=lambda node: node == 1) as out:
        records = out.finish(out.run(rounds=2))
    for record in records:
        (failure,) = record["failures"]
        assert failure["client"] == 1
        assert "message begins with" in failure["reason"]
        assert record["bytes_up"]["refused"] == 999


def test_schedules_do_not_wait_for_a_slow_node(tmp_path: Path) -> None:
    """Node 2 is held. A buffer is filled without it, and takes its stale update later; a deadline cancels its task."""
    hold = tmp_path / "hold"
    hold.touch()
    with field(tmp_path, hold=lambda node: str(hold if node == 2 else tmp_path / "never")) as out:
        run = out.run(rounds=10, schedule="fedbuff:buffer=2,concurrency=3")
        out.until(lambda: len(out.done()) >= 3)
        hold.unlink()
        buffered = out.finish(run)
        check_buffered(buffered, read_about(out.out))
        hold.touch()
        out.out = tmp_path / "deadline"
        run = out.run(rounds=2, schedule="deadline:after=3s")
        out.until(lambda: len(out.done()) >= 1)
        hold.unlink()
        first, second = out.finish(run)
    assert dict(zip(first["tasks"]["client"], first["tasks"]["outcome"], strict=True)) == {
        0: "folded",
        1: "folded",
        2: "cancelled",
    }
    assert first["delay"] >= 3
    assert first["spent_in_vain"]["seconds"] > 2
    assert second["tasks"]["outcome"][:2] == ["folded", "folded"]


def check_buffered(records: list[dict[str, Any]], about: dict[str, Any]) -> None:
    """Every aggregation has two updates. Those of node 2 come from a version before at least three aggregations."""
    assert [record["round"] for record in records] == list(range(1, 11))
    assert not any(record["failures"] or record["void"] for record in records)
    times, stale = [record["time"] for record in records], []
    assert times == sorted(times)
    for record in records:
        tasks = record["tasks"]
        assert tasks["outcome"] == ["folded", "folded"]
        assert sorted(tasks["client"]) == record["clients"]
        assert all(start < end for start, end in zip(tasks["start"], tasks["end"], strict=True))
        staleness = zip(tasks["client"], (record["round"] - 1 - version for version in tasks["version"]), strict=True)
        stale += [late for client, late in staleness if client == 2]
    assert stale[0] >= 3
    assert about["slots"] == 3
    assert about["options"]["schedule"] == "fedbuff:buffer=2,concurrency=3"
