"""What FedMRN's experiments run: the settings, what the paper says, and the cells of each study."""

from collections.abc import Callable, Iterator
from typing import Any

from cells import Cell

FASHION, CIFAR = "fashion-mnist:norm=fedmrn", "cifar-10:norm=imagenet"
SPLITS = {"iid": "iid", "dirichlet-0.3": "dirichlet:0.3,min_samples=10", "labels-3": "labels:3"}
COMMON: dict[str, Any] = {"epochs": 10, "batch": 64}
SEEDS = (0, 1, 2)
SEARCHED_ON = 100  # a seed that no table uses

SETTINGS: dict[str, dict[str, Any]] = {
    "fedavg": {"lr": 0.03, "weights": "batches"},
    "fedpm": {"lr": 0.03},
    "fedsparsify": {"lr": 0.03, "weights": "batches", "sparsity": 0.97},
    "signsgd": {"lr": 0.03, "scale": 0.005, "weights": "batches"},
    "topk": {"lr": 0.03, "weights": "batches"},
    "terngrad": {"lr": 0.03, "weights": "batches"},
    "drive": {"lr": 0.03, "scale": "least-squares", "weights": "batches"},
    "eden": {"lr": 0.03, "weights": "batches"},
    "fedmrn": {"lr": 0.1, "weights": "batches"},
    "fedmrns": {"lr": 0.1, "weights": "batches"},
}
"""Ten rows; learning rates of FedAvg and FedMRN as published, the others' from the search."""

SEARCH: dict[str, list[dict[str, Any]]] = {
    "fedpm": [{"lr": 0.1}, {"lr": 0.03}],
    "fedsparsify": [{"lr": 0.1}, {"lr": 0.03}],
    "signsgd": [{"lr": 0.03, "scale": 0.005}, {"lr": 0.1, "scale": 0.005}, {"lr": 0.1, "scale": 0.01}],
    "topk": [{"lr": 0.1}, {"lr": 0.03}],
    "terngrad": [{"lr": 0.1}, {"lr": 0.03}],
    "drive": [{"lr": 0.1}, {"lr": 0.03}],
    "eden": [{"lr": 0.1}, {"lr": 0.03}],
}

PAPER = {  # Table 1, Fashion-MNIST: IID, Non-IID-1, Non-IID-2
    "fedavg": (92.0, 90.5, 88.8),
    "fedpm": (81.7, 78.6, 74.6),
    "fedsparsify": (85.6, 80.9, 78.8),
    "signsgd": (91.1, 88.4, 87.1),
    "topk": (90.1, 88.6, 86.7),
    "terngrad": (91.4, 89.9, 87.9),
    "drive": (91.6, 89.9, 88.1),
    "eden": (91.4, 89.8, 88.3),
    "fedmrn": (91.8, 90.2, 88.6),
    "fedmrns": (92.0, 90.5, 88.9),
}
PAPER_CIFAR = {"fedavg": 80.8, "signsgd": 76.2, "eden": 79.8, "fedmrn": 81.4, "fedmrns": 81.0}

PAPER_SHAKESPEARE = {"fedavg": 51.2, "signsgd": 38.0, "eden": 49.6, "fedmrn": 51.1}  # Table 3

ABLATIONS: dict[str, dict[str, Any]] = {
    "whole": {},
    "without-sm": {"stochastic": False},
    "without-pm": {"progressive": False},
    "without-psm": {"stochastic": False, "progressive": False},
    "after-training": {"rehearsed": False, "lr": 0.03},
}
NOISES: list[dict[str, Any]] = [
    *({"noise": "uniform", "alpha": alpha} for alpha in (0.00125, 0.0025, 0.005, 0.01, 0.02)),
    *({"noise": kind, "alpha": alpha} for kind in ("gauss", "bernoulli") for alpha in (0.0025, 0.01)),
]

ROLES = 256  # of the file of roles, those who say enough for one sample
LETTERS: dict[str, dict[str, Any]] = {
    "fedavg": {},
    "fedmrn": {"alpha": 0.003, "progressive": False},
    "fedmrns": {"alpha": 0.0015, "progressive": False},
}
"""Shakespeare: the appendix's code masks from the first step on. It has no signed masks: theirs get half the noise."""

MORE_NOISE, NOISE_ROUNDS = (0.01, 0.03), 25


def given(method: str, **more: Any) -> dict[str, Any]:
    """A recipe's parameters."""
    return {**COMMON, **SETTINGS[method], **more}


def fashion(name: str, split: str, seed: int, method: str, rounds: int = 100, **more: Any) -> Cell:
    """One run on Fashion-MNIST."""
    return Cell(name, method, given(method, **more), FASHION, "cnn4", SPLITS[split], seed, rounds)


def table1() -> Iterator[Cell]:
    """FedMRN and FedMRNS with three seeds, the others with one; FedAvg's cells are those of ``fashion.py``."""
    for seed in SEEDS:
        for split in SPLITS:
            for method in SETTINGS:
                if seed == 0 or method in ("fedavg", "fedmrn", "fedmrns"):
                    label = "fashion" if method == "fedavg" else f"fedmrn-fashion-{method}"
                    yield fashion(f"{label}-{split}-{seed}", split, seed, method)


def search() -> Iterator[Cell]:
    """A short run of each candidate."""
    for method, candidates in SEARCH.items():
        for wanted in candidates:
            label = "-".join(f"{name}-{value:g}" for name, value in wanted.items())
            yield fashion(f"fedmrn-search-{method}-{label}", "labels-3", SEARCHED_ON, method, 25, **wanted)


def cifar() -> Iterator[Cell]:
    """CIFAR-10's Non-IID-2 column."""
    for method in PAPER_CIFAR:
        yield Cell(f"fedmrn-cifar-{method}-labels-3-0", method, given(method), CIFAR, "cnn8", "labels:3", 0, 200)


def ablation() -> Iterator[Cell]:
    """Figure 4, on Fashion-MNIST's labels:3."""
    for method in ("fedmrn", "fedmrns"):
        for part, more in ABLATIONS.items():
            if part == "whole":
                yield fashion(f"fedmrn-fashion-{method}-labels-3-0", "labels-3", 0, method)
            else:
                yield fashion(f"fedmrn-ablation-{method}-{part}", "labels-3", 0, method, **more)


def noise() -> Iterator[Cell]:
    """Figure 5, on Fashion-MNIST's labels:3."""
    for method in ("fedmrn", "fedmrns"):
        for more in NOISES:
            label = f"{more['noise']}-{more['alpha']:g}"
            yield fashion(f"fedmrn-noise-{method}-{label}", "labels-3", 0, method, **more)


def shakespeare(model: str = "lstm") -> Iterator[Cell]:
    """Next-character prediction: a tenth of the roles a round, one epoch; the embedding goes dense."""
    for method, more in LETTERS.items():
        setting = {"lr": 3.0, "epochs": 1, "batch": 128, "weights": "batches", **more}
        name = f"fedmrn-shakespeare-{model}-{method}"
        few = ROLES // 10
        yield Cell(name, method, setting, "shakespeare", model, "natural", 0, 100, ROLES, few, ("embedding.*",))


def shakespeare_plain() -> Iterator[Cell]:
    """The same without dropout: then steps can be captured on a GPU."""
    return shakespeare("lstm-plain")


def shakespeare_noise() -> Iterator[Cell]:
    """FedMRN without dropout and with more noise, which is as far as a weight goes in a round."""
    plain = next(cell for cell in shakespeare_plain() if cell.method == "fedmrn")
    for alpha in MORE_NOISE:
        yield plain._replace(name=f"{plain.name}-{alpha:g}", rounds=NOISE_ROUNDS, given={**plain.given, "alpha": alpha})


STUDIES: dict[str, Callable[[], Iterator[Cell]]] = {
    "search": search,
    "table1": table1,
    "cifar": cifar,
    "ablation": ablation,
    "noise": noise,
    "shakespeare": shakespeare,
    "shakespeare-plain": shakespeare_plain,
    "shakespeare-noise": shakespeare_noise,
}
