"""Eight classics on Fashion-MNIST with two labels a client: accuracy by round and by bytes.

    make reproduce WHAT=classics REPRODUCE="--data-dir DIR --jobs 2"

100 clients, 10 a round, a network of two hidden layers with 200 units (2NN of McMahan et al.), 5 epochs, batches of 32.
Each method is tuned by the same small grid: three client learning rates, times three values of the one other parameter
that it has (SCAFFOLD and FedNova have none, FedAvg neither). Settings are chosen after 50 rounds on a sixth of the
training images that no client has, with one seed; what is reported are runs of 150 rounds on all training images with
three seeds, evaluated on the test images. A finished cell is a small JSON file, and is not run again.
"""

import argparse
import statistics
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import cells
import numpy as np
from cells import PAGES, Cell, Facts

from gossamer import Method, Result, Task, simulate
from gossamer.tasks.task import deal

PAGE, PICTURE = PAGES / "classics.md", PAGES / "classics.svg"
SPLIT, CLIENTS, SEEDS = "labels:2", 100, (0, 1, 2)
SEARCH_ROUNDS, ROUNDS = 50, 150
COMMON = {"epochs": 5, "batch": 32}
RATES = (0.01, 0.03, 0.1)
OTHERS: dict[str, tuple[str, tuple[float, ...]]] = {
    "fedavg": ("", (0.0,)),
    "fedprox": ("mu", (0.001, 0.01, 0.1)),
    "fedavgm": ("server_lr", (0.1, 0.3, 1.0)),
    "fedadam": ("server_lr", (0.001, 0.003, 0.01)),
    "fedyogi": ("server_lr", (0.001, 0.003, 0.01)),
    "scaffold": ("", (0.0,)),
    "feddyn": ("alpha", (0.01, 0.03, 0.1)),
    "fednova": ("", (0.0,)),
}
"""The parameter of each method that is tuned beside the learning rate, and its values."""
TARGETS = (70, 75, 80)


def made(name: str, method: str, given: dict[str, Any], seed: int, rounds: int, every: int) -> Cell:
    return Cell(
        name, method, {**COMMON, **given}, "fashion-mnist", "mlp", SPLIT, seed, rounds, CLIENTS, 10,
        eval_every=every, executor="one-by-one",
    )  # fmt: skip


def settings(method: str) -> Iterator[dict[str, float]]:
    other, values = OTHERS[method]
    for lr in RATES:
        for value in values:
            yield {"lr": lr, **({other: value} if other else {})}


def search() -> Iterator[Cell]:
    for method in OTHERS:
        for given in settings(method):
            label = "-".join(f"{name}{value:g}" for name, value in given.items())
            yield made(f"classics-search-{method}-{label}", method, given, 0, SEARCH_ROUNDS, SEARCH_ROUNDS)


def chosen(method: str) -> dict[str, float]:
    """The setting with the best accuracy on held-out training images in the last round of the search."""
    found = [(cells.read(cell), cell) for cell in search() if cell.method == method]
    best = max(found, key=lambda one: one[0]["last"])[1]
    return {name: value for name, value in best.given.items() if name not in COMMON}


def final() -> Iterator[Cell]:
    for method in OTHERS:
        for seed in SEEDS:
            yield made(f"classics-{method}-{seed}", method, chosen(method), seed, ROUNDS, 5)


def on_held_out(method: Method, task: Task, **options: Any) -> Result:
    """A run that is evaluated on the last sixth of the training images, which no client has."""
    train = task.data.train
    rest, held = np.split(np.arange(len(train)), [len(train) - len(train) // 6])
    data = replace(task.data, train=train.take(rest), test=train.take(held))
    mine = Task(task.model, data, deal(data, SPLIT, task.clients, options["seed"]))
    return simulate(method, mine, **options)


def more(cell: Cell, task: Task, result: Result) -> Facts:
    """All bytes of a round, both ways."""
    last = result.metrics[-1]
    return {
        "bytes_round": sum(last["bytes_up"].values()) + sum(last["bytes_down"].values()),
        "bytes_down": last["bytes_down"],
        "rounds_told": [record["round"] for record in result.metrics if "accuracy" in record],
    }


def reached(found: Facts, target: float) -> int | None:
    """The first evaluated round with so much accuracy."""
    return next((r for r, a in zip(found["rounds_told"], found["accuracy"], strict=True) if a >= target), None)


def table() -> str:
    done = {m: [cells.read(c) for c in final() if c.method == m and c.path.exists()] for m in OTHERS}
    plain = done["fedavg"][0]["bytes_round"]
    head = ["method", "setting", "last round", "with the bytes of 75 rounds of FedAvg", "MB a round"]
    head += [f"rounds to {target} %" for target in TARGETS] + ["seeds"]
    lines = [f"| {' | '.join(head)} |", "| --- " * len(head) + "|"]
    for method, found in done.items():
        given = " ".join(f"{name}={value:g}" for name, value in chosen(method).items())
        half = [at(one, 75 * plain) for one in found]
        row = [f"`{method}`", f"`{given}`", spread([one["last"] for one in found]), spread(half)]
        row.append(f"{found[0]['bytes_round'] / 1e6:.1f}")
        row += [rounds([reached(one, target) for one in found]) for target in TARGETS]
        lines.append(f"| {' | '.join([*row, str(len(found))])} |")
    return "\n".join(lines)


def at(found: Facts, nbytes: float) -> float:
    """The accuracy in the last evaluated round by which no more bytes were sent, but for one per cent of headers."""
    last = 1.01 * nbytes / found["bytes_round"]
    kept = [a for r, a in zip(found["rounds_told"], found["accuracy"], strict=True) if r <= last]
    return float(kept[-1])


def spread(values: list[float]) -> str:
    return f"{statistics.mean(values):.1f} ({min(values):.1f} to {max(values):.1f})"


def rounds(values: list[int | None]) -> str:
    """The mean over seeds; who did not get there is said."""
    there = [value for value in values if value is not None]
    if len(there) < len(values):
        return f"{len(there)} of {len(values)} seeds"
    return f"{statistics.mean(there):.0f}"


def picture() -> None:
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(10, 4), sharey=True)
    for method in OTHERS:
        found = [cells.read(cell) for cell in final() if cell.method == method and cell.path.exists()]
        told, mean = found[0]["rounds_told"], np.mean([one["accuracy"] for one in found], axis=0)
        axes[0].plot(told, mean, label=method)
        axes[1].plot(np.array(told) * found[0]["bytes_round"] / 1e9, mean, label=method)
    for axis, label in zip(axes, ("round", "GB sent, both ways"), strict=True):
        axis.set(xlabel=label, ylim=(40, None))
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("accuracy (%), mean of three seeds")
    axes[1].legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(PICTURE)


def main() -> None:
    parser = argparse.ArgumentParser(description="Classics on Fashion-MNIST.")
    parser.add_argument("--data-dir", type=Path, default=Path("data"))
    parser.add_argument("--jobs", type=int, default=1, help="cells at once")
    parser.add_argument("--seconds", type=float, default=1e9, help="begin no cell after so long")
    parser.add_argument("--no-page", action="store_true", help="cells alone")
    asked = parser.parse_args()
    cells.run(list(search()), asked.data_dir, asked.jobs, asked.seconds, more, on_held_out)
    cells.run(list(final()), asked.data_dir, asked.jobs, asked.seconds, more)
    if not asked.no_page:
        cells.write(PAGE, table())
        picture()


if __name__ == "__main__":
    main()
