"""Settings of FedMRN's experiments, published values, and the cells of each study."""

from collections.abc import Iterator
from itertools import product
from typing import Any

from gossamer.tasks.precision import TF32
from reproduce.baselines.codecs import TASKS
from reproduce.common.cells import Cell, Studies

FASHION, CIFAR = "fashion-mnist:norm=fedmrn", "cifar-10:norm=imagenet"
SPLITS = {"iid": "iid", "dirichlet-0.3": "dirichlet:0.3,min_samples=10", "labels-3": "labels:3"}
COMMON: dict[str, Any] = {"epochs": 10, "batch": 64}
SEEDS = (0, 1, 2)
SEARCHED_ON = 100
"""Seed of the search; no table uses it."""

SETTINGS: dict[str, dict[str, Any]] = {
    "fedavg": {"lr": 0.03, "weights": "batches"},
    "fedpm": {"lr": 0.03},
    "fedavg-pruned": {"lr": 0.03, "weights": "batches", "sparsity": 0.97},
    "signsgd": {"lr": 0.03, "scale": 0.005, "weights": "batches"},
    "topk": {"lr": 0.03, "weights": "batches"},
    "terngrad": {"lr": 0.03, "weights": "batches"},
    "drive": {"lr": 0.03, "scale": "least-squares", "weights": "batches"},
    "eden": {"lr": 0.03, "weights": "batches"},
    "fedmrn": {"lr": 0.1, "noise": "uniform", "alpha": 0.01, "coded": False, "weights": "batches"},
    "fedmrns": {"lr": 0.1, "noise": "uniform", "alpha": 0.005, "coded": False, "weights": "batches"},
}
"""The ten rows of Table 1. FedAvg and FedMRN have the published learning rates, the others those of the search."""

SEARCH: dict[str, list[dict[str, Any]]] = {
    "fedpm": [{"lr": 0.1}, {"lr": 0.03}],
    "fedavg-pruned": [{"lr": 0.1}, {"lr": 0.03}],
    "signsgd": [{"lr": 0.03, "scale": 0.005}, {"lr": 0.1, "scale": 0.005}, {"lr": 0.1, "scale": 0.01}],
    "topk": [{"lr": 0.1}, {"lr": 0.03}],
    "terngrad": [{"lr": 0.1}, {"lr": 0.03}],
    "drive": [{"lr": 0.1}, {"lr": 0.03}],
    "eden": [{"lr": 0.1}, {"lr": 0.03}],
}

PAPER = {
    "fedavg": (92.0, 90.5, 88.8),
    "fedpm": (81.7, 78.6, 74.6),
    "fedavg-pruned": (85.6, 80.9, 78.8),
    "signsgd": (91.1, 88.4, 87.1),
    "topk": (90.1, 88.6, 86.7),
    "terngrad": (91.4, 89.9, 87.9),
    "drive": (91.6, 89.9, 88.1),
    "eden": (91.4, 89.8, 88.3),
    "fedmrn": (91.8, 90.2, 88.6),
    "fedmrns": (92.0, 90.5, 88.9),
}
"""Table 1, Fashion-MNIST: IID, Non-IID-1, Non-IID-2."""
PAPER_LOSSES = {
    "fedpm": -36.4,
    "fedavg-pruned": -26.0,
    "signsgd": -4.7,
    "topk": -5.9,
    "terngrad": -2.3,
    "drive": -1.8,
    "eden": -1.8,
    "fedmrn": -0.7,
    "fedmrns": 0.1,
}
"""Table 2, Fashion-MNIST, as printed. Table 1's rounded values sum to -2.1 for TernGrad and -1.7 for DRIVE."""
PAPER_CIFAR = {"fedavg": 80.8, "signsgd": 76.2, "eden": 79.8, "fedmrn": 81.4, "fedmrns": 81.0}
"""Table 1, CIFAR-10: Non-IID-2."""
PAPER_SHAKESPEARE = {"fedavg": 51.2, "signsgd": 38.0, "eden": 49.6, "fedmrn": 51.1}
"""Table 3, first row."""

ABLATIONS: dict[str, dict[str, Any]] = {
    "whole": {},
    "without-sm": {"stochastic": False},
    "without-pm": {"progressive": False},
    "without-psm": {"stochastic": False, "progressive": False},
    "after-training": {"learn_masks": False, "lr": 0.03},
}
NOISES: list[dict[str, Any]] = [
    *({"noise": "uniform", "alpha": alpha} for alpha in (0.00125, 0.0025, 0.005, 0.01, 0.02)),
    *({"noise": kind, "alpha": alpha} for kind in ("gauss", "bernoulli") for alpha in (0.0025, 0.01)),
]

ROLES = 256
"""Roles with enough text for one sample."""
LETTERS: dict[str, dict[str, Any]] = {
    "fedavg": {},
    "fedmrn": {"noise": "uniform", "alpha": 0.003, "progressive": False, "coded": False},
    "fedmrns": {"noise": "uniform", "alpha": 0.0015, "progressive": False, "coded": False},
}
"""Shakespeare: masks from the first step, as in the appendix's code. Signed masks, not in it, get half the noise."""

MORE_NOISE, NOISE_ROUNDS = (0.01, 0.03), 25

AUTO: dict[str, Any] = {"noise": "bernoulli", "alpha": "auto", "block": None, "learn_masks": True, "coded": True}
"""Noise measured from the updates, one magnitude per tensor. The learning rate is FedAvg's."""
BLOCKS: dict[str, Any] = {**AUTO, "block": 256}
"""The same with a magnitude per 256 entries."""
DEFAULT: dict[str, Any] = {**BLOCKS, "learn_masks": False}
"""The same without masks in training: the default of the library."""
MEASURED = {"auto": AUTO, "blocks": BLOCKS, "default": DEFAULT}
"""The settings, by their part of a cell's name."""
CANDIDATES: dict[str, tuple[str, str, tuple[float, ...]]] = {
    "uniform": ("fedmrn", "uniform", (1.0, 1.5, 3.0)),
    "bernoulli": ("fedmrn", "bernoulli", (0.5, 0.75, 1.0, 1.5)),
    "signed-uniform": ("fedmrns", "uniform", (0.5, 1.0, 3.0)),
    "signed-bernoulli": ("fedmrns", "bernoulli", (0.25, 0.5, 1.0)),
}
"""Recipe, noise, and its magnitudes in units of the updates' own: candidates for the defaults of alpha auto."""
SEARCHED: dict[str, tuple[str, dict[str, Any]]] = {
    "fedavg": ("fedavg", {}),
    "eden": ("eden", {}),
    **{
        f"{name}-{spread:g}": (method, {**AUTO, "noise": noise, "spread": spread})
        for name, (method, noise, spreads) in CANDIDATES.items()
        for spread in spreads
    },
}
"""What the search compares on validation data: name of the cell, recipe and parameters."""

SEEN: dict[str, tuple[str, dict[str, Any]]] = {
    "fedavg": ("fedavg", {}),
    **{
        f"{method}-{label}": (method, {**BLOCKS, "learn_masks": label == "learned"})
        for method, label in product(("fedmrn", "fedmrns"), ("learned", "after-training"))
    },
}
"""Masks that training sees, or not: name, recipe and parameters."""
RATES: dict[str, tuple[str, dict[str, Any]]] = {
    "fedavg-3": ("fedavg", {"lr": 3.0}),
    "eden-3": ("eden", {"lr": 3.0}),
    **{
        f"{method}-{rate:g}": (method, {**BLOCKS, "lr": rate})
        for method, rate in product(("fedmrn", "fedmrns"), (3.0, 6.0, 10.0))
    },
    **{
        f"{method}-3-after-training": (method, {**BLOCKS, "lr": 3.0, "learn_masks": False})
        for method in ("fedmrn", "fedmrns")
    },
}
"""Learning rates of FedMRN on Shakespeare, and masks that training does not see: name, recipe and parameters."""
RATE_ROUNDS = 25

LESS_TEXT = "shakespeare:stride=4"
"""Every fourth character of a role is a sample, in training and in the test set."""
ROLE_METHODS: dict[str, tuple[str, dict[str, Any]]] = {
    "fedavg": ("fedavg", {}),
    "fedmrn-auto": ("fedmrn", AUTO),
    "fedmrns-auto": ("fedmrns", AUTO),
    "fedmrn-blocks": ("fedmrn", BLOCKS),
    "fedmrns-blocks": ("fedmrns", BLOCKS),
    "fedmrn-default": ("fedmrn", DEFAULT),
    "fedmrns-default": ("fedmrns", DEFAULT),
    "eden": ("eden", {}),
    "signsgd": ("signsgd", {}),
    "fedmrn-0.003-trained-base": (
        "fedmrn",
        {"noise": "uniform", "alpha": 0.003, "progressive": False, "train_base": True},
    ),
    "fedmrn-0.003": ("fedmrn", {"noise": "uniform", "alpha": 0.003, "progressive": False}),
}
"""Table 3 with weights by samples, as the authors have them: name of the cell, recipe and parameters."""
DIGITS: dict[str, tuple[str, dict[str, Any]]] = {
    "fedavg": ("fedavg", {}),
    "fedmrn-auto": ("fedmrn", AUTO),
    "fedmrns-auto": ("fedmrns", AUTO),
    "fedmrn-blocks": ("fedmrn", BLOCKS),
    "fedmrns-blocks": ("fedmrns", BLOCKS),
    "fedmrn-default": ("fedmrn", DEFAULT),
    "fedmrns-default": ("fedmrns", DEFAULT),
    "fedmrn-auto-2": ("fedmrn", {**AUTO, "spread": 2.0}),
    "fedmrn-auto-4": ("fedmrn", {**AUTO, "spread": 4.0}),
    "fedmrn-0.01": ("fedmrn", {"noise": "uniform", "alpha": 0.01}),
    "eden": ("eden", {}),
}
"""The bundled digits, with the defaults of the command line: name of the cell, recipe and parameters."""
HOLD_OUT = 10
"""Every tenth role, or sample, is for validation."""


def given(method: str, **more: Any) -> dict[str, Any]:
    """Return the parameters of a recipe."""
    return {**COMMON, **SETTINGS[method], **more}


def fashion(name: str, split: str, seed: int, method: str, rounds: int = 100, **more: Any) -> Cell:
    """Return a cell on Fashion-MNIST."""
    return Cell(name, method, given(method, **more), FASHION, "cnn4", SPLITS[split], seed, rounds)


def table1() -> Iterator[Cell]:
    """Table 1: three seeds of FedMRN and FedMRNS, one of the others. FedAvg's cells are those of ``fashion``."""
    for seed in SEEDS:
        for split in SPLITS:
            for method in SETTINGS:
                if seed == 0 or method in ("fedavg", "fedmrn", "fedmrns"):
                    label = "fashion" if method == "fedavg" else f"fedmrn-fashion-{method}"
                    yield fashion(f"{label}-{split}-{seed}", split, seed, method)


def search() -> Iterator[Cell]:
    """Search: a short run of each candidate."""
    for method, candidates in SEARCH.items():
        for wanted in candidates:
            label = "-".join(f"{name}-{value:g}" for name, value in wanted.items())
            yield fashion(f"fedmrn-search-{method}-{label}", "labels-3", SEARCHED_ON, method, 25, **wanted)


def cifar() -> Iterator[Cell]:
    """Table 1: CIFAR-10, Non-IID-2."""
    for method in PAPER_CIFAR:
        yield Cell(f"fedmrn-cifar-{method}-labels-3-0", method, given(method), CIFAR, "cnn8", "labels:3", 0, 200)


def ablation() -> Iterator[Cell]:
    """Figure 4, on Fashion-MNIST with labels:3."""
    for method in ("fedmrn", "fedmrns"):
        for part, more in ABLATIONS.items():
            if part == "whole":
                yield fashion(f"fedmrn-fashion-{method}-labels-3-0", "labels-3", 0, method)
            else:
                yield fashion(f"fedmrn-ablation-{method}-{part}", "labels-3", 0, method, **more)


def noise() -> Iterator[Cell]:
    """Figure 5, on Fashion-MNIST with labels:3."""
    for method in ("fedmrn", "fedmrns"):
        for more in NOISES:
            label = f"{more['noise']}-{more['alpha']:g}"
            yield fashion(f"fedmrn-noise-{method}-{label}", "labels-3", 0, method, **more)


def shakespeare(model: str = "lstm") -> Iterator[Cell]:
    """Table 3: next-character prediction, a tenth of the roles per round, one epoch, dense embedding."""
    for method, more in LETTERS.items():
        setting = {"lr": 3.0, "epochs": 1, "batch": 128, "weights": "batches", **more}
        name = f"fedmrn-shakespeare-{model}-{method}"
        per_round = ROLES // 10
        yield Cell(name, method, setting, "shakespeare", model, "natural", 0, 100, ROLES, per_round, ("embedding.*",))


def shakespeare_plain() -> Iterator[Cell]:
    """Table 3 without dropout, so that a GPU can capture the steps."""
    return shakespeare("lstm-plain")


def shakespeare_noise() -> Iterator[Cell]:
    """FedMRN without dropout and with more noise. The noise bounds the change of a weight in one round."""
    plain = next(cell for cell in shakespeare_plain() if cell.method == "fedmrn")
    for alpha in MORE_NOISE:
        yield plain._replace(name=f"{plain.name}-{alpha:g}", rounds=NOISE_ROUNDS, given={**plain.given, "alpha": alpha})


def auto() -> Iterator[Cell]:
    """Table 1 with the noise measured from the updates, and FedAvg's learning rate."""
    for split, method, label in product(SPLITS, ("fedmrn", "fedmrns"), MEASURED):
        made = fashion(f"fedmrn-{label}-{method}-{split}-0", split, 0, method, **MEASURED[label], lr=0.03)
        yield _as_before(made, label)


def cifar_auto() -> Iterator[Cell]:
    """CIFAR-10, Non-IID-2, with the noise measured from the updates."""
    for method, label in product(("fedmrn", "fedmrns"), MEASURED):
        setting, name = given(method, **MEASURED[label], lr=0.03), f"fedmrn-cifar-{method}-{label}-labels-3-0"
        yield _as_before(Cell(name, method, setting, CIFAR, "cnn8", "labels:3", 0, 200), label)


def _as_before(cell: Cell, label: str) -> Cell:
    """Return a cell with TF32 in convolutions, if it was not run before precisions could be chosen.

    At that time torch's default counted, which is TF32 in convolutions on a GPU.
    """
    return cell if label == "auto" else cell._replace(precision=TF32)


def spread() -> Iterator[Cell]:
    """Noise and magnitude on Fashion-MNIST, evaluated on held-out samples."""
    for name, (method, more) in SEARCHED.items():
        made = fashion(f"fedmrn-spread-{name}", "dirichlet-0.3", SEARCHED_ON, method, 25, **more, lr=0.03)
        yield made._replace(validate=HOLD_OUT)


def digits() -> Iterator[Cell]:
    """The bundled digits on a CPU: all of 50 clients with four labels each, an MLP, 40 rounds."""
    setting = {"lr": 0.1, "epochs": 5, "batch": 16, "weights": "samples"}
    for name, (method, more) in DIGITS.items():
        made = Cell(f"fedmrn-digits-{name}", method, setting | more, "digits", "mlp", "labels:4", 0, 40, 50, 50)
        yield made._replace(eval_every=10, executor="compiled")


def roles(data: str = LESS_TEXT, label: str = "roles") -> Iterator[Cell]:
    """Table 3 with weights by samples, with every fourth sample of a role."""
    for name, (method, more) in ROLE_METHODS.items():
        yield _role_cell(f"fedmrn-{label}-{name}", method, more, data, 100)


def roles_full() -> Iterator[Cell]:
    """Table 3 with weights by samples, and all samples."""
    return roles("shakespeare", "roles-full")


def roles_search() -> Iterator[Cell]:
    """Noise and magnitude on Shakespeare, evaluated on roles that do not train."""
    for name, (method, more) in SEARCHED.items():
        yield _held_out(_role_cell(f"fedmrn-roles-search-{name}", method, more, LESS_TEXT, 50))


def seen() -> Iterator[Cell]:
    """Masks that training sees, or not, on the tasks of the table of codecs, evaluated on held-out samples."""
    for (task, mine), (name, (method, more)) in product(TASKS.items(), SEEN.items()):
        setting = {"lr": mine.lr, "epochs": mine.epochs, "batch": mine.batch, **more}
        made = Cell(
            f"fedmrn-seen-{task}-{name}", method, setting, mine.data, mine.model, mine.split, SEARCHED_ON, mine.rounds,
            mine.clients, mine.per_round, eval_every=mine.rounds, executor="stacked", samples=mine.samples,
        )  # fmt: skip
        yield made._replace(validate=HOLD_OUT)


def roles_rates() -> Iterator[Cell]:
    """Learning rates on Shakespeare with all samples, evaluated on roles that do not train."""
    for name, (method, more) in RATES.items():
        made = _held_out(_role_cell(f"fedmrn-roles-rates-{name}", method, more, "shakespeare", RATE_ROUNDS))
        yield made._replace(executor="captured-plain")  # compiling takes as long as some of the rounds


def _held_out(cell: Cell) -> Cell:
    left = ROLES - -(-ROLES // HOLD_OUT)
    return cell._replace(clients=left, per_round=left // 10, validate=HOLD_OUT, seed=SEARCHED_ON)


def _role_cell(name: str, method: str, more: dict[str, Any], data: str, rounds: int) -> Cell:
    setting = {"lr": 3.0, "epochs": 1, "batch": 128, "weights": "samples", **more}
    made = Cell(name, method, setting, data, "lstm", "natural", 0, rounds, ROLES, ROLES // 10, ("embedding.*",))
    return made._replace(eval_every=5)


STUDIES: Studies = {
    "search": search,
    "table1": table1,
    "cifar": cifar,
    "ablation": ablation,
    "noise": noise,
    "shakespeare": shakespeare,
    "shakespeare-plain": shakespeare_plain,
    "shakespeare-noise": shakespeare_noise,
    "digits": digits,
    "roles": roles,
    "auto": auto,
    "cifar-auto": cifar_auto,
    "spread": spread,
    "roles-search": roles_search,
    "roles-rates": roles_rates,
    "seen": seen,
    "roles-full": roles_full,
}
