"""FedMRN's tables and plots, from the stored cells, next to the published values."""

import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import permutations

from reproduce.common import cells, plots, seeds, tables
from reproduce.common.cells import Cell
from reproduce.common.plots import Curve
from reproduce.fedmrn import error, times
from reproduce.fedmrn.studies import (
    COMMON,
    PAPER,
    PAPER_CIFAR,
    PAPER_LOSSES,
    PAPER_SHAKESPEARE,
    ROLE_METHODS,
    SETTINGS,
    SPLITS,
    STUDIES,
    ablation,
    auto,
    cifar,
    cifar_auto,
    digits,
    given,
    noise,
    roles,
    roles_full,
    roles_rates,
    roles_search,
    search,
    seen,
    shakespeare,
    shakespeare_noise,
    shakespeare_plain,
    spread,
    table1,
)

Seeds = Mapping[int, float]
"""Accuracy of the best round by seed."""

CLEAR = 1.0
"""Rows whose published values differ by more than this should have the same order here."""
WINDOW = 5
"""Rounds in the running mean of a curve: single rounds vary too much to tell curves apart."""
TABLE_3_ROUNDS = 100
LETTERS_RATE = 3.0
"""FedAvg's learning rate on Shakespeare."""
SHOWN = ("lr", "scale", "alpha")
"""Parameters that a row always shows."""
COSTS = ("bits per parameter", "bits per masked weight", "clipped")
"""Heads of what uploads cost: all bytes, and those of masks and scales; and the share of clipped entries."""
FLOOR = 40.0
"""Lower accuracies are drawn here, so that a few bad rounds do not compress the rest of the plot."""


def page() -> str:
    """Return the generated part of the page."""
    parts = [missing(), *(split_table(split) for split in SPLITS), order(), sums(), cifar_table()]
    parts += [differences("Figure 4: masking without its parts, Fashion-MNIST, `labels:3`", ablation())]
    parts += [differences("Figure 5: noise, Fashion-MNIST, `labels:3`", noise())]
    names = list(ROLE_METHODS)
    quarter = "Table 3: Shakespeare by role, weights by samples, every fourth sample"
    full = "Table 3: Shakespeare by role, weights by samples, all samples"
    parts += [role_table(quarter, list(roles()), names), role_table(full, list(roles_full()), names)]
    parts += [auto_table(), digits_table()]
    parts += [bits_table("Noise and magnitude: Fashion-MNIST, `dirichlet:0.3`, 25 rounds, held-out samples", spread())]
    parts += [
        bits_table("Noise and magnitude: Shakespeare, every fourth sample, 50 rounds, held-out roles", roles_search())
    ]
    parts += [seen_table()]
    parts += [differences("Learning rates: Shakespeare, all samples, 25 rounds, held-out roles", roles_rates())]
    parts += [times.section(), shakespeare_table(), error.section()]
    parts += [differences("The search for learning rates, 25 rounds of `labels:3`", search())]
    return tables.joined(parts)


def missing() -> str:
    """Name the studies that are incomplete."""
    others = {"times": times.section(), "error": error.section()}
    return tables.missing(STUDIES, *(name for name, made in others.items() if not made))


# Tables of best and last rounds.


def split_table(split: str) -> str:
    """Return a column of Table 1, with its curves."""
    column, rows = list(SPLITS).index(split), []
    for method in SETTINGS:
        setting = ", ".join(f"{k}={v}" for k, v in SETTINGS[method].items() if k in ("lr", "scale"))
        rows += best_and_last(of_table1(method, split), [f"`{method}`", setting, f"{PAPER[method][column]}"])
    made = table(f"Fashion-MNIST, `{SPLITS[split]}`", ["method", "setting", "paper, best round"], rows)
    return f"{made}\n\n{tables.picture('Accuracy by round', file(split))}" if made else ""


def of_table1(method: str, split: str) -> list[Cell]:
    """Return the cells of a method in a column of Table 1."""
    return [cell for cell in table1() if (cell.method, cell.split) == (method, SPLITS[split])]


def cifar_table() -> str:
    """Return CIFAR-10's column of Table 1."""
    rows = [
        row for cell in cifar() for row in best_and_last([cell], [f"`{cell.method}`", f"{PAPER_CIFAR[cell.method]}"])
    ]
    return table("CIFAR-10, `labels:3`, 200 rounds", ["method", "paper, best round"], rows)


def shakespeare_table() -> str:
    """Return the first row of Table 3, with weights by batches and noise of one magnitude."""
    rows = []
    for cell in (*shakespeare(), *shakespeare_plain(), *shakespeare_noise()):
        paper = PAPER_SHAKESPEARE.get(cell.method, "not given") if cell.rounds == TABLE_3_ROUNDS else "not given"
        first = [f"`{cell.method}`", f"`{cell.model}`", differs(cell), f"{cell.rounds}", f"{paper}"]
        rows += best_and_last([cell], first)
    heads = ["method", "network", "with", "rounds", "paper"]
    return table("Table 3: Shakespeare by role, weights by batches, all samples", heads, rows)


def role_table(title: str, found: Sequence[Cell], names: Sequence[str]) -> str:
    """Return the first row of Table 3 with weights by samples, with bits and the share of clipped entries."""
    rows = []
    for cell, name in zip(found, names, strict=True):
        paper = PAPER_SHAKESPEARE.get(cell.method, "not given")
        first = [f"`{name}`", differs(cell), f"{cell.rounds}", f"{paper}", *costs(cell)]
        rows += best_and_last([cell], first)
    return table(title, ["method", "with", "rounds", "paper", *COSTS], rows)


def costs(cell: Cell) -> list[str]:
    """Return bits per parameter of uploads, bits per masked weight, and the share of clipped entries of a cell."""
    facts = cells.read(cell) if cell.stored else {}
    every, mask, clipped = (facts.get(name) for name in ("bits_per_parameter", "mask_bits", "clipped"))
    share = "" if clipped is None else f"{100 * clipped:.0f} %"
    return ["" if every is None else f"{every:.2f}", "" if mask is None else f"{mask:.2f}", share]


def auto_table() -> str:
    """Return Table 1 with the noise measured from the updates, beside FedAvg and the published noise."""
    rows = []
    for cell in auto():
        split = next(name for name, text in SPLITS.items() if text == cell.split)
        rows += _beside(cell, f"`{cell.split}`", of_table1("fedavg", split)[0], of_table1(cell.method, split)[0])
    by_method = {cell.method: cell for cell in cifar()}
    for cell in cifar_auto():
        rows += _beside(cell, "CIFAR-10, `labels:3`", by_method["fedavg"], by_method[cell.method])
    heads = ["split", "method", "masks", "entries per magnitude", *COSTS, "FedAvg, seed 0", "published noise, seed 0"]
    return table("Noise measured from the updates (`alpha=auto`), FedAvg's learning rate, seed 0", heads, rows)


def digits_table() -> str:
    """Return accuracy and bits of the bundled digits."""
    rows = []
    for cell in digits():
        rows += best_and_last([cell], [f"`{cell.method}`", differs(cell), *costs(cell)])
    return table("The bundled digits: MLP, `labels:4`, 50 clients, 40 rounds", ["method", "with", *COSTS], rows)


def seen_table() -> str:
    """Return accuracy with and without masks in training, on held-out samples or roles."""
    slow = [cell for cell in roles_rates() if cell.given["lr"] == LETTERS_RATE]
    rows = []
    for cell in (*seen(), *slow):
        rows += best_and_last([cell], [f"`{cell.data}`", f"`{cell.model}`", *masks_of(cell), *costs(cell)])
    note = "Held-out samples or roles, 256 entries per magnitude, one seed; 40 rounds, Shakespeare with 25."
    return table("Masks in training", ["data", "network", "method", "masks", *COSTS], rows, note)


def masks_of(cell: Cell) -> tuple[str, str]:
    """Return the method of a cell, and when it masks."""
    learned = cell.given.get("learn_masks")
    return f"`{cell.method}`", "" if learned is None else "in training" if learned else "after training"


def _beside(cell: Cell, split: str, plain: Cell, published: Cell) -> list[list[str]]:
    """Return the row of a cell, with best and last rounds of two other cells."""
    others = [pair(other) for other in (plain, published)]
    block = cell.given["block"] or "tensor"
    return best_and_last([cell], [split, *masks_of(cell), f"{block}", *costs(cell), *others])


def pair(cell: Cell) -> str:
    """Return best and last round of a cell."""
    facts = cells.read(cell) if cell.stored else None
    return f"{facts['best']:.2f}, {facts['last']:.2f}" if facts else "not run"


def bits_table(title: str, found: Iterable[Cell]) -> str:
    """Return accuracy by bits per weight, on validation data."""
    rows = [row for cell in found for row in best_and_last([cell], [f"`{cell.method}`", *noise_of(cell), *costs(cell)])]
    return table(title, ["method", "noise", "spread", *COSTS], rows)


def noise_of(cell: Cell) -> tuple[str, str]:
    """Return the distribution of a cell's noise, and its magnitude in units of the updates' own."""
    return (cell.given["noise"], f"{cell.given['spread']:g}") if "spread" in cell.given else ("", "")


def differences(title: str, found: Iterable[Cell]) -> str:
    """Return a table of single cells, each with its difference from its method's row in Table 1."""
    rows = [row for cell in found for row in best_and_last([cell], [f"`{cell.method}`", differs(cell)])]
    return table(title, ["method", "with"], rows)


def differs(cell: Cell) -> str:
    """Return the parameters that differ from Table 1; always the learning rate and the scale."""
    usual = given(cell.method)
    shown = {k: v for k, v in cell.given.items() if k in SHOWN or usual.get(k) != v}
    return ", ".join(f"{k}={v}" for k, v in shown.items() if k not in (*COMMON, "coded", "weights"))


def best_and_last(found: Iterable[Cell], first: Sequence[str]) -> list[list[str]]:
    """Return a row with the best and last round of one method; no row without a stored cell."""
    stored = cells.read_all(found)
    if not stored:
        return []
    best, last = (seeds.spread([facts[which] for facts in stored]) for which in ("best", "last"))
    return [[*first, best, last, f"{len(stored)}"]]


def table(title: str, heads: Sequence[str], rows: Iterable[Sequence[str]], note: str = "") -> str:
    """Return a table that ends with best round, last round and number of seeds."""
    return tables.section(title, [*heads, "best round", "last round", "seeds"], rows, note)


# Comparisons of rows.


def best(method: str, split: str) -> Seeds:
    """Return the best rounds of a method in a column of Table 1."""
    return {cell.seed: cells.read(cell)["best"] for cell in of_table1(method, split) if cell.stored}


def gap(one: Seeds, other: Seeds) -> float | None:
    """Return the mean difference over the seeds that both have, since a seed determines the split too."""
    differ = seeds.paired(one, other, float)
    return statistics.mean(differ) if differ else None


def clear_pairs(paper: Mapping[str, float]) -> Iterator[tuple[str, str]]:
    """Return pairs of rows with the first clearly above the second in the paper."""
    return ((a, b) for a, b in permutations(paper, 2) if round(paper[a] - paper[b], 1) > CLEAR)


def misordered(paper: Mapping[str, float], here: Mapping[str, Seeds]) -> dict[tuple[str, str], float]:
    """Return the clear pairs that have another order here, with their difference here."""
    gaps = {(a, b): gap(here[a], here[b]) for a, b in clear_pairs(paper)}
    return {pair: found for pair, found in gaps.items() if found is not None and found <= 0}


def order() -> str:
    """Return the rows whose order differs although the published difference is clear."""
    rows = []
    for column, split in enumerate(SPLITS):
        paper = {method: PAPER[method][column] for method in PAPER}
        wrong = misordered(paper, {method: best(method, split) for method in paper})
        others = ", ".join(
            f"`{a}` above `{b}` ({paper[a] - paper[b]:.1f}; {found:.2f})" for (a, b), found in wrong.items()
        )
        every = len(list(clear_pairs(paper)))
        rows.append([f"`{SPLITS[split]}`", f"{every - len(wrong)} of {every}", others or "none"])
    heads = ["split", "pairs in the paper's order", "others: the paper's order (its gap; the gap here)"]
    return tables.section(f"The order of the rows, where the paper's gap exceeds {CLEAR:g} point", heads, rows)


def sums() -> str:
    """Return Table 2: the loss against FedAvg over the three splits, best rounds of the seeds that both have."""
    rows = []
    for method in SETTINGS:
        gaps = [gap(best(method, split), best("fedavg", split)) for split in SPLITS]
        found = [each for each in gaps if each is not None]
        if method != "fedavg" and len(found) == len(SPLITS):
            rows.append([f"`{method}`", f"{PAPER_LOSSES[method]:.1f}", f"{sum(found):.1f}"])
    return tables.section(
        "Table 2: accuracy lost against FedAvg, summed over the splits", ["method", "paper", "here"], rows
    )


# Figure 3: accuracy by round.


def draw() -> None:
    """Draw the curves of each split."""
    for split in SPLITS:
        lines = curves(split)
        if lines:
            plots.curves(file(split), f"Fashion-MNIST, {split}: accuracy (%)", "round", lines)


def file(split: str) -> str:
    """Return the file of a split's plot."""
    return f"fedmrn-{split}.svg"


def curves(split: str) -> list[Curve]:
    """Return a curve per method, of the first seed."""
    mine = [cell for cell in table1() if (cell.split, cell.seed) == (SPLITS[split], 0) and cell.stored]
    return [Curve(cell.method, smooth(cells.read(cell)["accuracy"])) for cell in mine]


def smooth(curve: Sequence[float]) -> list[tuple[float, float]]:
    """Return the running mean of a curve, not below the floor."""
    means = ((end, sum(curve[end - WINDOW : end]) / WINDOW) for end in range(WINDOW, len(curve) + 1))
    return [(end, max(mean, FLOOR)) for end, mean in means]
