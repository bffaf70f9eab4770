"""FedMRN's tables in Markdown, from the cells that there are, and what they say beside the paper's."""

import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import permutations

import cells
import fedmrn_curves
import fedmrn_error
import fedmrn_times
from cells import Cell
from fedmrn_studies import (
    COMMON,
    PAPER,
    PAPER_CIFAR,
    PAPER_SHAKESPEARE,
    SETTINGS,
    SPLITS,
    STUDIES,
    ablation,
    cifar,
    given,
    noise,
    search,
    shakespeare,
    shakespeare_noise,
    shakespeare_plain,
    table1,
)

Seeds = Mapping[int, float]
"""The best round's accuracy by seed."""

CLEAR = 1.0
"""Rows of the paper's that are farther apart than this should be in the same order here."""


def page() -> str:
    """All that is made of cells, part by part."""
    parts = [
        missing(),
        *(split_table(split) for split in SPLITS),
        order(),
        sums(),
        cifar_table(),
    ]
    parts += [differences("Figure 4: masking without its parts, Fashion-MNIST, `labels:3`", ablation())]
    parts += [differences("Figure 5: noise, Fashion-MNIST, `labels:3`", noise())]
    parts += [fedmrn_times.tables(), shakespeare_table(), fedmrn_error.table()]
    parts += [differences("The search for learning rates, 25 rounds of `labels:3`", search())]
    return "\n".join(part for part in parts if part)


def missing() -> str:
    """What was not run yet."""
    others = {"times": fedmrn_times.tables(), "error": fedmrn_error.table()}
    return cells.missing(STUDIES, *(name for name, made in others.items() if not made))


# Tables of best and last rounds.


def split_table(split: str) -> str:
    """A column of Table 1, and its curves."""
    column, lines = list(SPLITS).index(split), []
    for method in SETTINGS:
        mine = [cell for cell in table1() if (cell.method, cell.split) == (method, SPLITS[split])]
        setting = ", ".join(f"{k}={v}" for k, v in SETTINGS[method].items() if k in ("lr", "scale"))
        lines.append(row(mine, [f"`{method}`", setting, f"{PAPER[method][column]}"]))
    made = table(f"Fashion-MNIST, `{SPLITS[split]}`", ["method", "setting", "paper, best round"], lines)
    return f"{made}\n\n![Accuracy by round]({fedmrn_curves.name(split)})" if made else ""


def cifar_table() -> str:
    """CIFAR-10's column of Table 1."""
    lines = [row([cell], [f"`{cell.method}`", f"{PAPER_CIFAR[cell.method]}"]) for cell in cifar()]
    return table("CIFAR-10, `labels:3`, 200 rounds", ["method", "paper, best round"], lines)


def shakespeare_table() -> str:
    """Table 3's first row."""
    lines = []
    for cell in (*shakespeare(), *shakespeare_plain(), *shakespeare_noise()):
        paper = PAPER_SHAKESPEARE.get(cell.method, "not given")
        lines.append(row([cell], [f"`{cell.method}`", f"`{cell.model}`", differs(cell), f"{paper}"]))
    return table("Table 3: Shakespeare by role", ["method", "network", "with", "paper"], lines)


def differences(title: str, found: Iterable[Cell]) -> str:
    """A table of single cells, each with how it differs from its method's row in Table 1."""
    lines = [row([cell], [f"`{cell.method}`", differs(cell)]) for cell in found]
    return table(title, ["method", "with"], lines)


def differs(cell: Cell) -> str:
    """What a cell was given other than its method's row in Table 1, and always its rate and scale."""
    usual = given(cell.method)
    told = {k: v for k, v in cell.given.items() if k in ("lr", "scale") or usual.get(k) != v}
    return ", ".join(f"{k}={v}" for k, v in told.items() if k not in COMMON)


def row(found: Iterable[Cell], first: Sequence[str]) -> str:
    """A table's line of the cells of one method, best and last round; nothing where there is no cell."""
    kept = [cells.read(cell) for cell in found if cell.path.exists()]
    if not kept:
        return ""
    best, last = (spread([cell[which] for cell in kept]) for which in ("best", "last"))
    return line([*first, best, last, f"{len(kept)}"])


def spread(values: Sequence[float]) -> str:
    """A mean over seeds, with the smallest and the largest."""
    middle = f"{statistics.mean(values):.2f}"
    return middle if len(values) == 1 else f"{middle} ({min(values):.2f} to {max(values):.2f})"


def table(title: str, heads: Sequence[str], lines: Iterable[str]) -> str:
    """A table in Markdown, or nothing where there is no line."""
    full = [each for each in lines if each]
    head = [*heads, "best round", "last round", "seeds"]
    return "\n".join([f"\n### {title}\n", line(head), line(["---"] * len(head)), *full]) if full else ""


def line(pieces: Iterable[str]) -> str:
    """One line of a table."""
    return f"| {' | '.join(pieces)} |"


# Rows beside each other.


def best(method: str, split: str) -> Seeds:
    """The best rounds of a method in a column of Table 1."""
    mine = (cell for cell in table1() if (cell.method, cell.split) == (method, SPLITS[split]))
    return {cell.seed: cells.read(cell)["best"] for cell in mine if cell.path.exists()}


def gap(one: Seeds, other: Seeds) -> float | None:
    """How far one is above the other, mean over the seeds that both have: a seed decides the split too."""
    both = one.keys() & other.keys()
    return statistics.mean(one[seed] - other[seed] for seed in both) if both else None


def clear_pairs(paper: Mapping[str, float]) -> Iterator[tuple[str, str]]:
    """Pairs of rows of which the paper has the first clearly above the second."""
    return ((a, b) for a, b in permutations(paper, 2) if round(paper[a] - paper[b], 1) > CLEAR)


def misordered(paper: Mapping[str, float], here: Mapping[str, Seeds]) -> dict[tuple[str, str], float]:
    """The pairs that are clearly in order in the paper and not in that order here, with their gap here."""
    gaps = {(a, b): gap(here[a], here[b]) for a, b in clear_pairs(paper)}
    return {pair: found for pair, found in gaps.items() if found is not None and found <= 0}


def order() -> str:
    """Where rows are not in the paper's order although its gap is clear."""
    lines = []
    for column, split in enumerate(SPLITS):
        paper = {method: PAPER[method][column] for method in PAPER}
        wrong = misordered(paper, {method: best(method, split) for method in paper})
        told = ", ".join(
            f"`{a}` above `{b}` ({paper[a] - paper[b]:.1f}; {found:.2f})" for (a, b), found in wrong.items()
        )
        every = len(list(clear_pairs(paper)))
        lines.append(line([f"`{SPLITS[split]}`", f"{every - len(wrong)} of {every}", told or "none"]))
    heads = ["split", "pairs in the paper's order", "others: the paper's order (its gap; the gap here)"]
    title = f"\n### The order of the rows, where the paper's gap exceeds {CLEAR:g} point\n"
    return "\n".join([title, line(heads), line(["---"] * len(heads)), *lines])


def sums() -> str:
    """Table 2: what each method loses against FedAvg over the three splits, best rounds of the seeds that both have."""
    lines = []
    for method in SETTINGS:
        gaps = [gap(best(method, split), best("fedavg", split)) for split in SPLITS]
        found = [each for each in gaps if each is not None]
        if method != "fedavg" and len(found) == len(SPLITS):
            paper = sum(PAPER[method]) - sum(PAPER["fedavg"])
            lines.append(line([f"`{method}`", f"{paper:.1f}", f"{sum(found):.1f}"]))
    head = ["\n### Table 2: accuracy lost against FedAvg, summed over the splits\n", line(["method", "paper", "here"])]
    return "\n".join([*head, line(["---"] * 3), *lines]) if lines else ""
