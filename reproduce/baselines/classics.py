"""Eight classic methods on Fashion-MNIST with two labels per client: accuracy by round and by bytes.

    make reproduce WHAT=classics REPRODUCE="--data-dir DIR --jobs 2"

100 clients, 10 per round, two hidden layers with 200 units (2NN of McMahan et al., https://arxiv.org/abs/1602.05629), 5
epochs, batches of 32. Every method is tuned by the same small grid: three client learning rates, times three values of
its one other hyperparameter. FedAvg, SCAFFOLD and FedNova have no other. The search takes 50 rounds with one seed, and
evaluates on a sixth of the training images, which no client has. Reported runs have 150 rounds on all training images
with three seeds, and are evaluated on the test images. A stored cell does not run again.
"""

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from gossamer import Method, Result, Task, simulate
from gossamer.tasks.task import deal
from reproduce.common import cells, cli, plots, tables
from reproduce.common.cells import Cell, first_round
from reproduce.common.seeds import spread
from reproduce.common.store import Facts

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PAGE, PLOT = "classics", "classics.svg"
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
"""The hyperparameter of each method that is tuned in addition to the learning rate, and its values."""
TARGETS = (70, 75, 80)


def cell(name: str, method: str, given: dict[str, Any], seed: int, rounds: int, every: int) -> Cell:
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
            yield cell(f"classics-search-{method}-{label}", method, given, 0, SEARCH_ROUNDS, SEARCH_ROUNDS)


def chosen(method: str) -> dict[str, float]:
    """Return the setting with the best accuracy on held-out training images in the last round of the search."""
    found = [(cells.read(cell), cell) for cell in search() if cell.method == method]
    best = max(found, key=lambda one: one[0]["last"])[1]
    return {name: value for name, value in best.given.items() if name not in COMMON}


def final() -> Iterator[Cell]:
    for method in OTHERS:
        for seed in SEEDS:
            yield cell(f"classics-{method}-{seed}", method, chosen(method), seed, ROUNDS, 5)


def on_held_out(method: Method, task: Task, **options: Any) -> Result:
    """Run with evaluation on the last sixth of the training images, which no client has."""
    train = task.data.train
    rest, held_out = np.split(np.arange(len(train)), [len(train) - len(train) // 6])
    data = replace(task.data, train=train.take(rest), test=train.take(held_out))
    mine = Task(task.model, data, deal(data, SPLIT, task.clients, options["seed"]))
    return simulate(method, mine, **options)


def more(cell: Cell, task: Task, result: Result) -> Facts:
    """Return all bytes of a round, in both directions."""
    last = result.metrics[-1]
    return {
        "bytes_round": sum(last["bytes_up"].values()) + sum(last["bytes_down"].values()),
        "bytes_down": last["bytes_down"],
        "rounds_told": [record["round"] for record in result.metrics if "accuracy" in record],
    }


def stored() -> dict[str, list[Facts]]:
    """Return the stored runs by method."""
    every = list(final())
    return {method: cells.read_all(cell for cell in every if cell.method == method) for method in OTHERS}


def table() -> str:
    """Return accuracy, bytes and rounds to the targets by method."""
    runs, rows = stored(), []
    fedavg_bytes = runs["fedavg"][0]["bytes_round"]
    heads = ["method", "setting", "last round", "with the bytes of 75 rounds of FedAvg", "MB per round"]
    heads += [f"rounds to {target} %" for target in TARGETS] + ["seeds"]
    for method, found in runs.items():
        given = " ".join(f"{name}={value:g}" for name, value in chosen(method).items())
        half = [at(one, 75 * fedavg_bytes) for one in found]
        row = [f"`{method}`", f"`{given}`", spread([one["last"] for one in found], 1), spread(half, 1)]
        row.append(f"{found[0]['bytes_round'] / 1e6:.1f}")
        row += [rounds([first_round(one, target) for one in found]) for target in TARGETS]
        rows.append([*row, str(len(found))])
    return tables.markdown(heads, rows)


def at(found: Facts, nbytes: float) -> float:
    """Return the accuracy of the last evaluated round within a budget of bytes, plus one percent for headers."""
    last = 1.01 * nbytes / found["bytes_round"]
    within = [a for r, a in zip(found["rounds_told"], found["accuracy"], strict=True) if r <= last]
    return float(within[-1])


def rounds(values: list[int | None]) -> str:
    """Format the mean over seeds; or the number of seeds that reach the target, if not all do."""
    there = [value for value in values if value is not None]
    if len(there) < len(values):
        return f"{len(there)} of {len(values)} seeds"
    return f"{statistics.mean(there):.0f}"


def draw() -> None:
    """Draw the mean accuracy over seeds, by round and by bytes."""

    def fill(figure: "Figure") -> None:
        panels = figure.subplots(1, 2, sharey=True)
        for number, (method, found) in enumerate(stored().items()):
            evaluated, mean = found[0]["rounds_told"], np.mean([one["accuracy"] for one in found], axis=0)
            panels[0].plot(evaluated, mean, label=method, **plots.style(number))
            panels[1].plot(np.array(evaluated) * found[0]["bytes_round"] / 1e9, mean, **plots.style(number))
        for axes, label in zip(panels, ("round", "GB, both directions"), strict=True):
            axes.set(xlabel=label, ylim=(40, None))
            plots.dress(axes)
        panels[0].set_ylabel("accuracy (%), mean of three seeds")
        figure.legend(loc="outside right center", frameon=False)

    plots.draw(PLOT, (10, 4), fill)


def main(argv: Sequence[str] | None = None) -> None:
    """Run the search and the reported runs, then render plot and page."""
    parser = cli.parser("Run eight classic methods on Fashion-MNIST.")
    parser.add_argument("--no-page", action="store_true", help="run cells only")
    asked = parser.parse_args(argv)
    cells.run(list(search()), asked.data_dir, asked.jobs, asked.seconds, more, on_held_out)
    cells.run(list(final()), asked.data_dir, asked.jobs, asked.seconds, more)
    if not asked.no_page:
        tables.write(PAGE, table())
        draw()


if __name__ == "__main__":
    main()
