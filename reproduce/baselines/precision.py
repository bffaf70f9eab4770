"""FedAvg trained in float32, tf32 and bf16: accuracy and times.

    make reproduce WHAT=precision REPRODUCE="--data-dir DIR --jobs 3"

The settings are those of FedMRN's Table 1 (https://arxiv.org/abs/2408.03220): 100 clients with three labels each, 10
per round, 10 epochs in batches of 64. Fashion-MNIST has CNN4 and 50 rounds instead of the paper's 100, CIFAR-10 has
CNN8 and 50 rounds instead of 200. The bundled digits have an MLP, 50 clients, batches of 16 and 100 rounds, so that a
CPU can run them. Three seeds. A seed has the same split, cohorts and batches in every precision. A CPU has no tf32:
these cells are skipped.
"""

from collections.abc import Iterator, Sequence
from functools import partial

from gossamer import Result, Task
from gossamer.tasks.precision import FLOAT32, PRECISIONS
from reproduce.common import cells, cli, tables
from reproduce.common.cells import Cell, Studies
from reproduce.common.seeds import by_seed, interval, paired, spread
from reproduce.common.store import Facts
from reproduce.fedmrn.studies import CIFAR, FASHION, given

PAGE, SEEDS = "precision", (0, 1, 2)
ROUNDS = {"digits": 100, "fashion": 50, "cifar": 50}
WORKLOADS = {"digits": ("digits", "mlp"), "fashion": (FASHION, "cnn4"), "cifar": (CIFAR, "cnn8")}
"""Data and network by study."""
HEADS = [
    "data",
    "network",
    "precision",
    "accuracy, last round",
    "minus float32",
    "seconds per round",
    "executor",
    "seeds",
]


def cell(study: str, precision: str, seed: int) -> Cell:
    """Return the run of a study in a precision."""
    (data, model), name = WORKLOADS[study], f"precision-{study}-{precision}-{seed}"
    made = Cell(name, "fedavg", given("fedavg"), data, model, "labels:3", seed, ROUNDS[study])
    made = made._replace(eval_every=10, precision=precision)
    return made._replace(given={**made.given, "batch": 16, "lr": 0.1}, clients=50) if study == "digits" else made


def digits() -> Iterator[Cell]:
    """The bundled digits with an MLP: small enough for a CPU."""
    return (cell("digits", precision, seed) for seed in SEEDS for precision in PRECISIONS)


def fashion() -> Iterator[Cell]:
    """Fashion-MNIST with CNN4, seed after seed."""
    return (cell("fashion", precision, seed) for seed in SEEDS for precision in PRECISIONS)


def cifar() -> Iterator[Cell]:
    """CIFAR-10 with CNN8, seed after seed."""
    return (cell("cifar", precision, seed) for seed in SEEDS for precision in PRECISIONS)


STUDIES: Studies = {"digits": digits, "fashion": fashion, "cifar": cifar}


def more(cell: Cell, task: Task, result: Result) -> Facts:
    """Store the median time of a round, and the seconds until the executor was ready."""
    return {**cells.timed(result), "ready": round(sum(r["seconds"].get("prepare", 0) for r in result.metrics), 1)}


def row(study: str, precision: str) -> list[str]:
    """Return the row of a precision; only its names if it was not run."""
    (data, model), last = WORKLOADS[study], lambda facts: float(facts["last"])
    names = [f"`{data.partition(':')[0]}`", f"`{model}`", f"`{precision}`"]
    mine, base = (by_seed(partial(cell, study, name), SEEDS) for name in (precision, FLOAT32))
    if not mine:
        return [*names, "not run", "", "", "", "0"]
    apart = paired(mine, base, last) if precision != FLOAT32 else []
    times, executors = ({facts[what] for facts in mine.values()} for what in ("round_seconds", "executor"))
    accuracy, difference = spread(list(map(last, mine.values()))), interval(apart) if apart else ""
    return [*names, accuracy, difference, spread(sorted(times), 3), ", ".join(sorted(executors)), str(len(mine))]


def page() -> str:
    """Return the table of all rows, and what was not run."""
    rows = [row(study, precision) for study in WORKLOADS for precision in PRECISIONS]
    return tables.joined([tables.markdown(HEADS, rows), tables.missing(STUDIES)])


REPRODUCTION = cli.Reproduction(
    PAGE,
    "Train FedAvg in float32, tf32 and bf16.",
    STUDIES,
    page,
    methods="precisions",
    labels=lambda cell: (cell.precision,),
    more=more,
)


def main(argv: Sequence[str] | None = None) -> None:
    """Run the missing cells, then render the page."""
    REPRODUCTION.main(argv)


if __name__ == "__main__":
    main()
