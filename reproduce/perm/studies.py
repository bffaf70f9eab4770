"""Settings of the PERM experiments, candidate step sizes, and the cells of each study.

The settings most likely to change are at the top. A client's round on CIFAR-10 is 20 batches of 50 images, 26 GFLOP. A
run of 60 rounds with 50 clients is 0.08 PFLOP without evaluation; pFedMe takes five times as much. ``python -m
reproduce perm --only cifar --list`` adds up the cost.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from reproduce.common import cells
from reproduce.common.cells import Cell, Studies

ROUNDS, CLIENTS, SEEDS = 100, 50, (0, 1, 2)
WARMUP = 10
"""Rounds without personalization, as in the paper."""
AVERAGED = 20
"""Rounds of FedAvg before the comparison of clients, for the maps of mixing weights."""
SEARCHED_ON = 100
"""Seed of the search; no table uses it."""
WEIGHTED = (1, 2, 4, 8, 16, 32, 64)
"""Rounds of FedAvg after which the error of mixing weights is measured."""
WEIGHTS_LAMBDA = 160.0
"""Lambda of these runs, about that of the synthetic runs: it must not depend on the global model."""
BOUND = {"logistic": 10.0, "mlp": 0.5, "cnn2": 0.1}
"""The largest product of learning rate and loss factor. A larger one is divided among several visits. The MLP has the
recipe's default, with which the CNN diverges."""

PERM = ("perm", "perm-two-stage")
BASELINES = ("fedavg-tuned", "per-fedavg", "pfedme")
REFERENCES = ("local", "fedavg")
METHODS = (*PERM, *BASELINES, *REFERENCES)


class Setting(NamedTuple):
    """Data, network and training of an experiment.

    Args:
        data: data set
        model: network
        split: partition of the data among clients
        steps: local steps per round
        samples: approximate number of training samples per client
        tests: number of test samples
        forward: operations of a forward pass of one sample
        rounds: number of rounds
        every: rounds between evaluations
        batch: batch size
        executor: executor of local training; chosen by the device if empty
        warmup: rounds of PERM without personalization
        searched: rounds of the search for step sizes
    """

    data: str
    model: str
    split: str
    steps: int
    samples: int
    tests: int
    forward: float
    rounds: int = ROUNDS
    every: int = 5
    batch: int = 50
    executor: str = ""
    warmup: int = WARMUP
    searched: int = ROUNDS


def _generated(data: str, averaged: int | None = None) -> Setting:
    """Return the synthetic data; with ``averaged`` rounds of FedAvg, the run ends with the comparison after them."""
    made = Setting(data, "logistic", "natural", 8, 400, 5_000, 244, executor="stacked")
    return made if averaged is None else made._replace(rounds=averaged + 1, warmup=averaged, every=averaged + 1)


def _mnist(split: str) -> Setting:
    rounds, executor = AVERAGED + 10, "stacked"
    return Setting("mnist", "mlp", split, 10, 1_200, 10_000, 398_420, rounds, 10, executor=executor, warmup=AVERAGED)


def _cifar(rounds: int = WARMUP + CLIENTS) -> Setting:
    """Return the setting; an epoch has about ten rounds, as a client's classes are those of nine others."""
    executor = "captured-plain"
    return Setting(
        "cifar-10:augment=no", "cnn2", "slices:2", 20, 1_000, 10_000, 8.7e6, rounds, 10, executor=executor, searched=30
    )


SETTINGS = {
    "synthetic": _generated("two-populations"),
    "literal": _generated("two-populations-literal"),
    "iid": _mnist("iid"),
    "one-class": _mnist("labels:1"),
    "cifar": _cifar(),
    "cifar-longer": _cifar(rounds=WARMUP + 5 * CLIENTS),
    **{f"weights-{rounds}": _generated("two-populations", rounds) for rounds in WEIGHTED},
    "femnist": Setting("femnist", "mlp", "natural:min_samples=50", 20, 200, 1_000, 420_000),
}


# Step sizes. The name of each choice is part of the name of its cell.

Choices = dict[str, dict[str, Any]]


def _by_rate(method: str, rates: Iterable[float]) -> Choices:
    """Return one choice per rate, with the same rate for all rates of a method."""
    more = {"perm-two-stage": ("global_lr",), "per-fedavg": ("inner",)}.get(method, ())
    return {f"{rate:g}": dict.fromkeys(("lr", *more), rate) for rate in rates}


def _tried(rates: tuple[float, ...], pfedme: Choices, further: tuple[float, ...] = ()) -> dict[str, Choices]:
    """Return the same rates for all methods, and further ones for methods that were best with the largest."""
    longer = dict.fromkeys(("per-fedavg", "local"), (*rates, *further))
    return {method: pfedme if method == "pfedme" else _by_rate(method, longer.get(method, rates)) for method in METHODS}


def _pulled(lam: float, personal_lr: float) -> dict[str, float]:
    """Return pFedMe's parameters. Its global model moves 0.3 of the way to the personal one in each step."""
    return {"lam": lam, "personal_lr": personal_lr, "lr": 0.3 / lam}


TRIED = {
    "synthetic": _tried(
        (0.3, 1.0, 3.0),
        {f"lam-{lam:g}": _pulled(lam, rate) for lam, rate in ((15, 0.05), (2, 0.3), (0.3, 1.0), (0.05, 1.0))},
        further=(10.0,),
    ),
    "cifar": {
        **_tried((0.02, 0.05, 0.1), {f"{rate:g}": _pulled(15, rate) for rate in (0.01, 0.03)}),
        "per-fedavg": _by_rate("per-fedavg", (0.005, 0.01, 0.02)),
    },
}
"""On CIFAR-10 with 0.1, pFedMe and Per-FedAvg are not finite after five rounds. Per-FedAvg's loss rises with 0.02."""
FIXED = {"weights": 1.0}
"""Rates that are not searched: the error of mixing weights is measured with the best rate of FedAvg."""
GUESSED = 1
"""Index of the choice that applies before a search."""
GIVEN = _tried((0.05,), {"0.05": _pulled(15, 0.05)})
"""Step sizes without a search."""
BASES = {"literal": "synthetic", "cifar-longer": "cifar", **{f"weights-{r}": "weights" for r in WEIGHTED}}
"""Settings that take the step sizes of another setting."""
TWINS = {"fedavg": "fedavg-tuned"}
"""Methods that take the step sizes of another method: FedAvg is ``fedavg-tuned`` without tuning."""


def choices(setting: str, method: str) -> Choices:
    """Return the candidate step sizes."""
    base = BASES.get(setting, setting)
    if base in FIXED:
        return _by_rate(method, (FIXED[base],))
    return TRIED[base][method] if base in TRIED else GIVEN[method]


def chosen(setting: str, method: str) -> str:
    """Return the choice with the best personal accuracy in the search; a default before the search is complete."""
    base, judged, names = BASES.get(setting, setting), TWINS.get(method, method), list(choices(setting, method))
    if len(names) == 1:
        return names[0]
    tried = {name: cell(base, judged, SEARCHED_ON, name) for name in names}
    if not all(each.stored for each in tried.values()):
        return names[GUESSED]
    found = {name: cells.read(each)["last"] for name, each in tried.items()}
    return max(names, key=lambda name: found[name])


# Cells.


def cell(setting: str, method: str, seed: int = 0, choice: str | None = None) -> Cell:
    """Return a cell; with the step sizes of the search, if none are given."""
    what, choice = SETTINGS[setting], choice or chosen(setting, method)
    alone = 5 if method == "local" else 1  # it also evaluates each client's model on the whole test set
    rounds = what.searched if seed == SEARCHED_ON else what.rounds
    return Cell(
        name=f"perm-{setting}-{method}-{choice}-{seed}",
        method=method,
        given={"steps": what.steps, "batch": what.batch, **_own(what, method), **choices(setting, method)[choice]},
        data=what.data,
        model=what.model,
        split=what.split,
        seed=seed,
        rounds=rounds,
        clients=CLIENTS,
        per_round=CLIENTS,
        eval_every=alone * what.every if what.model != "logistic" else what.every,
        executor=what.executor,
    )


def _own(what: Setting, method: str) -> dict[str, Any]:
    """Return the parameters of a method other than step sizes."""
    if method not in PERM:
        return {}
    given = {"warmup": what.warmup, "bound": BOUND[what.model], **({"global_lr": 0.1} if method == "perm" else {})}
    return given | ({"lambda_": WEIGHTS_LAMBDA} if what.warmup in WEIGHTED and what.model == "logistic" else {})


def grid(setting: str, methods: Iterable[str] = METHODS, seeds: Iterable[int] = SEEDS) -> Iterator[Cell]:
    """Return several methods and seeds in one setting."""
    return (cell(setting, method, seed) for seed in seeds for method in methods)


def search(setting: str) -> Iterator[Cell]:
    """Return all choices of all methods, with the seed of the search."""
    for method in (each for each in METHODS if each not in TWINS):
        for choice in choices(setting, method):
            yield cell(setting, method, SEARCHED_ON, choice)


def synthetic() -> Iterator[Cell]:
    """Figure 1, and the same with the paper's generator."""
    yield from grid("synthetic")
    yield from grid("literal")


def maps() -> Iterator[Cell]:
    """Figure 6."""
    for setting in ("one-class", "iid"):
        yield from grid(setting, ("perm-two-stage",), seeds=(0,))


def weights() -> Iterator[Cell]:
    """Theorem 1: mixing weights after some rounds of FedAvg."""
    for rounds in WEIGHTED:
        yield from grid(f"weights-{rounds}", ("perm-two-stage",))


def cifar_longer() -> Iterator[Cell]:
    """Figure 2 with more rounds."""
    return grid("cifar-longer", ("perm-two-stage",))


def femnist() -> Iterator[Cell]:
    """Figures 4 and 5."""
    return grid("femnist", ("perm", "fedavg-tuned", "per-fedavg", *REFERENCES))


def cost(cell: Cell) -> float:
    """Return the rough cost of a run in units of 10^15 operations: training, tuning, evaluation, no skipped visits."""
    what = SETTINGS[cell.name.removeprefix("perm-").partition(f"-{cell.method}-")[0]]
    each, evaluations = what.steps * what.batch, -(-cell.rounds // cell.eval_every)
    trained = 1.0 * cell.rounds * {"per-fedavg": 2, "pfedme": 5}.get(cell.method, 1) * each
    trained += {"perm": cell.rounds * 1.5 * what.samples}.get(cell.method, 0)
    trained += evaluations * {"fedavg-tuned": what.samples, "per-fedavg": what.batch}.get(cell.method, 0)
    tested = evaluations * what.tests * (CLIENTS if cell.method == "local" else 3)
    return (3 * CLIENTS * trained + tested) * what.forward / 1e15


def longest_first(study: Callable[[], Iterator[Cell]]) -> Callable[[], list[Cell]]:
    """Order the cells of a study by cost, so that parallel jobs end at about the same time."""
    return lambda: sorted(study(), key=cost, reverse=True)


STUDIES: Studies = {
    "search": longest_first(lambda: search("synthetic")),
    "synthetic": longest_first(synthetic),
    "weights": longest_first(weights),
    "maps": longest_first(maps),
    "cifar-search": longest_first(lambda: search("cifar")),
    "cifar": longest_first(lambda: grid("cifar")),
    "cifar-longer": longest_first(cifar_longer),
    "femnist": longest_first(femnist),
}
DEFAULT = ("search", "synthetic", "weights", "maps")
"""Studies that run by default: at most an hour on a CPU."""
