"""Settings of the sub-model experiments, published values, and the cells of each study.

The settings most likely to change are at the top. A full-width client's epoch of 500 images is 1.65 TFLOP. A run of 150
rounds costs 2.5 PFLOP at full width, 0.7 with the five widths drawn, and less than 0.2 at 1/4 or below. Evaluating the
whole model 15 times adds 0.2. ``python -m reproduce submodel --list`` adds up the cost.
"""

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

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
    "shuffled-8": ("submodel-rolling", {"offsets": 8}),
    "fiarse": ("fiarse", {}),
    "rolling-cohort": ("fedrolex", {"over": "cohort"}),
    "shuffled-8-cohort": ("submodel-rolling", {"offsets": 8, "over": "cohort"}),
    "random-cohort": ("submodel-random", {"over": "cohort"}),
}
"""FedRolex; Algorithm 2; random channels, the same in a whole residual stream; random as published; HeteroFL;
Algorithm 2 with 8 offsets, so that a run has several epochs; FIARSE; and the paper's own aggregation."""

CAPACITIES: dict[str, dict[str, Any]] = {
    "mixed": {"capacities": SHARES, "drawn": True},
    "1": {"capacities": (1.0,)},
    "1-4": {"capacities": (1 / 4,)},
    "1-8": {"capacities": (1 / 8,)},
    "1-16": {"capacities": (1 / 16,)},
    "1-4+1-8": {"capacities": (1 / 4, 1 / 8), "drawn": True},
}

SETS = {"cifar-10": {"high": 2, "low": 5}, "cifar-100": {"high": 20, "low": 50}, "fashion": {"high": 2}}
"""Labels per client, by data set and heterogeneity."""


class Problem(NamedTuple):
    """A data set as it is loaded, its network, and the training samples per client; 0 partitions all samples."""

    data: str
    model: str
    samples: int = 0


PROBLEMS = {
    "cifar-10": Problem("cifar-10:norm=fedrolex", "resnet18"),
    "cifar-100": Problem("cifar-100:norm=fedrolex", "resnet18"),
    "fashion": Problem("fashion-mnist", "mlp", 100),
}

WEIGHTS = {
    "resnet18": {1.0: 1.0, 1 / 2: 1 / 4, 1 / 4: 1 / 16, 1 / 8: 1 / 64, 1 / 16: 1 / 256},
    "mlp": {1.0: 1.0, 1 / 2: 0.4498, 1 / 4: 0.2124, 1 / 8: 0.1031, 1 / 16: 0.0528},
}
"""Share of the weights in a network of each width: FIARSE's capacities, so that all methods send as many values."""

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
    problem, widths = PROBLEMS[data], CAPACITIES[capacity]
    if name == "fiarse":
        own = {**own, "capacities": tuple(WEIGHTS[problem.model][width] for width in widths["capacities"])}
    return Cell(
        name=f"submodel-{data}-{labels}-{capacity}-{method}-{seed}",
        method=name,
        given=GIVEN | widths | own,
        data=problem.data,
        model=problem.model,
        split=f"shards:{SETS[data][labels]}",
        seed=seed,
        rounds=ROUNDS,
        statistics=STATISTICS,
        schedule=SCHEDULE,
        eval_every=EVERY,
        executor=_executor(problem.model, name, capacity),
        samples=problem.samples,
    )


def _executor(model: str, recipe: str, capacity: str) -> str:
    if model != "resnet18":
        return "one-by-one"
    return COMPILED if capacity == "1" or recipe == "fiarse" else AS_IT_IS


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
    """More seeds of the published draw, and of whole models."""
    for seed in SEEDS[1:]:
        yield from grid("cifar-10", "high", "mixed", ("published",), seed)
        yield from grid("cifar-10", "high", "1", WHOLE, seed)


def epochs() -> Iterator[Cell]:
    """Drawn capacities with three seeds: Algorithm 2 with several epochs, FIARSE, and both kinds of aggregation."""
    for seed in SEEDS:
        yield from grid("cifar-10", "high", "mixed", ("fiarse",), seed)
    for seed in SEEDS:
        yield from grid("cifar-10", "high", "mixed", ("shuffled-8", "shuffled-8-cohort", "random-cohort"), seed)
    for seed in SEEDS:
        yield from grid("cifar-10", "high", "mixed", ("rolling-cohort",), seed)
        yield from grid("cifar-10", "high", "mixed", ("rolling", "random", "static") if seed else (), seed)


def table_4() -> Iterator[Cell]:
    """Table 4's capacities on CIFAR-10, three seeds."""
    for seed in SEEDS:
        yield from grid("cifar-10", "high", "1-4+1-8", ("rolling", "static"), seed)


def fashion() -> Iterator[Cell]:
    """The choices of sub-models on Fashion-MNIST with a small network, for a CPU."""
    for seed in SEEDS:
        yield from grid("fashion", "high", "mixed", ("rolling", "shuffled-8", "random", "static", "fiarse"), seed)
        yield from grid("fashion", "high", "1-16", ("rolling", "static", "fiarse"), seed)


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
    "epochs": epochs,
    "table-4": table_4,
    "fashion": fashion,
    "search": search,
    "cifar-100": cifar_100,
}
DEFAULT = ("high", "narrow", "low")
"""Studies that run by default, the most important first."""


def cost(cell: Cell) -> float:
    """Return the rough cost of a run in units of 10^15 operations, quadratic in the width; FIARSE computes densely."""
    widths: tuple[float, ...] = (1.0,) if cell.method == "fiarse" else cell.given["capacities"]
    if cell.model != "resnet18":
        return 0.0
    image = 3 * 1.1e9 * sum(width**2 for width in widths) / len(widths)
    return (cell.rounds * cell.per_round * 500 * image + cell.rounds // cell.eval_every * 1e4 * 1.1e9) / 1e15
