"""Runs that are killed at random moments (``kill -9``) and resumed, until they end: the same bytes as without a kill.

    python tests/fuzz/kills.py [--full] [--seconds S] [--seed N]

Every method with client memory is tried, every executor that this machine has, and schedules with clients that leave in
the middle of a task. A process runs a method in a run
folder, and is killed after a random time. The next one resumes the run and may be killed too.
"""

import multiprocessing
import os
import random
import shutil
import signal
import tempfile
import time
import warnings
from collections import Counter
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch

from fuzz import campaign
from gossamer import METHODS, Delta, Task, simulate
from gossamer.core.method import Method
from gossamer.engines.executors import EXECUTORS
from gossamer.engines.executors.kept import VARIABLE
from gossamer.engines.options import Options
from gossamer.engines.simulation import Simulation
from gossamer.runs.records import read_metrics
from helpers import recorder
from helpers.toy_devices import ToyDevices

ROUNDS, COHORT, SEED = 6, 3, 5
KILLS = 4
"""The largest number of kills of one run."""
GPU = ("captured", "captured-plain")
TIMED = ("seconds", "memory_bytes")
METHOD = "fedspa"
"""The method that every executor runs."""

MEMORY = (
    *(
        "scaffold",
        "feddyn",
        "local",
        "centralised",
        "ditto",
        "pfedme",
        "perm",
        "perm-two-stage",
        "fedspa",
        "sub-fedavg",
    ),
    *("ef21", "onebit-cs", "onebit-cs-paper", "error feedback", "lossy channel", "wireless with retention"),
    *("retention, accumulated", "personal masks of one's own, lossy", "masks with error feedback", "hybrid pruning"),
    *("unequal widths that go round", "few weights", "delta downlink"),
)
"""The cases in which clients, or the server for them, keep a state; ``with_memory`` finds them in half a minute."""

PHONES = ToyDevices(leaving=True, lossy=True, speed=1e6, rate=2e3)
SCHEDULED: dict[str, recorder.Case] = {
    f"{name}, {schedule}": (partial(METHODS[name], **recorder.SGD), {"schedule": schedule, "channel": devices})
    for name, schedule, devices in (
        ("fedspa", "fedbuff:buffer=2,concurrency=4", PHONES),
        ("scaffold", "fedbuff:buffer=3,concurrency=3,max_staleness=1", replace(PHONES, pausing=True)),
        ("topk", "fedasync:concurrency=4", replace(PHONES, coarse=True)),
        ("ef21", "deadline:4s,over=1.5,late=fold", PHONES),
        ("fedspa", "deadline:4s,over=1.5", replace(PHONES, coarse=True)),
        ("perm", "sync", PHONES),
    )
}
"""Runs on a virtual clock, with tasks in flight at the checkpoints."""

FORK = multiprocessing.get_context("forkserver")
FORK.set_forkserver_preload(["helpers.recorder", "safetensors.torch", "torch._dynamo"])


@cache
def home() -> Path:
    """A folder for all runs, deleted at the end."""
    holder = tempfile.TemporaryDirectory(prefix="gossamer-kills-")
    home.holder = holder  # type: ignore[attr-defined]
    os.environ[VARIABLE] = f"{holder.name}/cache"
    return Path(holder.name)


def methods() -> dict[str, recorder.Case]:
    """Every method with its defaults, the recorded cases, and a delta downlink: how it is made, and its options."""
    found: dict[str, recorder.Case] = {name: (METHODS[name], {}) for name in METHODS}
    delta = {"delta downlink": (lambda: METHODS["fedmrn"](**recorder.SGD).with_parts(down=Delta()), dict[str, Any]())}
    return found | recorder.CASES | delta


def simulation(name: str, executor: str) -> tuple[Method, Task, dict[str, Any]]:
    """The method, the task and the options of a run."""
    make, more = (methods() | SCHEDULED)[name]
    given = {"rounds": ROUNDS, "per_round": COHORT, "seed": SEED, "executor": executor, **more}
    method = make()
    task = recorder.task_for(method, given.pop("split", "dirichlet:1"))
    return method, task, {**given, "device": "cuda" if executor in GPU else "cpu"}


def with_memory() -> tuple[str, ...]:
    """The methods whose clients or whose server keep a state per client."""
    found = []
    for name in methods():
        method, task, given = simulation(name, "one-by-one")
        run = Simulation(method, task, Options(**given | {"rounds": 3}))
        run.run(None, lambda record: None)
        if run.clients.known() or run.models.known():
            found.append(name)
    return tuple(found)


def cases() -> list[tuple[str, str]]:
    """Methods and executors: every method and schedule one by one, and one method with every executor."""
    here = [name for name in EXECUTORS if name not in GPU or torch.cuda.is_available()]
    return [*((METHOD, executor) for executor in here), *((name, "one-by-one") for name in (*SCHEDULED, *MEMORY))]


def go(name: str, executor: str, out: Path) -> None:
    """Run a method, or resume it."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    method, task, given = simulation(name, executor)
    simulate(method, task, out=out, resume=(out / "run.json").exists(), **given)


def started(name: str, executor: str, out: Path) -> Any:
    process = FORK.Process(target=go, args=(name, executor, out))
    process.start()
    return process


def contents(path: Path) -> dict[str, Any]:
    """What must not depend on kills: all files but those with times, and the records without them."""
    timed = ("metrics.jsonl", "manifest.json", "run.lock")
    files = {
        str(file.relative_to(path)): file.read_bytes()
        for file in path.rglob("*")
        if file.is_file() and file.name not in timed
    }
    return {"files": files, "records": [{k: v for k, v in r.items() if k not in TIMED} for r in read_metrics(path)]}


@cache
def whole(name: str, executor: str) -> tuple[dict[str, Any], float]:
    """The content of a run that nobody kills, and how long it takes once its programs are compiled."""
    found = []
    for turn in ("first", "again"):
        begun, out = time.monotonic(), home() / f"{turn}-{name}-{executor}"
        process = started(name, executor, out)
        process.join()
        assert process.exitcode == 0, f"{name} fails with {executor}"
        found.append(contents(out))
        shutil.rmtree(out)
    assert found[0] == found[1], f"{name} with {executor} has two results"
    return found[0], time.monotonic() - begun


def group(number: int) -> campaign.Case:
    """One run, killed some times."""

    def attack(rng: random.Random, counts: Counter[str]) -> None:
        name, executor = (all_ := cases())[number % len(all_)]
        expected, seconds = whole(name, executor)
        out = home() / "run"
        shutil.rmtree(out, ignore_errors=True)
        kills = 0
        try:
            while True:
                process = started(name, executor, out)
                process.join(rng.uniform(0.0, seconds) if kills < KILLS else None)
                if process.exitcode is None:
                    os.kill(process.pid, signal.SIGKILL)
                    process.join()
                    kills += 1
                elif process.exitcode:
                    raise AssertionError(f"it ends with status {process.exitcode}")
                else:
                    break
            found = contents(out)
            other = [name for name, data in expected["files"].items() if found["files"].get(name) != data]
            assert found == expected, f"other bytes: {', '.join(other) or 'of records'}"
        except BaseException as error:
            error.add_note(f"{name} with {executor}, after {kills} kills")
            raise
        counts[f"kills of {executor}"] += kills

    return attack


if __name__ == "__main__":
    campaign.main("kills", group, 200, room=400.0)
