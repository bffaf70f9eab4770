"""PERM's pictures: clients' own accuracy and loss by round, and who learns from whom."""

import re
import statistics
from typing import Any

import cells
import numpy as np
from cells import PAGES
from fedmrn_curves import picture
from perm_studies import METHODS, SEEDS, SETTINGS, cell

from gossamer.runs.report.curves import COLOURS
from gossamer.runs.report.heat import heat
from gossamer.runs.report.svg import Series

FIGURES = {"personal": "accuracy of clients' own models (%)", "loss": "loss of clients' own models"}
MAPPED = {
    "one-class": "perm-two-stage",
    "iid": "perm-two-stage",
    "femnist": "perm",
    "synthetic": "perm",
    "cifar": "perm",
}
"""Settings whose weights are drawn, and of which method."""
CEILING = 1.5
"""A loss above is drawn here, or a method that fails would press all others together."""
STYLE = (
    f"text {{ fill: #5d6b7a; font: 12px system-ui, sans-serif }} .cell {{ fill: {COLOURS[0]} }} "
    ".blank { fill: #eef1f5 }"
)


def draw() -> None:
    """Draw all pictures anew."""
    for setting in SETTINGS:
        for figure, said in FIGURES.items():
            lines = series(setting, figure)
            if len(lines) > 1:
                plain = re.sub(r"<circle.*?</circle>", "", picture(f"{setting}: {said}", lines))
                (PAGES / name(setting, figure)).write_text(plain)
    for setting in MAPPED:
        drawn = weights(setting)
        if drawn:
            (PAGES / name(setting, "weights")).write_text(drawn)


def name(setting: str, figure: str) -> str:
    """The file of a picture: of a figure by round, or of weights."""
    return f"perm-{setting}-{figure}.svg"


# By round.


def series(setting: str, figure: str) -> list[Series]:
    """A line for each method that there is a cell of: the mean over seeds."""
    found = {method: kept(setting, method) for method in METHODS}
    return [Series(method, mean(list(every.values()), figure)) for method, every in found.items() if every]


def kept(setting: str, method: str) -> dict[int, dict[str, Any]]:
    """What there is of a method in a setting, by seed."""
    every = {seed: cell(setting, method, seed) for seed in SEEDS}
    return {seed: cells.read(each) for seed, each in every.items() if each.path.exists()}


def mean(runs: list[dict[str, Any]], figure: str) -> list[tuple[float, float]]:
    """A figure by evaluated round; of losses, those that are no number count as the ceiling."""
    curves = [[CEILING if value is None else value for value in run[figure]] for run in runs]
    means = [statistics.mean(values) for values in zip(*curves, strict=True)]
    shown = [min(value, CEILING) for value in means] if figure == "loss" else means
    return list(zip(runs[0]["rounds_told"], shown, strict=True))


# Who learns from whom.


def weights(setting: str) -> str:
    """The weights of the first seed's run, clients of a group side by side; nothing where there is no such run."""
    method = MAPPED[setting]
    run = kept(setting, method).get(0)
    if run is None:
        return ""
    mixed = run["mixing"]
    names = mixed["groups"] or [""] * len(mixed["weights"])
    order = sorted(range(len(names)), key=lambda client: (names[client], client))
    shares = np.array(mixed["weights"])[np.ix_(order, order)]
    title, below = f"{setting}, {method}: mixing weights", "client that it learns from"
    drawn = heat(title, order, shares, blank=shares == 0, lowest=0.0, below=below)
    begin, rest = drawn.split(">", 1)
    alone = begin.replace("<svg", '<svg xmlns="http://www.w3.org/2000/svg"')
    return f"{alone}><style>{STYLE}</style>{rest}\n"
