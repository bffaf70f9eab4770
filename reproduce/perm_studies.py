"""What the PERM experiments run: the settings, the step sizes that are tried, and the cells of each study.

All that is likely to be changed stands at the top. A client's round on CIFAR-10 is 20 batches of 50 images, 26 GFLOP,
so a run of 60 rounds with 50 clients is 0.08 PFLOP, evaluation not counted; pFedMe takes five times as much. ``python
reproduce/perm.py --only cifar --list`` adds that up.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import cells
from cells import Cell

ROUNDS, CLIENTS, SEEDS = 100, 50, (0, 1, 2)
WARMUP = 10
"""Rounds without personalisation: the paper's number."""
AVERAGED = 20
"""Rounds of FedAvg before clients are compared, where the weights are what is looked at."""
SEARCHED_ON = 100
"""A seed that no table uses."""
BOUND = {"logistic": 10.0, "mlp": 0.5, "cnn2": 0.1}
"""The largest learning rate times number of clients times weight: so large that no rate of the search is capped where
weights are spread over half of the clients; for the MLP the recipe's own, with which the CNN diverges."""

PERM = ("perm", "perm-two-stage")
BASELINES = ("fedavg-tuned", "per-fedavg", "pfedme")
REFERENCES = ("local", "fedavg")
METHODS = (*PERM, *BASELINES, *REFERENCES)


class Setting(NamedTuple):
    """What is trained on what.

    steps: local steps of a client in a round
    samples: training samples of a client, about
    tests: test samples in all
    forward: operations of a forward pass of one sample
    every: evaluate every so many rounds
    executor: what trains clients, where the machine is not to say
    warmup: rounds of PERM without personalisation
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


def _generated(data: str) -> Setting:
    return Setting(data, "logistic", "natural", 8, 400, 5_000, 244, executor="stacked")


def _mnist(split: str) -> Setting:
    rounds, executor = AVERAGED + 10, "stacked"
    return Setting("mnist", "mlp", split, 10, 1_200, 10_000, 398_420, rounds, 10, executor=executor, warmup=AVERAGED)


def _cifar(epochs: int = 1) -> Setting:
    """Warm-up, and epochs in each of which every model meets every client once."""
    rounds, executor = WARMUP + epochs * CLIENTS, "captured-plain"
    return Setting(
        "cifar-10:augment=no", "cnn2", "slices:2", 20, 1_000, 10_000, 8.7e6, rounds, 10, executor=executor, searched=30
    )


SETTINGS = {
    "synthetic": _generated("two-populations"),
    "literal": _generated("two-populations-literal"),
    "iid": _mnist("iid"),
    "one-class": _mnist("labels:1"),
    "cifar": _cifar(),
    "cifar-longer": _cifar(epochs=5),
    "femnist": Setting("femnist", "mlp", "natural:min_samples=50", 20, 200, 1_000, 420_000),
}


# Step sizes. Each choice has a name, which is part of the name of its cell.

Choices = dict[str, dict[str, Any]]


def _by_rate(method: str, rates: Iterable[float]) -> Choices:
    """One rate for all that a method has a rate for."""
    more = {"perm-two-stage": ("global_lr",), "per-fedavg": ("inner",)}.get(method, ())
    return {f"{rate:g}": dict.fromkeys(("lr", *more), rate) for rate in rates}


def _tried(rates: tuple[float, ...], pfedme: Choices, further: tuple[float, ...] = ()) -> dict[str, Choices]:
    """The same rates for all methods, and more for those that were best with the largest."""
    longer = dict.fromkeys(("per-fedavg", "local"), (*rates, *further))
    return {method: pfedme if method == "pfedme" else _by_rate(method, longer.get(method, rates)) for method in METHODS}


def _pulled(lam: float, personal_lr: float) -> dict[str, float]:
    """pFedMe, whose global model goes 0.3 of the way to the personal one in each step."""
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
"""On CIFAR-10 pFedMe and Per-FedAvg are not finite after five rounds with 0.1; Per-FedAvg's loss rises with 0.02."""
GUESSED = 1
"""Which of them counts until they were tried."""
GIVEN = _tried((0.05,), {"0.05": _pulled(15, 0.05)})
"""Where no search is made."""
BASES = {"literal": "synthetic", "cifar-longer": "cifar"}
"""Settings that take what was found for another."""
TWINS = {"fedavg": "fedavg-tuned"}
"""Methods that take what was found for another: this one is the same without tuning."""


def choices(setting: str, method: str) -> Choices:
    """What there is to choose from."""
    base = BASES.get(setting, setting)
    return TRIED[base][method] if base in TRIED else GIVEN[method]


def chosen(setting: str, method: str) -> str:
    """The choice with which clients' own models were best in the search; before that was made, a guess."""
    base, judged, names = BASES.get(setting, setting), TWINS.get(method, method), list(choices(setting, method))
    if len(names) == 1:
        return names[0]
    tried = {name: cell(base, judged, SEARCHED_ON, name) for name in names}
    if not all(each.path.exists() for each in tried.values()):
        return names[GUESSED]
    found = {name: cells.read(each)["last"] for name, each in tried.items()}
    return max(names, key=lambda name: found[name])


# Cells.


def cell(setting: str, method: str, seed: int = 0, choice: str | None = None) -> Cell:
    """One run; with the step sizes that were chosen, if none are named."""
    what, choice = SETTINGS[setting], choice or chosen(setting, method)
    alone = 5 if method == "local" else 1  # each client's model is evaluated on the whole test set too
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
    """What a method is given besides its step sizes."""
    if method not in PERM:
        return {}
    return {"warmup": what.warmup, "bound": BOUND[what.model], **({"global_lr": 0.1} if method == "perm" else {})}


def grid(setting: str, methods: Iterable[str] = METHODS, seeds: Iterable[int] = SEEDS) -> Iterator[Cell]:
    """Several methods and seeds in one setting."""
    return (cell(setting, method, seed) for seed in seeds for method in methods)


def search(setting: str) -> Iterator[Cell]:
    """All choices of all methods, once."""
    for method in (each for each in METHODS if each not in TWINS):
        for choice in choices(setting, method):
            yield cell(setting, method, SEARCHED_ON, choice)


def synthetic() -> Iterator[Cell]:
    """Figure 1, and the same with the paper's generator as it stands."""
    yield from grid("synthetic")
    yield from grid("literal")


def maps() -> Iterator[Cell]:
    """Figure 6."""
    for setting in ("one-class", "iid"):
        yield from grid(setting, ("perm-two-stage",), seeds=(0,))


def cifar_longer() -> Iterator[Cell]:
    """Figure 2 with as much work for PERM as for the others: four of five visits are to clients without weight."""
    return grid("cifar-longer", ("perm-two-stage",))


def femnist() -> Iterator[Cell]:
    """Figures 4 and 5."""
    return grid("femnist", ("perm", "fedavg-tuned", "per-fedavg", *REFERENCES))


STUDIES: dict[str, Callable[[], Iterator[Cell]]] = {
    "search": lambda: search("synthetic"),
    "synthetic": synthetic,
    "maps": maps,
    "cifar-search": lambda: search("cifar"),
    "cifar": lambda: grid("cifar"),
    "cifar-longer": cifar_longer,
    "femnist": femnist,
}
DEFAULT = ("search", "synthetic", "maps")
"""What is run unless something else is asked for: what needs no more than a CPU and an hour."""


def cost(cell: Cell) -> float:
    """A run's operations in units of 10^15, roughly: training, tuning and evaluation; no visit is skipped."""
    what = SETTINGS[cell.name.removeprefix("perm-").partition(f"-{cell.method}-")[0]]
    each, evaluations = what.steps * what.batch, -(-cell.rounds // cell.eval_every)
    trained = 1.0 * cell.rounds * {"per-fedavg": 2, "pfedme": 5}.get(cell.method, 1) * each
    trained += {"perm": cell.rounds * 1.5 * what.samples}.get(cell.method, 0)
    trained += evaluations * {"fedavg-tuned": what.samples, "per-fedavg": what.batch}.get(cell.method, 0)
    tested = evaluations * what.tests * (CLIENTS if cell.method == "local" else 3)
    return (3 * CLIENTS * trained + tested) * what.forward / 1e15
