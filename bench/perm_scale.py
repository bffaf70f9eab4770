"""Measure PERM with thousands of clients and a few mixing weights per client: memory, time and approximation error.

    python bench/perm_scale.py [--clients 2000] [--keep 50] [--rounds 5]

Logistic regression on the two populations, 400 training samples per client, all clients in every round, 20 local steps
on batches of 20. The first part runs some rounds end to end in a separate process, with evaluation and run folder. It
reports the seconds per round of its one thread, and the largest resident memory. The target is less than 2 GiB for
2,000 clients. The second part has 200 clients. It compares the kept mixing weights with the exact ones of all pairs,
for several numbers of kept weights: by total variation, and by the weight in the client's own half.
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gossamer import METHODS, Task, simulate
from gossamer.engines.executors import threads
from gossamer.parts.servers import mixing
from gossamer.runs.checkpoint import read_server

MOST = 2 * 2**30
FEW, KEPT = 200, (10, 25, 50, 100, 200)
GIVEN: dict[str, Any] = {"lr": 0.01, "steps": 20, "batch": 20}


def rounds(clients: int, keep: int, number: int) -> dict[str, Any]:
    """Run some rounds in this process."""
    method, task = METHODS["perm"](**GIVEN, warmup=1, keep=keep), Task.named("two-populations", clients=clients)
    ends = [time.process_time()]

    def end(record: dict[str, Any], run: Any) -> None:
        ends.append(time.process_time())

    options: dict[str, Any] = {"rounds": number, "executor": "stacked", "eval_every": number}
    with threads(1), tempfile.TemporaryDirectory() as folder:
        result = simulate(method, task, out=Path(folder) / "run", callbacks=[end], **options)
    assert not any(record["failures"] for record in result.metrics)
    return {
        "parameters": result.about["parameters"],
        "seconds": [end - begin for begin, end in pairwise(ends)],
        "visits": result.metrics[-1]["figures"]["visits"],
        "mixing": result.metrics[-1]["figures"]["mixing"],
        "resident": 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
    }


def scale(clients: int, keep: int, number: int) -> None:
    command = [sys.executable, __file__, "--alone", "--clients", str(clients), "--keep", str(keep)]
    done = subprocess.run([*command, "--rounds", str(number)], capture_output=True, text=True, check=True)
    found = json.loads(done.stdout.splitlines()[-1])
    visits, mixed = found["visits"], found["mixing"]
    print(f"{clients:,} clients, {found['parameters']} parameters, {keep} mixing weights per client, stacked")
    print(f"seconds per round: {', '.join(f'{taken:.1f}' for taken in found['seconds'])}")
    print(f"visits of the last round: {visits}; own weight {mixed['own']:.3f}, {mixed['peers']:.1f} effective clients")
    verdict = "target met" if found["resident"] < MOST else "target MISSED"
    print(f"largest resident memory: {found['resident'] / 2**30:.2f} GiB, {verdict}\n")


# The approximation error.


def weights(keep: int | None) -> tuple[Tensor, float]:
    """Return the mixing weights after one round with few clients, and lambda."""
    method, task = METHODS["perm"](**GIVEN, warmup=1, keep=keep), Task.named("two-populations", clients=FEW)
    with threads(1), tempfile.TemporaryDirectory() as folder:
        result = simulate(method, task, out=Path(folder) / "run", rounds=1, executor="stacked")
        assert result.path is not None
        server = read_server(result.path)
    return mixing.square(server["mixing"], FEW), float(server["lam"])


def losses() -> None:
    exact, lam = weights(None)
    half = torch.arange(FEW) < FEW // 2
    own = half[:, None] == half
    print(f"{FEW} clients, lambda {lam:.0f}, {float((1 / exact.square().sum(1)).mean()):.1f} effective clients")
    print("| weights kept | total variation, mean | largest | weight in own half |\n|" + " ---: |" * 4)
    for keep in KEPT:
        kept, _ = weights(keep)
        apart = (kept - exact).abs().sum(1) / 2
        inside = float((kept * own).sum(1).mean())
        print(f"| {keep} | {float(apart.mean()):.3f} | {float(apart.max()):.3f} | {100 * inside:.2f} % |")


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure PERM with thousands of clients.")
    parser.add_argument("--clients", type=int, default=2000)
    parser.add_argument("--keep", type=int, default=50)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--alone", action="store_true", help="only run the rounds, in this process")
    given = parser.parse_args()
    if given.alone:
        print(json.dumps(rounds(given.clients, given.keep, given.rounds)))
        return
    scale(given.clients, given.keep, given.rounds)
    losses()


if __name__ == "__main__":
    main()
