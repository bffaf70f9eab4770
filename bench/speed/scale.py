"""Measure runs with many clients: rounds with a thousand of them, and the start of a run with a hundred thousand.

    python bench/speed/scale.py

Rounds: 10,000 clients with 60 images each (60,000 images, each used ten times), 1,000 per round, W1's MLP and training,
a run folder, and evaluation on the test set and on 10 test images per client. Start: 100,000 clients, from the start of
Python to a run that is ready to train. Each measurement is a separate process. Images are random, which affects
neither.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from typing import Any

import meter
import numpy as np
import torch
from workloads import CLASSES, TEST, TRAIN, WORKLOADS, made_up

from gossamer import Options, Task, fedavg, simulate
from gossamer.engines.simulation import Simulation
from gossamer.tasks.data import Data, Samples, Split
from gossamer.tasks.nets import build

GIB = 2**30
ROUNDS, MOST_MEMORY = 3, 4 * GIB
REGISTERED, MOST_SECONDS = 100_000, 10.0
EXECUTORS = ("one-by-one", "side-by-side", "stacked")
SPLITS = ("iid", "dirichlet:0.3", "by hand")
OWN_TESTS = 10


def samples(n: int, seed: int) -> Samples:
    x, y = made_up(n, seed)
    return Samples(torch.from_numpy(x)[:, None], torch.from_numpy(y))


def dealt(clients: int, shard: int) -> Task:
    """Return a task that reuses images until every client has a shard; no built-in partition does this."""
    data = Data("bench", samples(TRAIN, 1), samples(TEST, 2), CLASSES, split="iid", model="mlp")
    start, rng = np.arange(clients + 1), np.random.default_rng(0)
    index = np.concatenate([rng.permutation(TRAIN) for _ in range(-(-clients * shard // TRAIN))])[: clients * shard]
    tests = np.arange(clients * OWN_TESTS) % TEST
    split = Split(index, start * shard, tests, start * OWN_TESTS)
    return Task(lambda: build("mlp", data.shape, CLASSES), data, split)


def rounds(executor: str) -> dict[str, Any]:
    """Return the seconds by phase of each round after the first."""
    work = WORKLOADS["w3-1000"]
    method, task = fedavg(lr=work.lr, epochs=work.epochs, batch=work.batch), dealt(work.clients, work.shard)
    with tempfile.TemporaryDirectory() as folder:
        run = simulate(method, task, out=f"{folder}/run", rounds=ROUNDS, per_round=work.cohort, executor=executor)
    return {"seconds": [record["seconds"] for record in run.metrics[1:]], "accuracy": run.accuracy}


def start(split: str) -> dict[str, Any]:
    """Prepare a run with many clients."""
    if split == "by hand":
        task = dealt(REGISTERED, 6)
    else:
        x, y = torch.randn(2 * REGISTERED, 1, 8, 8), torch.randint(CLASSES, (2 * REGISTERED,))
        arrays = (x, y), (x[:TEST], y[:TEST])
        task = Task.of(lambda: build("mlp", x.shape[1:], CLASSES), *arrays, clients=REGISTERED, split=split)
    simulation = Simulation(fedavg(), task, Options(per_round=10))
    return {"clients": simulation.task.clients}


def measured(*command: str) -> tuple[dict[str, Any], float, int]:
    """Run a command of this script; return its output, its seconds, and the peak memory with its children."""
    begin, peak = time.perf_counter(), 0
    process = subprocess.Popen([sys.executable, __file__, *command], stdout=subprocess.PIPE, text=True)
    while process.poll() is None:
        members = meter.family(process.pid)
        peak = max(peak, meter.own(members) + meter.mapped(members))
        time.sleep(0.1)
    seconds = time.perf_counter() - begin
    assert process.stdout is not None
    found: dict[str, Any] = json.loads(process.stdout.read())
    return found, seconds, peak


def phases(seconds: list[dict[str, float]]) -> dict[str, float]:
    """Return the mean of each phase."""
    return {name: sum(one.get(name, 0.0) for one in seconds) / len(seconds) for name in seconds[-1]}


def verdict(good: bool) -> str:
    return "" if good else "   target MISSED"


def main() -> None:
    print(f"{len(os.sched_getaffinity(0))} cores; 10,000 clients, 1,000 per round: at most {MOST_MEMORY / GIB:.0f} GiB")
    for executor in EXECUTORS:
        found, _, peak = measured("rounds", executor)
        spent = phases(found["seconds"])
        parts = ", ".join(f"{name} {seconds:.2f}" for name, seconds in sorted(spent.items(), key=lambda item: -item[1]))
        total = f"{sum(spent.values()):6.1f} s per round, {peak / GIB:.2f} GiB{verdict(peak < MOST_MEMORY)}"
        print(f"  {executor:13}{total}   ({parts}; accuracy {found['accuracy']:.3f})", flush=True)
    print(f"{REGISTERED:,} clients, start of a run: at most {MOST_SECONDS:.0f} s")
    for split in SPLITS:
        _, seconds, peak = measured("start", split)
        print(f"  {split:13}{seconds:6.1f} s, {peak / GIB:.2f} GiB{verdict(seconds < MOST_SECONDS)}", flush=True)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        print(json.dumps({"rounds": rounds, "start": start}[sys.argv[1]](sys.argv[2])))
    else:
        main()
