"""Curves of test loss and accuracy over rounds, as in Figures 1 to 4 of the paper, from the stored cells."""

from collections.abc import Iterator
from itertools import product
from typing import TYPE_CHECKING

import numpy as np

from reproduce.common import plots, seeds, store, tables
from reproduce.common.store import Facts
from reproduce.submodel.studies import METHODS, SEEDS, SETS, cell

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PANELS = {"mixed": {"high": 1, "low": 2}, "1": {"high": 3, "low": 4}, "1-16": {"high": 3, "low": 4}}
"""The paper's figures, by capacities and heterogeneity."""
AXES = {"loss": "test loss", "accuracy": "test accuracy, %"}

Curves = dict[str, list[Facts]]
"""Stored cells by method, one per seed."""


def pictures() -> Iterator[tuple[str, str, Curves]]:
    """Return file, title and cells of every picture that has some."""
    for (data, levels), capacity in product(SETS.items(), PANELS):
        for labels, count in levels.items():
            found = {method: _stored(data, labels, capacity, method) for method in METHODS}
            held = "drawn" if capacity == "mixed" else f"all {capacity.replace('-', '/')}"
            figure = f" (Figure {PANELS[capacity][labels]})" if data != "fashion" else ""
            title = f"{data.upper()}, {count} labels per client, capacities {held}{figure}"
            if any(found.values()):
                name = f"submodel-{data}-{labels}-{capacity}.svg"
                yield name, title, {method: facts for method, facts in found.items() if facts}


def _stored(data: str, labels: str, capacity: str, method: str) -> list[Facts]:
    return list(seeds.by_seed(lambda seed: cell(data, labels, capacity, method, seed), SEEDS).values())


def draw() -> None:
    """Draw all pictures."""
    for file, title, curves in pictures():
        _draw(file, title, curves)


def _draw(file: str, title: str, curves: Curves) -> None:
    def fill(figure: "Figure") -> None:
        for axes, (name, label) in zip(figure.subplots(1, 2), AXES.items(), strict=True):
            for number, (method, cells) in enumerate(curves.items()):
                values = np.array([facts[name] for facts in cells])
                axes.plot(rounds(cells[0]), values.mean(0), label=method, linewidth=1.3, **plots.style(number))
            axes.set(xlabel="rounds", ylabel=label)
            plots.dress(axes)
        handles, names = axes.get_legend_handles_labels()
        figure.suptitle(title, fontsize=9)
        figure.legend(handles, names, loc="outside right upper", frameon=False)

    plots.draw(file, (9.0, 3.4), fill)


def rounds(facts: Facts) -> list[int]:
    """Return the evaluated rounds of a cell: every so many, and the last."""
    every = range(facts["eval_every"], facts["rounds"] + 1, facts["eval_every"])
    return [*every, *([facts["rounds"]] if facts["rounds"] % facts["eval_every"] else [])]


def section() -> str:
    """Return the pictures that are drawn, as a section of the page."""
    found = [tables.picture(title, file) for file, title, _ in pictures() if (store.PAGES / file).exists()]
    about = "Means over the stored seeds; the tables above have their number."
    return "\n".join(["\n### Figures 1 to 4: curves\n", f"{about}\n", "\n\n".join(found)]) if found else ""
