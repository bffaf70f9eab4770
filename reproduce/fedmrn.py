"""FedMRN's experiments (Li et al., 2024): its tables and figures, cell by cell.

    make reproduce WHAT=fedmrn REPRODUCE="--data-dir DIR --jobs 8 --only table1"

A cell is one run, kept as a small JSON file and not run again, so that the tables can grow over several goes; all cells
there are go into docs/reproduction/fedmrn.md. ``--only`` names a study:

    search      learning rates of the methods for which none is published, 25 rounds of labels:3
    table1      Fashion-MNIST, three splits, ten methods
    cifar       CIFAR-10, labels:3, five methods
    ablation    Figure 4: masking without its parts, and after training only
    noise       Figure 5: kind and magnitude of the noise, reduced
"""

import argparse
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cells
from cells import PAGES, Cell

FASHION, CIFAR = "fashion-mnist:norm=fedmrn", "cifar-10:norm=imagenet"
SPLITS = {"iid": "iid", "dirichlet-0.3": "dirichlet:0.3,least=10", "labels-3": "labels:3"}
COMMON: dict[str, Any] = {"epochs": 10, "batch": 64}
SEEDS = (0, 1, 2)
SEARCHED_ON = 100  # a seed that no table uses

SETTINGS: dict[str, dict[str, Any]] = {
    "fedavg": {"lr": 0.03, "weights": "batches"},
    "fedpm": {"lr": 0.03},
    "fedsparsify": {"lr": 0.03, "weights": "batches"},
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


STUDIES = {"search": search, "table1": table1, "cifar": cifar, "ablation": ablation, "noise": noise}


def spread(values: list[float]) -> str:
    """A mean over seeds, with the smallest and the largest."""
    middle = f"{statistics.mean(values):.2f}"
    return middle if len(values) == 1 else f"{middle} ({min(values):.2f} to {max(values):.2f})"


def rows(found: list[Cell], columns: list[tuple[str, str | float]]) -> str:
    """A table's row of the cells of one method: best and last round."""
    kept = [cells.read(cell) for cell in found if cell.path.exists()]
    if not kept:
        return ""
    pieces = [str(value) for _, value in columns]
    best, last = ([cell[which] for cell in kept] for which in ("best", "last"))
    return "| " + " | ".join([*pieces, spread(best), spread(last), str(len(kept))]) + " |"


def table(title: str, heads: list[str], lines: list[str]) -> str:
    """A table in Markdown, or nothing where there is no line."""
    full = [line for line in lines if line]
    if not full:
        return ""
    head = [*heads, "best round", "last round", "seeds"]
    return "\n".join([f"\n### {title}\n", "| " + " | ".join(head) + " |", "| --- " * len(head) + "|", *full])


def pages() -> str:
    """All tables that there are cells for."""
    made = []
    for column, split in enumerate(SPLITS):
        lines = []
        for method in SETTINGS:
            mine = [cell for cell in table1() if cell.method == method and cell.split == SPLITS[split]]
            setting = ", ".join(f"{k}={v}" for k, v in SETTINGS[method].items() if k in ("lr", "scale"))
            lines.append(rows(mine, [("", f"`{method}`"), ("", setting), ("", PAPER[method][column])]))
        made.append(table(f"Fashion-MNIST, `{SPLITS[split]}`", ["method", "setting", "paper, best round"], lines))
    made.append(sums())
    lines = [rows([c], [("", f"`{c.method}`"), ("", PAPER_CIFAR[c.method])]) for c in cifar()]
    made.append(table("CIFAR-10, `labels:3`, 200 rounds", ["method", "paper, best round"], lines))
    for title, study in (("Figure 4: masking without its parts", ablation), ("Figure 5: noise", noise)):
        lines = [rows([cell], [("", f"`{cell.method}`"), ("", _differs(cell))]) for cell in study()]
        made.append(table(f"{title}, Fashion-MNIST, `labels:3`", ["method", "with"], lines))
    lines = [rows([cell], [("", f"`{cell.method}`"), ("", _differs(cell))]) for cell in search()]
    made.append(table("The search for learning rates, 25 rounds of `labels:3`", ["method", "with"], lines))
    return "\n".join(part for part in made if part)


def _differs(cell: Cell) -> str:
    """How a cell differs from its method's row in Table 1."""
    own = {k: v for k, v in cell.given.items() if k not in COMMON and k != "weights"}
    usual = given(cell.method)
    other = {k: v for k, v in own.items() if k not in usual or usual[k] != v or k in ("lr", "scale")}
    return ", ".join(f"{k}={v}" for k, v in other.items()) or "as in Table 1"


def sums() -> str:
    """Table 2: what each method loses against FedAvg over the three splits, best rounds of the seeds that both have."""
    lines = []
    for method in SETTINGS:
        if method == "fedavg":
            continue
        total, complete = 0.0, True
        for split in SPLITS.values():
            mine, base = (
                {
                    c.seed: cells.read(c)["best"]
                    for c in table1()
                    if (c.method, c.split) == (m, split) and c.path.exists()
                }
                for m in (method, "fedavg")
            )
            both = mine.keys() & base.keys()
            complete = complete and bool(both)
            total += statistics.mean(mine[s] - base[s] for s in both) if both else 0.0
        paper = sum(PAPER[method]) - sum(PAPER["fedavg"])
        if complete:
            lines.append(f"| `{method}` | {paper:.1f} | {total:.1f} |")
    head = ["\n### Table 2: accuracy lost against FedAvg, summed over the splits\n", "| method | paper | here |"]
    return "\n".join([*head, "| --- | --- | --- |", *lines]) if lines else ""


def main() -> None:
    parser = argparse.ArgumentParser(description="FedMRN's experiments, cell by cell.")
    parser.add_argument("--data-dir", type=Path, default=Path("data"))
    parser.add_argument("--only", choices=STUDIES, nargs="*", default=list(STUDIES), help="studies (all)")
    parser.add_argument("--methods", nargs="*", help="methods (all)")
    parser.add_argument("--jobs", type=int, default=1, help="cells at once")
    parser.add_argument("--seconds", type=float, default=1e9, help="begin no cell after so long")
    asked = parser.parse_args()
    wanted = [cell for name in asked.only for cell in STUDIES[name]()]
    cells.run(
        [c for c in wanted if not asked.methods or c.method in asked.methods], asked.data_dir, asked.jobs, asked.seconds
    )
    cells.write(PAGES / "fedmrn.md", pages())


if __name__ == "__main__":
    main()
