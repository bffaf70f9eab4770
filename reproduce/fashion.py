"""FedAvg on Fashion-MNIST as in FedMRN's Table 1: CNN4, 100 clients, 10 a round, 10 epochs, batches of 64, 100 rounds.

    make reproduce WHAT=fashion REPRODUCE="--data-dir DIR --jobs 8"

Three splits, three seeds, one cell each. A finished cell is a small JSON file, and is not run again; the table in
docs/reproduction/fashion.md is made of all cells there are. Cells run on a GPU where there is one.
"""

import argparse
import statistics
from collections.abc import Iterator
from pathlib import Path

import cells
from cells import PAGES, Cell

PAPER = {"iid": 92.0, "dirichlet:0.3,min_samples=10": 90.5, "labels:3": 88.8}
GIVEN = {"lr": 0.03, "epochs": 10, "batch": 64, "weights": "batches"}


def all_cells() -> Iterator[Cell]:
    for seed in (0, 1, 2):
        for split in PAPER:
            name = f"fashion-{split.partition(',')[0].replace(':', '-')}-{seed}"
            yield Cell(name, "fedavg", GIVEN, "fashion-mnist:norm=fedmrn", "cnn4", split, seed, 100)


def table() -> str:
    lines = ["| split | paper, best round | best round | last round | seeds |", "| --- | --- | --- | --- | --- |"]
    for split, paper in PAPER.items():
        found = [cells.read(cell) for cell in all_cells() if cell.split == split and cell.path.exists()]
        if found:
            best, last = ([cell[name] for cell in found] for name in ("best", "last"))
            means = [f"{statistics.mean(v):.2f} ({min(v):.2f} to {max(v):.2f})" for v in (best, last)]
            lines.append(f"| `{split}` | {paper} | {means[0]} | {means[1]} | {len(found)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description="FedAvg on Fashion-MNIST beside FedMRN's Table 1.")
    parser.add_argument("--data-dir", type=Path, default=Path("data"))
    parser.add_argument("--jobs", type=int, default=1, help="cells at once")
    parser.add_argument("--seconds", type=float, default=1e9, help="begin no cell after so long")
    asked = parser.parse_args()
    cells.run(list(all_cells()), asked.data_dir, asked.jobs, asked.seconds)
    cells.write(PAGES / "fashion.md", table())


if __name__ == "__main__":
    main()
