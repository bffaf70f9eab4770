"""What the sub-model experiments run: the setting, what the paper says, and the cells of each study.

All that is likely to be changed stands at the top. A full-width client's epoch of 500 images is 1.65 TFLOP, so a run of
150 rounds at full width is 2.5 PFLOP, one with the five widths drawn 0.7, and one at 1/4 or less below 0.2; evaluating
the whole model 15 times is 0.2 more. ``python reproduce/submodel.py --list`` adds that up.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from cells import Cell

import gossamer
from gossamer import Method
from gossamer.fleet.capacity import SHARES

ROUNDS = 60
RATE = 0.02
SCHEDULE = f"steps:{ROUNDS // 2}+{3 * ROUNDS // 4},0.25"
EVERY = 10
"""Evaluate every so many rounds: at 1/16 of the width, evaluating costs more than training."""
STATISTICS = "batch:100"
"""Static norms take those of the test batch at hand, in the order of the test set: FedRolex's choice."""
COMPILED, AS_IT_IS = "", "captured-plain"
"""What trains clients on a GPU: a width is compiled in some 20 seconds, which pays for whole models alone."""

SEEDS = (0, 1, 2)
SEARCHED_ON, SEARCH_ROUNDS, RATES = 100, 30, (0.1, 0.05, 0.02, 0.01)  # a seed that no table uses

GIVEN: dict[str, Any] = {
    "lr": RATE,
    "epochs": 1,
    "batch": 10,
    "weights": "uniform",
    "momentum": 0.9,
    "weight_decay": 5e-4,
    "clip": 1.0,
    "over": "holders",
    "labels": "own",
}

METHODS: dict[str, tuple[str, dict[str, Any]]] = {
    "rolling": ("fedrolex", {}),
    "shuffled": ("submodel-rolling", {}),
    "random": ("submodel-random", {}),
    "published": ("submodel-random", {"streams": False}),
    "static": ("heterofl", {}),
}
"""Windows in FedRolex's order; Algorithm 2's shuffled ones; random as it should be; as published; HeteroFL."""

CAPACITIES: dict[str, dict[str, Any]] = {
    "mixed": {"capacities": SHARES, "drawn": True},
    "1": {"capacities": (1.0,)},
    "1-4": {"capacities": (1 / 4,)},
    "1-8": {"capacities": (1 / 8,)},
    "1-16": {"capacities": (1 / 16,)},
    "1-4+1-8": {"capacities": (1 / 4, 1 / 8), "drawn": True},
}

SETS = {"cifar-10": {"high": 2, "low": 5}, "cifar-100": {"high": 20, "low": 50}}
"""Labels a client, by data set and heterogeneity."""

FULL = "full"
PAPER_GAPS: dict[tuple[str, str], tuple[float, float, float, float]] = {
    ("high", "random"): (0.9744, 0.9618, 66.124, 65.74),
    ("high", FULL): (0.7592, 0.7402, 74.322, 75.81),
    ("low", "random"): (0.501, 0.5164, 83.014, 82.92),
    ("low", FULL): (0.4379, 0.471, 85.46, 84.62),
}
"""Tables 1 and 2: training and test loss, training and test accuracy."""

PAPER_STATIC = {"static": (34.37, 2.5026), "rolling": (35.30, 2.4681)}
"""Table 4, CIFAR-100, high heterogeneity, 1/4 and 1/8: accuracy and loss."""

PAPER_COSTS: dict[tuple[str, str, str, str], tuple[float, float]] = {
    ("cifar-100", "low", "mixed", "random"): (0.389838, 9.161714),
    ("cifar-100", "low", "mixed", "rolling"): (0.388406, 8.922342),
    ("cifar-10", "high", "mixed", "random"): (0.392070, 9.700524),
    ("cifar-10", "high", "mixed", "rolling"): (0.382314, 9.633329),
    ("cifar-10", "low", "1", "random"): (1.0, 10.088458),
    ("cifar-10", "low", "1", "rolling"): (1.0, 9.967106),
    ("cifar-10", "high", "1-16", "random"): (0.0625, 5.758695),
    ("cifar-10", "high", "1-16", "rolling"): (0.0625, 5.757487),
}
"""Tables 5 to 8: model rate, seconds a round."""


def recipe(method: str, **given: Any) -> Method:
    """A method of the tables."""
    name, own = METHODS[method]
    return gossamer.METHODS[name](**{**GIVEN, **own, **given})


def cell(data: str, labels: str, capacity: str, method: str, seed: int = 0) -> Cell:
    """One run of the tables."""
    name, own = METHODS[method]
    return Cell(
        name=f"submodel-{data}-{labels}-{capacity}-{method}-{seed}",
        method=name,
        given=GIVEN | CAPACITIES[capacity] | own,
        data=f"{data}:norm=fedrolex",
        model="resnet18",
        split=f"shards:{SETS[data][labels]}",
        seed=seed,
        rounds=ROUNDS,
        statistics=STATISTICS,
        schedule=SCHEDULE,
        eval_every=EVERY,
        executor=COMPILED if capacity == "1" else AS_IT_IS,
    )


def grid(data: str, labels: str, capacity: str, methods: Iterable[str], seed: int = 0) -> Iterator[Cell]:
    """Several methods in one setting."""
    return (cell(data, labels, capacity, method, seed) for method in methods)


EVERYTHING = ("rolling", "random", "published", "static", "shuffled")
WHOLE = ("rolling", "published")
"""At capacity 1 all methods but the published draw are federated averaging."""


def high() -> Iterator[Cell]:
    """Figures 1 and 3, Tables 1, 6 and 8, on CIFAR-10; what takes longest is begun first."""
    yield from grid("cifar-10", "high", "1", WHOLE)
    yield from grid("cifar-10", "high", "mixed", EVERYTHING)
    yield from grid("cifar-10", "high", "1-16", EVERYTHING)


def narrow() -> Iterator[Cell]:
    """Table 4's capacities, on CIFAR-10."""
    for capacity in ("1-4", "1-8"):
        yield from grid("cifar-10", "high", capacity, EVERYTHING)


def low() -> Iterator[Cell]:
    """Figures 2 and 4, Tables 2 and 7, on CIFAR-10; what takes longest comes last, as it may be left out."""
    yield from grid("cifar-10", "low", "mixed", EVERYTHING)
    yield from grid("cifar-10", "low", "1-16", EVERYTHING)
    yield from grid("cifar-10", "low", "1", WHOLE)


def seeds() -> Iterator[Cell]:
    """The comparison that matters most, with more seeds."""
    for seed in SEEDS[1:]:
        yield from grid("cifar-10", "high", "mixed", ("rolling", "random", "published"), seed)
        yield from grid("cifar-10", "high", "1", WHOLE, seed)


def search() -> Iterator[Cell]:
    """Learning rates, a few rounds each, at a constant rate."""
    for rate in RATES:
        for method in ("rolling", "random"):
            usual = cell("cifar-10", "high", "mixed", method, SEARCHED_ON)
            name, given = f"submodel-search-{method}-lr-{rate:g}", {**usual.given, "lr": rate}
            yield usual._replace(name=name, given=given, rounds=SEARCH_ROUNDS, schedule="constant")


def cifar_100() -> Iterator[Cell]:
    """Table 4, Figures 1 and 2 and Table 5, on CIFAR-100."""
    yield from grid("cifar-100", "high", "1-4+1-8", ("rolling", "static"))
    for labels in ("high", "low"):
        yield from grid("cifar-100", labels, "mixed", ("rolling", "random", "published"))


STUDIES: dict[str, Callable[[], Iterator[Cell]]] = {
    "high": high,
    "narrow": narrow,
    "low": low,
    "seeds": seeds,
    "search": search,
    "cifar-100": cifar_100,
}
DEFAULT = ("high", "narrow", "low")
"""What is run unless something else is asked for, the most important first."""


def cost(cell: Cell) -> float:
    """A run's operations in units of 10^15, roughly: they go with the square of the width."""
    widths: tuple[float, ...] = cell.given["capacities"]
    image = 3 * 1.1e9 * sum(width**2 for width in widths) / len(widths)
    return (cell.rounds * cell.per_round * 500 * image + cell.rounds // cell.eval_every * 1e4 * 1.1e9) / 1e15
