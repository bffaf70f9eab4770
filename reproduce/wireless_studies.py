"""What the wireless experiments run: the settings, and the cells of each study.

All that is likely to be changed stands at the top. Everything is small enough for one core of a laptop: an MLP of 64
hidden units (55,050 parameters), a few hundred images a device.
"""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import cells
from cells import Cell

DEVICES = 20
TARGET = 80.0
"""Accuracy, in per cent, whose price is told."""
PRUNED, MEASURED = 0.3, 1.0
"""Share of the weights that are left out, and measurements for each that is left."""
EACH, SPLIT, ROUNDS, EVERY = 200, "iid", 150, 5
"""Of ``compare``: images a device, how they are dealt, rounds of one gradient, rounds between evaluations."""
LOCAL_ROUNDS = {"eden": 12, "fedmrn": 24}
"""Of methods that train for epochs, which are evaluated after each."""
FEW, SKEWED, SHORT = 50, "labels:3", 30
"""Of ``retention``: images a device, how they are dealt, rounds."""
SEEDS = (0, 1, 2, 3, 4)
SEARCHED = 100
"""The seed on which retention's step sizes are searched; no table uses it."""


class Row(NamedTuple):
    """A row of a table: a recipe, what it is given, and the step sizes that are tried."""

    method: str
    given: dict[str, Any]
    rates: tuple[float, ...]
    told: str
    prune: float = 0.0

    @property
    def local(self) -> bool:
        """Whether clients train for epochs."""
        return self.method in LOCAL_ROUNDS


STEPS, TRIED = (0.2, 0.4), (0.05, 0.1, 0.2, 0.4)
"""Step sizes of one gradient a round in ``compare``, and in ``retention``."""
ONE_BIT: dict[str, Any] = {"ratio": (PRUNED,), "measurements": MEASURED}
COMPARED = {
    "dense": Row("fedsgd", {}, STEPS, "dense gradients: FedSGD"),
    "pruned": Row("fedsgd", {}, STEPS, "pruned, what is left goes dense", PRUNED),
    "one-bit": Row("onebit-cs", {**ONE_BIT, "retain": "nothing"}, STEPS, "pruned, one-bit CS, nothing retained"),
    "one-bit-change": Row("onebit-cs", {**ONE_BIT, "retain": "change"}, STEPS, "the same, lost gradients retained"),
    "one-bit-signs": Row(
        "onebit-cs",
        {**ONE_BIT, "retain": "signs", "fresh": False},
        STEPS,
        "the same with one matrix for all rounds, lost signs retained",
    ),
    "eden": Row("eden", {"epochs": 5}, (0.05, 0.1), "5 epochs, one bit a weight"),
    "fedmrn": Row("fedmrn", {"epochs": 5}, (0.1, 0.3), "5 epochs, masks over noise, one bit a weight"),
}
RETAINED = {
    "nothing": Row("onebit-cs", {**ONE_BIT, "retain": "nothing"}, TRIED, "nothing"),
    "change": Row("onebit-cs", {**ONE_BIT, "retain": "change"}, TRIED, "the gradient, one round"),
    "accumulate": Row(
        "onebit-cs", {**ONE_BIT, "retain": "change", "accumulate": True}, TRIED, "gradients until they arrive"
    ),
    "nothing-fixed": Row("onebit-cs", {**ONE_BIT, "retain": "nothing", "fresh": False}, TRIED, "nothing, one matrix"),
    "signs": Row(
        "onebit-cs",
        {**ONE_BIT, "retain": "signs", "fresh": False},
        TRIED,
        "signs, one round, one matrix",
    ),
}


def compared(name: str, lr: float) -> Cell:
    """A run of ``compare``."""
    row = COMPARED[name]
    rounds, every = (LOCAL_ROUNDS[row.method], 1) if row.local else (ROUNDS, EVERY)
    made = _cell(f"wireless-compare-{name}-lr-{lr:g}", row, lr, "wireless_cell.toml", SPLIT, EACH)
    return made._replace(rounds=rounds, eval_every=every)


def retained(name: str, lr: float, seed: int) -> Cell:
    """A run of ``retention`` or of the search before it."""
    made = _cell(f"wireless-retention-{name}-lr-{lr:g}-{seed}", RETAINED[name], lr, "wireless_far.toml", SKEWED, FEW)
    return made._replace(rounds=SHORT, eval_every=SHORT // 3, seed=seed)


def _cell(name: str, row: Row, lr: float, fleet: str, split: str, samples: int) -> Cell:
    return Cell(
        name,
        row.method,
        {"lr": lr, **row.given},
        "fashion-mnist",
        "mlp-64",
        split,
        seed=0,
        rounds=0,
        clients=DEVICES,
        per_round=DEVICES,
        executor="one-by-one",
        samples=samples,
        fleet=fleet,
        prune=row.prune,
    )


def compare() -> Iterator[Cell]:
    """All rows with all their step sizes, the likeliest first."""
    for at in range(max(len(row.rates) for row in COMPARED.values())):
        yield from (compared(name, row.rates[at]) for name, row in COMPARED.items() if at < len(row.rates))


def search() -> Iterator[Cell]:
    """Step sizes of retention, on a seed of its own."""
    return (retained(name, lr, SEARCHED) for name, row in RETAINED.items() for lr in row.rates)


def best(name: str) -> float | None:
    """The step size with the least loss in the search; none before that is done."""
    tried = {lr: retained(name, lr, SEARCHED) for lr in RETAINED[name].rates}
    if not all(cell.path.exists() for cell in tried.values()):
        return None
    return min(tried, key=lambda lr: float(cells.read(tried[lr])["losses"][-1]))


def retention() -> Iterator[Cell]:
    """What is retained of lost messages, on all seeds with the step size that the search found for each."""
    for seed in SEEDS:
        yield from (retained(name, lr, seed) for name in RETAINED if (lr := best(name)) is not None)


STUDIES: dict[str, Callable[[], Iterator[Cell]]] = {"compare": compare, "search": search, "retention": retention}


def cost(cell: Cell) -> float:
    """A run's operations in units of 10^15, roughly."""
    epochs: int = cell.given.get("epochs", 1)
    return 6 * 54_912 * cell.rounds * cell.per_round * cell.samples * epochs / 1e15
