"""FedAvg on Fashion-MNIST as in FedMRN's Table 1: CNN4, 100 clients, 10 a round, 10 epochs, batches of 64, 100 rounds.

    make reproduce WHAT=fashion REPRODUCE="--data-dir DIR"

Three splits, three seeds, one cell each. A finished cell is a small JSON file, and is not run again; the table in
docs/reproduction/fashion.md is made of all cells there are. Cells run on a GPU where there is one.
"""

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

import torch

from gossamer import Task, fedavg, simulate
from gossamer.data import load
from gossamer.nets import build
from gossamer.random import key
from gossamer.tasks import deal

HERE = Path(__file__).parent.parent / "docs/reproduction"
PAPER = {"iid": 92.0, "dirichlet:0.3,least=10": 90.5, "labels:3": 88.8}
SEEDS, ROUNDS = (0, 1, 2), 100


def cell(split: str, seed: int, data_dir: Path) -> dict[str, object]:
    data = load("fashion-mnist:norm=fedmrn", data_dir=data_dir, clients=100, key=key(seed))
    task = Task(lambda: build("cnn4", data.shape, 10), data, deal(data, split, 100, seed))
    gpu = torch.cuda.is_available()
    how: dict[str, Any] = {"device": "cuda", "executor": "captured"} if gpu else {"device": "cpu", "executor": "auto"}
    method = fedavg(lr=0.03, epochs=10, batch=64, weights="batches")
    result = simulate(method, task, rounds=ROUNDS, per_round=10, seed=seed, **how)
    curve = [round(100 * record["accuracy"], 2) for record in result.metrics]
    seconds = [round(sum(record["seconds"].values()), 3) for record in result.metrics]
    return {"split": split, "seed": seed, "last": curve[-1], "best": max(curve), "accuracy": curve, "seconds": seconds}


def table(cells: list[dict[str, object]]) -> str:
    lines = ["| split | paper, best round | best round | last round | seeds |", "| --- | --- | --- | --- | --- |"]
    for split, paper in PAPER.items():
        found = [c for c in cells if c["split"] == split]
        if found:
            best, last = ([float(str(c[name])) for c in found] for name in ("best", "last"))
            means = [f"{statistics.mean(v):.2f} ({min(v):.2f} to {max(v):.2f})" for v in (best, last)]
            lines.append(f"| `{split}` | {paper} | {means[0]} | {means[1]} | {len(found)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description="FedAvg on Fashion-MNIST beside FedMRN's Table 1.")
    parser.add_argument("--data-dir", type=Path, default=Path("data"))
    parser.add_argument("--cells", type=Path, default=HERE / "cells")
    given = parser.parse_args()
    given.cells.mkdir(parents=True, exist_ok=True)
    for seed in SEEDS:
        for split in PAPER:
            path = given.cells / f"fashion-{split.partition(',')[0].replace(':', '-')}-{seed}.json"
            if not path.exists():
                path.write_text(json.dumps(cell(split, seed, given.data_dir)) + "\n")
            print(
                path.name, {k: v for k, v in json.loads(path.read_text()).items() if k in ("best", "last")}, flush=True
            )
    cells = [json.loads(path.read_text()) for path in sorted(given.cells.glob("fashion-*.json"))]
    page = HERE / "fashion.md"
    if page.exists():
        before, _, _ = page.read_text().partition("<!-- table -->")
        page.write_text(f"{before}<!-- table -->\n{table(cells)}\n")
    print(table(cells))


if __name__ == "__main__":
    main()
