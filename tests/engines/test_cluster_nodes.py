"""Real Ray nodes that join and are killed, and a driver that is killed: the bytes of a run stay the same."""

import os
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import ray
import torch
from torch import Tensor, nn

from gossamer import Task, fedspa, simulate, sweep
from gossamer.engines.ray import ClusterWarning
from gossamer.engines.ray.jobs import OnNodes
from gossamer.runs.jobs import Job, spread
from helpers.clusters import contents, descendants, gone

pytestmark = pytest.mark.cluster


class Slow(nn.Linear):
    """A layer that takes some milliseconds, so that a process can be killed in the middle of a round."""

    def forward(self, x: Tensor) -> Tensor:
        time.sleep(0.02)
        return super().forward(x)


def slow_task() -> Task:
    torch.manual_seed(0)
    x = torch.randn(160, 6)
    y = (x[:, 0] > 0).long()
    return Task.of(lambda: Slow(6, 2), (x, y), (x[:20], y[:20]), clients=16, split="iid")


METHOD = fedspa(epochs=2, batch=5)


@pytest.fixture
def head() -> Iterator[Any]:
    """A cluster of one node with one core; its address is ``address``."""
    from ray.cluster_utils import Cluster

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Ray leaves files open
        cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
        yield cluster
        ray.shutdown()
        cluster.shutdown()


def kill_node(node: Any) -> None:
    """Kill a node and all its processes: workers outlive a raylet that is killed alone."""
    processes = [info.process.pid for infos in node.all_processes.values() for info in infos]
    for pid in [*(child for process in processes for child in descendants(process)), *processes]:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def test_a_node_killed_in_the_middle_of_a_round(head: Any, tmp_path: Path) -> None:
    second = head.add_node(num_cpus=2)
    simulate(METHOD, slow_task(), out=tmp_path / "alone", rounds=3)
    begun = threading.Event()

    def kill() -> None:
        begun.wait()
        time.sleep(0.4)  # a round takes about a second
        kill_node(second)

    killer = threading.Thread(target=kill)
    killer.start()
    result = simulate(
        METHOD,
        slow_task(),
        out=tmp_path / "cluster",
        rounds=3,
        cluster=head.address,
        callbacks=lambda record, run: begun.set(),
    )
    killer.join()
    notes = [record["cluster"] for record in result.metrics]
    assert notes[0] == {"nodes": 2, "actors": 3}
    assert sum(note.get("repeated", 0) for note in notes) >= 1
    assert not any(record["failures"] for record in result.metrics)
    assert contents(tmp_path / "cluster") == contents(tmp_path / "alone")


def test_a_node_that_joins_later_gets_work(head: Any, tmp_path: Path) -> None:
    simulate(METHOD, slow_task(), out=tmp_path / "alone", rounds=8)

    def join(record: Any, run: Any) -> None:
        if record["round"] == 1:
            head.add_node(num_cpus=1)

    result = simulate(METHOD, slow_task(), out=tmp_path / "cluster", rounds=8, cluster=head.address, callbacks=join)
    assert result.metrics[0]["cluster"] == {"nodes": 1, "actors": 1}
    assert result.metrics[-1]["cluster"] == {"nodes": 2, "actors": 2}
    assert contents(tmp_path / "cluster") == contents(tmp_path / "alone")


FILE = """
import time, torch
from torch import nn
from gossamer import Task

class Slow(nn.Linear):
    def forward(self, x):
        time.sleep(0.02)
        return super().forward(x)

def task():
    torch.manual_seed(0)
    x = torch.randn(160, 6)
    y = (x[:, 0] > 0).long()
    return Task.of(lambda: Slow(6, 2), (x, y), (x[:20], y[:20]), clients=16, split="iid")
"""


def gossamer(*words: str | Path) -> "subprocess.Popen[bytes]":
    return subprocess.Popen([sys.executable, "-m", "gossamer", *map(str, words)], stdout=subprocess.DEVNULL)


def test_a_driver_that_is_killed_leaves_nothing_and_resumes(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(FILE)
    words = ("run", "fedspa", "--task", f"{file}:task", "--rounds", "6", "--epochs", "2", "--batch", "5")
    assert gossamer(*words, "--executor", "one-by-one", "--out", tmp_path / "alone").wait() == 0
    driver = gossamer(*words, "--executor", "one-by-one", "--out", tmp_path / "run", "--cluster", "local")
    while not list((tmp_path / "run").glob("checkpoints/*2*")):
        assert driver.poll() is None
        time.sleep(0.05)
    left = descendants(driver.pid)
    names = {pid: Path(f"/proc/{pid}/comm").read_text().strip() for pid in left}
    assert {"raylet", "gcs_server", "ray::ClientActo"} <= set(names.values())
    driver.kill()
    driver.wait()
    agents = ("ray::DashboardA", "ray::RuntimeEnv")  # look for their node from time to time, and end then
    assert gone([pid for pid, name in names.items() if name not in agents], seconds=15)
    assert gone(left, seconds=120)
    assert gossamer("resume", tmp_path / "run").wait() == 0
    assert contents(tmp_path / "run") == contents(tmp_path / "alone")


def lose_the_first(marker: str) -> str:
    """Kill the Ray process that runs the job, once."""
    if not Path(marker).exists():
        Path(marker).write_text("")
        os.kill(os.getppid(), signal.SIGKILL)
        time.sleep(60)  # until this process is killed with its parent
    return "done"


def test_jobs_on_nodes_fail_alone_and_are_repeated_if_their_process_is_lost(head: Any, tmp_path: Path) -> None:
    (tmp_path / "sweep.json").write_text("{}")
    given = [
        Job("cores", os.sched_getaffinity, (0,)),
        Job("fails", os.stat, (str(tmp_path / "none"),)),
        Job("lost", lose_the_first, (str(tmp_path / "marker"),)),
    ]
    with OnNodes(head.address, tmp_path / "sweep.json", jobs=1) as launcher:
        assert (launcher.jobs, launcher.cores) == (1, 1)
        with pytest.warns(ClusterWarning, match=r"lost was lost on .* and is started again"):
            ended = {each.job.name: each for each in spread(given, launcher)}
    assert ended["cores"].error is None
    assert len(ended["cores"].value) == launcher.cores
    assert str(ended["fails"].error).startswith("FileNotFoundError(2")
    assert (ended["lost"].value, ended["lost"].error) == ("done", None)


def test_a_sweep_whose_node_is_killed_gives_the_bytes_of_one_machine(head: Any, tmp_path: Path) -> None:
    second = head.add_node(num_cpus=1)
    asked: dict[str, Any] = {"rounds": 6, "clients": 4, "seeds": 2, "progress": False, "executor": "one-by-one"}
    here, there = (partial(sweep, "fedavg", grid={"lr": [0.03, 0.1]}, out=tmp_path / n, **asked) for n in ("a", "b"))
    here()

    def kill() -> None:
        while len(list(tmp_path.glob("b/*/metrics.jsonl"))) < 2:  # one run on each node
            time.sleep(0.05)
        kill_node(second)

    killer = threading.Thread(target=kill)
    killer.start()
    with pytest.warns(ClusterWarning, match="was lost on .* and is started again"):
        result = there(cluster=head.address)
    killer.join()
    assert not result.failed
    for run in result.request.runs:
        assert contents(tmp_path / "b" / run.name) == contents(tmp_path / "a" / run.name)
