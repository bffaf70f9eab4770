"""Count how often the anomaly report names clients of honest runs.

    python bench/false_alarms.py [--data digits fashion-mnist] [--data-dir DIR] [--methods fedavg heterofl] [--seeds 3]

Each row has the uploads of one method on one split over all seeds, those that were named, and the clients that
``exclude_after=3`` would have excluded. Fashion-MNIST is reduced to 300 images per client and an MLP.
"""

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from gossamer import METHODS, Task, simulate
from gossamer.core.random import key
from gossamer.engines.anomalies import DEPLOYED_EXCLUSION, Exclusion
from gossamer.tasks.data import load
from gossamer.tasks.task import deal

SPLITS = ("iid", "dirichlet:0.3", "labels:2")
IMAGES = 300


def task_of(data: str, split: str, clients: int, seed: int, data_dir: Path | None) -> Task:
    """Return a task with a few hundred samples per client."""
    found = load(data, data_dir=data_dir, clients=clients, key=key(seed))
    kept = np.arange(min(len(found.train), IMAGES * clients))
    found = replace(found, train=found.train.take(kept), test=found.test.take(np.arange(min(1000, len(found.test)))))
    return Task.of_data(found, "mlp", split, deal(found, split, clients, seed))


def row(data: str, split: str, method: str, asked: argparse.Namespace) -> str:
    """Return the counts of one method on one split."""
    uploads = named = excluded = 0
    for seed in range(asked.seeds):
        task = task_of(data, split, asked.clients, seed, asked.data_dir)
        result = simulate(METHODS[method](), task, rounds=asked.rounds, seed=seed, eval_every=asked.rounds)
        uploads += sum(record["exchanges"][-1]["folded"] for record in result.metrics)
        named += sum(len(record.get("anomalies", ())) for record in result.metrics)
        excluded += len(Exclusion(DEPLOYED_EXCLUSION, asked.clients).update(result.metrics))
    return f"| `{data}` | `{split}` | `{method}` | {uploads:,} | {named:,} | {excluded} |"


def main(argv: Sequence[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description="Count false alarms of the anomaly report.")
    parser.add_argument("--data", nargs="*", default=["digits"])
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--methods", nargs="*", default=["fedavg", "signsgd", "fedmrn", "heterofl"])
    parser.add_argument("--splits", nargs="*", default=SPLITS)
    parser.add_argument("--clients", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seeds", type=int, default=3)
    asked = parser.parse_args(argv)
    torch.set_num_threads(1)
    print("| data | split | method | uploads | named | excluded |\n|---|---|---|---|---|---|")
    for data in asked.data:
        for split in asked.splits:
            for method in asked.methods:
                print(row(data, split, method, asked), flush=True)


if __name__ == "__main__":
    main()
