"""Settings of the sub-model experiments, published values, and the cells of each study.

The settings most likely to change are at the top. A full-width client's epoch of 500 images is 1.65 TFLOP. A run of 150
rounds costs 2.5 PFLOP at full width, 0.7 with the five widths drawn, and less than 0.2 at 1/4 or below. Evaluating the
whole model 15 times adds 0.2. ``python -m reproduce submodel --list`` adds up the cost.
"""

from collections.abc import Iterable, Iterator
from typing import Any

import gossamer
from gossamer import Method
from gossamer.fleet.capacity import SHARES
from reproduce.common.cells import Cell, Studies

ROUNDS = 60
RATE = 0.02
SCHEDULE = f"steps:{ROUNDS // 2}+{3 * ROUNDS // 4},0.25"
EVERY = 10
"""Rounds between evaluations: at width 1/16, evaluation costs more than training."""
STATISTICS = "batch:100"
"""Static norms use the statistics of each test batch, in the order of the test set, as in FedRolex."""
COMPILED, AS_IT_IS = "", "captured-plain"
"""Executors on a GPU: compiling a width takes about 20 seconds, which only pays off for whole models."""

SEEDS = (0, 1, 2)
SEARCHED_ON, SEARCH_ROUNDS, RATES = 100, 30, (0.1, 0.05, 0.02, 0.01)
"""Seed of the search, which no table uses; its rounds; and the learning rates."""

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
"""FedRolex; Algorithm 2; random channels, the same in a whole residual stream; random as published; HeteroFL."""

CAPACITIES: dict[str, dict[str, Any]] = {
    "mixed": {"capacities": SHARES, "drawn": True},
    "1": {"capacities": (1.0,)},
    "1-4": {"capacities": (1 / 4,)},
    "1-8": {"capacities": (1 / 8,)},
    "1-16": {"capacities": (1 / 16,)},
    "1-4+1-8": {"capacities": (1 / 4, 1 / 8), "drawn": True},
}

SETS = {"cifar-10": {"high": 2, "low": 5}, "cifar-100": {"high": 20, "low": 50}}
"""Labels per client, by data set and heterogeneity."""

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
"""Tables 5 to 8: model rate, seconds per round."""


def recipe(method: str, **given: Any) -> Method:
    """Return a method of the tables."""
    name, own = METHODS[method]
    return gossamer.METHODS[name](**{**GIVEN, **own, **given})


def cell(data: str, labels: str, capacity: str, method: str, seed: int = 0) -> Cell:
    """Return a cell of the tables."""
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
    """Return several methods in one setting."""
    return (cell(data, labels, capacity, method, seed) for method in methods)


EVERYTHING = ("rolling", "random", "published", "static", "shuffled")
WHOLE = ("rolling", "published")
"""At capacity 1 all methods except the published draw are FedAvg."""


def high() -> Iterator[Cell]:
    """Figures 1 and 3, Tables 1, 6 and 8, on CIFAR-10; the longest cells first."""
    yield from grid("cifar-10", "high", "1", WHOLE)
    yield from grid("cifar-10", "high", "mixed", EVERYTHING)
    yield from grid("cifar-10", "high", "1-16", EVERYTHING)


def narrow() -> Iterator[Cell]:
    """Table 4's capacities, on CIFAR-10."""
    for capacity in ("1-4", "1-8"):
        yield from grid("cifar-10", "high", capacity, EVERYTHING)


def low() -> Iterator[Cell]:
    """Figures 2 and 4, Tables 2 and 7, on CIFAR-10; the longest cells last, since time may run out."""
    yield from grid("cifar-10", "low", "mixed", EVERYTHING)
    yield from grid("cifar-10", "low", "1-16", EVERYTHING)
    yield from grid("cifar-10", "low", "1", WHOLE)


def seeds() -> Iterator[Cell]:
    """The main comparison with more seeds."""
    for seed in SEEDS[1:]:
        yield from grid("cifar-10", "high", "mixed", ("rolling", "random", "published"), seed)
        yield from grid("cifar-10", "high", "1", WHOLE, seed)


def search() -> Iterator[Cell]:
    """Learning rates without a schedule, a few rounds each."""
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


STUDIES: Studies = {
    "high": high,
    "narrow": narrow,
    "low": low,
    "seeds": seeds,
    "search": search,
    "cifar-100": cifar_100,
}
DEFAULT = ("high", "narrow", "low")
"""Studies that run by default, the most important first."""


def cost(cell: Cell) -> float:
    """Return the rough cost of a run in units of 10^15 operations, quadratic in the width."""
    widths: tuple[float, ...] = cell.given["capacities"]
    image = 3 * 1.1e9 * sum(width**2 for width in widths) / len(widths)
    return (cell.rounds * cell.per_round * 500 * image + cell.rounds // cell.eval_every * 1e4 * 1.1e9) / 1e15
