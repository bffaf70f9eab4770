"""Measure FedSpa with ten thousand clients, each with a separate mask over a million weights.

    python bench/fedspa_scale.py [--clients 10000] [--per-round 20] [--limit 512]

An MLP with a million parameters on random images, 20 clients per round with one local step each, and a run folder. All
clients start with one mask, which is not stored. It would take thousands of rounds until every client has moved its
mask. So each of the first five rounds gives masks to a fifth of the clients (the common mask, shifted), and all exist
afterwards. The memory for client states is limited (``--limit``, in MiB), so that most of them are on disk.

Two processes do the same run. One continues for eight rounds. The other is killed in the middle of the eighth round,
and resumed; both must then have the same model and the same masks. It continues with a ninth round, which evaluates all
clients. The report has the seconds per round once all masks exist, as processor time and wall-clock time. It also has
the peak memory (resident set), including a save of 2,000 masks at once, and the bytes on disk.
"""

import argparse
import hashlib
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from gossamer import METHODS, Options, Task
from gossamer.core import tree
from gossamer.core.types import State
from gossamer.engines.executors import threads
from gossamer.engines.simulation import Simulation
from gossamer.runs.records import checkpoints, read_metrics
from gossamer.tasks.data import Data, Samples, Split

FILLING, ROUNDS = 5, 9
"""Rounds that give masks to clients, and all rounds."""
COMPARED = ROUNDS - 1
"""Rounds before both processes are compared; one is killed in the last of these."""
SAMPLES, OWN_TESTS, TESTS, CLASSES = 20, 5, 1000, 10
MIB = 2**20


def network() -> nn.Module:
    """Return an MLP with 979,810 parameters."""
    layers = (nn.Linear(784, 900), nn.ReLU(), nn.Linear(900, 300), nn.ReLU(), nn.Linear(300, CLASSES))
    return nn.Sequential(nn.Flatten(), *layers)


def task(clients: int) -> Task:
    """Return random images, a few per client."""
    draw = torch.Generator().manual_seed(0)
    x, y = torch.randn(TESTS, 1, 28, 28, generator=draw), torch.randint(CLASSES, (TESTS,), generator=draw)
    data = Data("bench", Samples(x, y), Samples(x, y), CLASSES, split="iid", model="mlp")
    start = np.arange(clients + 1)
    train, tests = np.arange(clients * SAMPLES) % TESTS, np.arange(clients * OWN_TESTS) % TESTS
    return Task(network, data, Split(train, start * SAMPLES, tests, start * OWN_TESTS))


class Run:
    """A run in its folder, new or resumed."""

    def __init__(self, path: Path, clients: int, per_round: int, limit: int) -> None:
        options = Options(rounds=ROUNDS, per_round=per_round, eval_every=ROUNDS)
        self.simulation = Simulation(METHODS["fedspa"](steps=1, batch=10), task(clients), options)
        self.simulation.clients.limit = limit * MIB
        begin = time.perf_counter()
        self.folder = self.simulation.restore(path) if path.exists() else self.simulation.create(path)
        self.opening, self.found = time.perf_counter() - begin, ""
        self.computing: list[float] = []

    def go(self, until: int) -> None:
        """Run the remaining rounds."""
        for number in range(len(self.simulation.metrics), until):
            self.hand_out(number)
            before = time.process_time()
            self.simulation.round(number, self.folder)
            self.computing.append(time.process_time() - before)
            self.found = self.digest() if number + 1 == COMPARED else self.found

    def hand_out(self, number: int) -> None:
        """Give a fifth of the clients a mask, except those that have one."""
        clients, run = self.simulation.task.clients, self.simulation
        for client in range(number * clients // FILLING, min(clients, (number + 1) * clients // FILLING)):
            if client not in run.clients:
                run.clients.put(client, {"view": self.shifted(client)})

    def shifted(self, client: int) -> State:
        """Return the initial mask shifted by the client's index in bytes; the density of each tensor stays."""
        start = self.simulation.method.training.view.first(client)
        return {"mask": {name: packed.roll(client) for name, packed in start["mask"].items()}}

    def figures(self) -> dict[str, Any]:
        """Return the values of the report."""
        run = self.simulation
        away = run.clients._folder
        return {
            "opening": self.opening,
            "computing": self.computing,
            "seconds": [record["seconds"] for record in run.metrics],
            "known": len(run.clients.known()),
            "near": run.clients._bytes,
            "away": sum(file.stat().st_size for file in away.iterdir()) if away else 0,
            "folder": sum(file.stat().st_size for file in self.folder.path.rglob("*") if file.is_file()),
            "digest": self.found,
            "peak": 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
        }

    def digest(self) -> str:
        """Return a digest of the model and of all masks."""
        found, run = hashlib.sha256(), self.simulation
        for state in (run.server, *(run.clients.get(client) for client in run.clients.known())):
            for _, tensor in sorted(tree.flatten(state).items()):
                found.update(tensor.numpy().tobytes())
        return found.hexdigest()


def work(path: Path, until: int, clients: int, per_round: int, limit: int) -> None:
    """Run the rounds of one process."""
    with threads(1):
        run = Run(path, clients, per_round, limit)
        run.go(until)
    print(json.dumps(run.figures()))


def child(path: Path, until: int, given: Any) -> "subprocess.Popen[str]":
    """Start a process. Its temporary files are next to the run, since a killed process leaves them behind."""
    numbers = (until, given.clients, given.per_round, given.limit)
    command = [sys.executable, __file__, "--work", str(path), *map(str, numbers)]
    env = {**os.environ, "TMPDIR": str(path.parent)}
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env)


def ended(process: "subprocess.Popen[str]") -> dict[str, Any]:
    output, _ = process.communicate()
    if process.returncode:
        raise SystemExit("a process failed")
    figures: dict[str, Any] = json.loads(output)
    return figures


def killed(path: Path, given: Any) -> None:
    """Start a run, and kill it in the middle of a round."""
    process = child(path, COMPARED, given)
    while process.poll() is None and (not path.exists() or len(read_metrics(path)) < COMPARED - 1):
        time.sleep(0.05)
    while process.poll() is None and COMPARED - 1 not in checkpoints(path):
        time.sleep(0.05)
    time.sleep(0.5)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    print(f"killed in round {len(read_metrics(path)) + 1}", flush=True)


def report(figures: dict[str, Any]) -> None:
    """Print the storage of client states, and the peak memory of the process."""
    print(f"  {figures['known']:,} clients with a mask: {figures['near'] / 1e6:,.0f} MB in memory,")
    print(f"  {figures['away'] / 1e6:,.0f} MB in temporary files, {figures['folder'] / 1e6:,.0f} MB in the run folder")
    print(f"  peak memory {figures['peak'] / 1e6:,.0f} MB", flush=True)


def phases(figures: dict[str, Any]) -> str:
    """Format the mean over the rounds with all masks; a round includes the time of the save before it."""
    rounds = figures["seconds"][FILLING + 1 :]
    spent = {phase: sum(one.get(phase, 0.0) for one in rounds) / len(rounds) for phase in rounds[-1]}
    parts = ", ".join(f"{phase} {seconds:.2f}" for phase, seconds in sorted(spent.items(), key=lambda item: -item[1]))
    computing = sum(figures["computing"][FILLING + 1 :]) / len(rounds)
    return f"{computing:.2f} s processor time per round, {sum(spent.values()):.2f} s wall-clock time ({parts})"


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure FedSpa with ten thousand clients.")
    parser.add_argument("--clients", type=int, default=10_000)
    parser.add_argument("--per-round", type=int, default=20)
    parser.add_argument("--limit", type=int, default=512)
    parser.add_argument("--work", nargs=5, help=argparse.SUPPRESS)
    given: Any = parser.parse_args()
    if given.work:
        work(Path(given.work[0]), *map(int, given.work[1:]))
        return
    with tempfile.TemporaryDirectory() as home:
        begin = time.perf_counter()
        whole = ended(child(Path(home) / "whole", COMPARED, given))
        print(f"not killed: {phases(whole)}")
        report(whole)
        killed(Path(home) / "killed", given)
        resumed = ended(child(Path(home) / "killed", ROUNDS, given))
        last, clock = resumed["computing"][-1], resumed["seconds"][-1]["evaluate"]
        print(f"resumed in {resumed['opening']:.1f} s; the round with evaluation: {last:.0f} s processor time,")
        print(f"  evaluation {clock:.0f} s wall-clock time")
        report(resumed)
        same = whole["digest"] == resumed["digest"]
        print("model and masks are the SAME" if same else "model or masks are NOT the same")
        print(f"{time.perf_counter() - begin:.0f} s in total")


if __name__ == "__main__":
    main()
