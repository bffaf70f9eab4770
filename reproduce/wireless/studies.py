"""Settings of the wireless experiments, and the cells of each study.

The settings most likely to change are at the top. Everything is small enough for one core of a laptop: an MLP with 64
hidden units (55,050 parameters), and at most 200 images per device.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

from reproduce.common import cells
from reproduce.common.cells import Cell, Studies

DEVICES = 20
TARGET = 80.0
"""Accuracy in percent whose energy and time are reported."""
PRUNED, MEASURED = 0.3, 1.0
"""Fraction of pruned weights, and measurements per kept weight."""
EACH, SPLIT, ROUNDS, EVERY = 200, "iid", 150, 5
"""Of ``compare``: images per device, partition, rounds of one gradient, rounds between evaluations."""
LOCAL_ROUNDS = {"eden": 12, "fedmrn": 24, "z-signfedavg": 12}
"""Rounds of the methods with local epochs, which are evaluated after each round."""
FEW, SKEWED, SHORT = 50, "labels:3", 30
"""Of ``retention``: images per device, partition, rounds."""
SEEDS = (0, 1, 2, 3, 4)
SEARCHED = 100
"""Seed of the search; no table uses it."""


class Row(NamedTuple):
    """A row of a table.

    Args:
        method: name of the recipe
        given: parameters of the recipe
        rates: candidate step sizes
        text: description in the tables
        prune: fraction of the smallest weights that clients prune
        retries: how often a lost message is sent again
    """

    method: str
    given: dict[str, Any]
    rates: tuple[float, ...]
    text: str
    prune: float = 0.0
    retries: int = 0

    @property
    def local(self) -> bool:
        """Whether clients train for several local epochs."""
        return self.method in LOCAL_ROUNDS


STEPS, TRIED = (0.2, 0.4), (0.05, 0.1, 0.2, 0.4)
"""Step sizes of one gradient per round in ``compare``, and in ``retention``."""
ONE_BIT: dict[str, Any] = {"ratio": (PRUNED,), "measurements": MEASURED}
COMPARED = {
    "dense": Row("fedsgd", {}, STEPS, "dense gradients: FedSGD"),
    "pruned": Row("fedsgd", {}, STEPS, "pruned, kept weights sent dense", PRUNED),
    "one-bit": Row("onebit-cs", {**ONE_BIT, "retain": "nothing"}, STEPS, "pruned, one-bit CS, nothing retained"),
    "one-bit-change": Row("onebit-cs", {**ONE_BIT, "retain": "change"}, STEPS, "the same, lost gradients retained"),
    "one-bit-signs": Row(
        "onebit-cs",
        {**ONE_BIT, "retain": "signs", "fresh": False},
        STEPS,
        "the same with one matrix for all rounds, lost signs retained",
    ),
    "eden": Row("eden", {"epochs": 5}, (0.05, 0.1), "5 epochs, one bit per weight"),
    "fedmrn": Row(
        "fedmrn",
        {"epochs": 5, "alpha": 0.01, "coded": False},
        (0.1, 0.3),
        "5 epochs, masks over noise, one bit per weight",
    ),
}
MEASURED_LESS = (0.05, 0.1, 0.25)
"""Of ``sweep``: measurements per kept weight, well below one."""
NOTHING: dict[str, Any] = {"ratio": (PRUNED,), "retain": "nothing"}
VARIED = {
    **{
        f"one-bit-{share:g}": Row(
            "onebit-cs", {**NOTHING, "measurements": share}, STEPS, f"`one-bit` with {share:g} measurements per weight"
        )
        for share in MEASURED_LESS
    },
    "one-bit-retry": Row(
        "onebit-cs",
        {**ONE_BIT, "retain": "nothing"},
        STEPS,
        "`one-bit`, messages sent up to three times",
        retries=2,
    ),
    "z-sign": Row("z-signfedavg", {"epochs": 5, "sigma": 0.5}, (0.05, 0.1), "5 epochs, signs of noisy updates"),
}
"""Rows of ``sweep``, which has the setting of ``compare``."""
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
    """Return a cell of ``compare``."""
    row = {**COMPARED, **VARIED}[name]
    rounds, every = (LOCAL_ROUNDS[row.method], 1) if row.local else (ROUNDS, EVERY)
    made = _cell(f"wireless-compare-{name}-lr-{lr:g}", row, lr, "wireless_cell.toml", SPLIT, EACH)
    return made._replace(rounds=rounds, eval_every=every)


def retained(name: str, lr: float, seed: int) -> Cell:
    """Return a cell of ``retention``, or of its search."""
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
        retries=row.retries,
    )


def compare() -> Iterator[Cell]:
    """All rows with all their step sizes, the most likely one first."""
    return _rows(COMPARED)


def sweep() -> Iterator[Cell]:
    """Fewer measurements, retransmission and another one-bit method, in the setting of ``compare``."""
    return _rows(VARIED)


def _rows(rows: dict[str, Row]) -> Iterator[Cell]:
    for at in reversed(range(max(len(row.rates) for row in rows.values()))):
        yield from (compared(name, row.rates[at]) for name, row in rows.items() if at < len(row.rates))


def search() -> Iterator[Cell]:
    """Step sizes of ``retention``, on a separate seed."""
    return (retained(name, lr, SEARCHED) for name, row in RETAINED.items() for lr in row.rates)


def best(name: str) -> float | None:
    """Return the step size with the lowest loss in the search; None before the search is complete."""
    tried = {lr: retained(name, lr, SEARCHED) for lr in RETAINED[name].rates}
    if not all(cell.stored for cell in tried.values()):
        return None
    return min(tried, key=lambda lr: float(cells.read(tried[lr])["losses"][-1]))


def retention() -> Iterator[Cell]:
    """Retention of lost messages on all seeds, each row with the step size of the search."""
    for seed in SEEDS:
        yield from (retained(name, lr, seed) for name in RETAINED if (lr := best(name)) is not None)


STUDIES: Studies = {"compare": compare, "sweep": sweep, "search": search, "retention": retention}


def cost(cell: Cell) -> float:
    """Return the rough cost of a run in units of 10^15 operations."""
    epochs: int = cell.given.get("epochs", 1)
    return 6 * 54_912 * cell.rounds * cell.per_round * cell.samples * epochs / 1e15
