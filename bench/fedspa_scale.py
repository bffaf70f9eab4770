"""FedSpa with ten thousand clients, each with a mask of its own over a million weights.

    python bench/fedspa_scale.py [--clients 10000] [--per-round 20] [--limit 512]

An MLP of a million parameters on made-up images, 20 clients a round that take one step each, the run kept in a folder.
Masks start as one for all, which is not stored; until every client has moved its own, thousands of rounds go by. So
each of the first five rounds hands out masks to a fifth of the clients (the common one, shifted), and all exist from
then on. Memory for what clients remember is lowered (``--limit``, in MiB), so that most of it is on disk.

Two processes do the same run. One goes on for eight rounds. The other is killed in the middle of the eighth, and
resumed; both must then have the same model and the same masks. It goes on with a ninth round, which evaluates
everybody. Told are seconds a round once all masks exist, of computing on one thread and by the clock; the peak of
memory (resident set), to which saving 2,000 masks at once belongs; and bytes on disk.
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
from gossamer.engines.simulate import Simulation
from gossamer.runs.folder import checkpoints, read_metrics
from gossamer.tasks.data import Data, Samples, Split

FILLING, ROUNDS = 5, 9
"""Rounds in which masks are handed out, and all rounds."""
COMPARED = ROUNDS - 1
"""After so many rounds both processes are compared; one is killed in the last of these."""
SAMPLES, OWN_TESTS, TESTS, CLASSES = 20, 5, 1000, 10
MIB = 2**20


def network() -> nn.Module:
    """979,810 parameters."""
    layers = (nn.Linear(784, 900), nn.ReLU(), nn.Linear(900, 300), nn.ReLU(), nn.Linear(300, CLASSES))
    return nn.Sequential(nn.Flatten(), *layers)


def task(clients: int) -> Task:
    """Made-up images, a few for each client."""
    draw = torch.Generator().manual_seed(0)
    x, y = torch.randn(TESTS, 1, 28, 28, generator=draw), torch.randint(CLASSES, (TESTS,), generator=draw)
    data = Data("bench", Samples(x, y), Samples(x, y), CLASSES, split="iid", model="mlp")
    start = np.arange(clients + 1)
    dealt, tests = np.arange(clients * SAMPLES) % TESTS, np.arange(clients * OWN_TESTS) % TESTS
    return Task(network, data, Split(dealt, start * SAMPLES, tests, start * OWN_TESTS))


class Run:
    """A run in its folder, new or taken up again."""

    def __init__(self, path: Path, clients: int, per_round: int, limit: int) -> None:
        options = Options(rounds=ROUNDS, per_round=per_round, eval_every=ROUNDS)
        self.simulation = Simulation(METHODS["fedspa"](steps=1, batch=10), task(clients), options)
        self.simulation.clients.limit = limit * MIB
        begin = time.perf_counter()
        self.folder = self.simulation.restore(path) if path.exists() else self.simulation.create(path)
        self.opening, self.found = time.perf_counter() - begin, ""
        self.computing: list[float] = []

    def go(self, until: int) -> None:
        """The rounds that are left."""
        for number in range(len(self.simulation.metrics), until):
            self.hand_out(number)
            before = time.process_time()
            self.simulation.round(number, self.folder)
            self.computing.append(time.process_time() - before)
            self.found = self.digest() if number + 1 == COMPARED else self.found

    def hand_out(self, number: int) -> None:
        """Give a fifth of the clients a mask, unless they have one by now."""
        clients, run = self.simulation.task.clients, self.simulation
        for client in range(number * clients // FILLING, min(clients, (number + 1) * clients // FILLING)):
            if client not in run.clients:
                run.clients.put(client, {"view": self.shifted(client)})

    def shifted(self, client: int) -> State:
        """The mask to start with, moved on by so many bytes as the client's number: as many weights of each tensor."""
        view = self.simulation.method.training.view_memory
        assert view is not None
        start = view.first(client)
        return {"mask": {name: packed.roll(client) for name, packed in start["mask"].items()}}

    def figures(self) -> dict[str, Any]:
        """What is told of it."""
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
        """Of the model and of all masks."""
        found, run = hashlib.sha256(), self.simulation
        for state in (run.server, *(run.clients.get(client) for client in run.clients.known())):
            for _, tensor in sorted(tree.flatten(state).items()):
                found.update(tensor.numpy().tobytes())
        return found.hexdigest()


def work(path: Path, until: int, clients: int, per_round: int, limit: int) -> None:
    """One process: so many rounds of a run."""
    with threads(1):
        run = Run(path, clients, per_round, limit)
        run.go(until)
    print(json.dumps(run.figures()))


def child(path: Path, until: int, given: Any) -> "subprocess.Popen[str]":
    """Its temporary files go where the run goes, as one that is killed leaves them behind."""
    numbers = (until, given.clients, given.per_round, given.limit)
    command = [sys.executable, __file__, "--work", str(path), *map(str, numbers)]
    env = {**os.environ, "TMPDIR": str(path.parent)}
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env)


def ended(process: "subprocess.Popen[str]") -> dict[str, Any]:
    said, _ = process.communicate()
    if process.returncode:
        raise SystemExit("a process failed")
    told: dict[str, Any] = json.loads(said)
    return told


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


def tell(told: dict[str, Any]) -> None:
    """Where things are, and the most memory that the process had."""
    print(f"  {told['known']:,} clients with a mask: {told['near'] / 1e6:,.0f} MB in memory,")
    print(f"  {told['away'] / 1e6:,.0f} MB in temporary files, {told['folder'] / 1e6:,.0f} MB in the run's folder")
    print(f"  peak memory {told['peak'] / 1e6:,.0f} MB", flush=True)


def phases(told: dict[str, Any]) -> str:
    """The mean of rounds in which all masks exist; a round tells how long saving the one before took."""
    rounds = told["seconds"][FILLING + 1 :]
    spent = {phase: sum(one.get(phase, 0.0) for one in rounds) / len(rounds) for phase in rounds[-1]}
    parts = ", ".join(f"{phase} {seconds:.2f}" for phase, seconds in sorted(spent.items(), key=lambda item: -item[1]))
    computing = sum(told["computing"][FILLING + 1 :]) / len(rounds)
    return f"{computing:.2f} s of computing a round, {sum(spent.values()):.2f} s by the clock ({parts})"


def main() -> None:
    parser = argparse.ArgumentParser(description="FedSpa with ten thousand clients.")
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
        tell(whole)
        killed(Path(home) / "killed", given)
        resumed = ended(child(Path(home) / "killed", ROUNDS, given))
        last, clock = resumed["computing"][-1], resumed["seconds"][-1]["evaluate"]
        print(f"resumed in {resumed['opening']:.1f} s; a round that evaluates everybody: {last:.0f} s of computing,")
        print(f"  evaluating {clock:.0f} s by the clock")
        tell(resumed)
        same = whole["digest"] == resumed["digest"]
        print("model and masks are the SAME" if same else "model or masks are NOT the same")
        print(f"{time.perf_counter() - begin:.0f} s in all")


if __name__ == "__main__":
    main()
