"""PERM's tables and plots, from the stored cells."""

import math
import statistics
from collections.abc import Iterator, Sequence

import numpy as np

from gossamer.runs.report.text import amount, size
from reproduce.common import cells, plots, seeds, tables
from reproduce.common.plots import Curve
from reproduce.common.store import Facts
from reproduce.perm.studies import (
    CLIENTS,
    METHODS,
    PERM,
    SEARCHED_ON,
    SEEDS,
    SETTINGS,
    STUDIES,
    TRIED,
    TWINS,
    WEIGHTED,
    cell,
    choices,
    chosen,
)

TITLES = {
    "synthetic": "Figure 1: two populations, balanced labels",
    "literal": "Figure 1: two populations, the paper's generator",
    "cifar": "Figure 2: CIFAR-10, two classes per client, `cnn2`",
    "cifar-longer": "Figure 2 with 260 rounds",
    "femnist": "Figure 4: FEMNIST by writer, `mlp`",
}
MAPS = {
    "one-class": "Mixing weights, Figure 6: MNIST, one class per client",
    "iid": "Mixing weights, Figure 6: MNIST, IID",
    "femnist": "Mixing weights, Figure 5: FEMNIST by writer",
    "synthetic": "Mixing weights of Figure 1",
    "cifar": "Mixing weights of Figure 2",
}
FIGURES = {"personal": "personal accuracy (%)", "loss": "personal loss"}
MAPPED = {
    "one-class": "perm-two-stage",
    "iid": "perm-two-stage",
    "femnist": "perm",
    "synthetic": "perm",
    "cifar": "perm",
}
"""Settings whose mixing weights are drawn, and the method."""
ERROR_PLOT = "perm-weights-error.svg"
CEILING = 1.5
"""Larger losses are drawn here, so that a method that diverges does not compress the other curves."""


def page() -> str:
    """Return the generated part of the page."""
    parts = [
        tables.missing(STUDIES),
        *(accuracies(setting) for setting in TITLES),
        differences(),
        worked(),
        converged(),
        mixed(),
    ]
    parts += [pictured(setting) for setting in MAPS] + [costs(), *(searched(setting) for setting in TRIED)]
    return tables.joined(parts)


def stored(setting: str, method: str) -> dict[int, Facts]:
    """Return the stored cells of a method in a setting, by seed."""
    return seeds.by_seed(lambda seed: cell(setting, method, seed), SEEDS)


def every() -> Iterator[tuple[str, str, dict[int, Facts]]]:
    """Return all settings and methods with a stored cell."""
    for setting in (each for each in SETTINGS if not each.startswith("weights-")):
        for method in METHODS:
            found = stored(setting, method)
            if found:
                yield setting, method, found


def spread(values: Sequence[float], digits: int = 2) -> str:
    """Format a mean over seeds, with the smallest and the largest value where these differ."""
    text = seeds.spread(values, digits)
    return text if f"{min(values):.{digits}f}" != f"{max(values):.{digits}f}" else text.partition(" ")[0]


# Figures 1, 2 and 4.


def accuracies(setting: str) -> str:
    """Return the personal accuracies of one setting after the last round, with plots by round."""
    rows = []
    for _, method, found in (each for each in every() if each[0] == setting):
        runs = list(found.values())
        last, best, worst = (spread([run[which] for run in runs]) for which in ("last", "best", "worst_tenth"))
        rows.append([f"`{method}`", chosen(setting, method), last, best, worst, _loss(runs), f"{len(runs)}"])
    heads = ["method", "step size", "last", "best", "last, worst tenth", "last loss", "seeds"]
    made = tables.section(TITLES[setting], heads, rows, _constant(setting))
    pictures = (tables.picture(text, file(setting, figure)) for figure, text in FIGURES.items())
    return "\n\n".join([made, *(pictures if len(rows) > 1 else ())]) if made else ""


def _loss(runs: list[Facts]) -> str:
    """Format the last loss, which may not be finite."""
    last = [run["loss"][-1] for run in runs if run["loss"][-1] is not None]
    return spread(last, 3) if len(last) == len(runs) else "not finite"


def _constant(setting: str) -> str:
    """Return the accuracy of a constant answer as a note."""
    found = next((each for name, _, each in every() if name == setting), {})
    if not found:
        return ""
    value = spread([run["constant"] for run in found.values()])
    return f"The best constant answer, the same for all clients, is correct in {value} percent."


def differences() -> str:
    """Return the differences of PERM from the other methods."""
    rows = []
    for setting in TITLES:
        for method in PERM:
            mine = stored(setting, method)
            rows += [_above(setting, method, mine, other) for other in METHODS if other not in PERM]
    note = "Personal accuracy after the last round, in points, seed by seed: a seed also determines data and start."
    heads = ["setting", "method", "above", "points", "lower loss by", "seeds"]
    return tables.section("PERM and the other methods", heads, [row for row in rows if row], note)


def _above(setting: str, method: str, mine: dict[int, Facts], other: str) -> list[str]:
    theirs = stored(setting, other)
    points = seeds.paired(mine, theirs, lambda facts: float(facts["last"]))
    if not points:
        return []
    both = mine.keys() & theirs.keys()
    finite = all(found[seed]["loss"][-1] is not None for seed in both for found in (mine, theirs))
    lower = spread(seeds.paired(theirs, mine, lambda facts: float(facts["loss"][-1])), 3) if finite else ""
    return [setting, f"`{method}`", f"`{other}`", spread(points), lower, f"{len(points)}"]


def worked() -> str:
    """Return the methods of Figure 2 by their work: an idle client costs nothing."""
    rows = []
    for _, method, found in (each for each in every() if each[0].startswith("cifar")):
        runs = list(found.values())
        sent = size(sum(runs[0]["bytes_a_round"].values()) / CLIENTS * runs[0]["rounds"])
        done = f"{amount(runs[0]['flops'])}FLOP"
        last = spread([run["last"] for run in runs])
        rows.append([f"`{method}`", f"{runs[0]['rounds']}", done, sent, last, f"{len(runs)}"])
    heads = ["method", "rounds", "operations", "bytes per client, both directions", "last", "seeds"]
    return tables.section("Figure 2 by work", heads, rows)


# Theorem 1.


def errors() -> dict[int, list[float]]:
    """Return the stored errors of mixing weights by rounds of FedAvg, one per seed."""
    found = {rounds: stored(f"weights-{rounds}", "perm-two-stage") for rounds in WEIGHTED}
    return {rounds: [run["weights_error"] for run in runs.values()] for rounds, runs in found.items() if runs}


def converged() -> str:
    """Return the error of mixing weights by rounds of FedAvg before the comparison."""
    rows = [[f"{rounds}", f"{statistics.mean(each):.2e}", f"{len(each)}"] for rounds, each in errors().items()]
    note = (
        "The squared error of a client's mixing weights against those at the optimum of the mean loss, the mean over "
        "clients and seeds. Theorem 1 bounds it by a multiple of 1 / R, for a rate that falls with R. Here the rate "
        "is constant, and FedAvg's own error remains. Synthetic data, lambda 160, 8 local steps."
    )
    made = tables.section("Theorem 1: the error of mixing weights", ["rounds R", "squared error", "seeds"], rows, note)
    return "\n\n".join([made, tables.picture("error of mixing weights", ERROR_PLOT)]) if made else ""


# Figures 5 and 6: mixing weights.


def mixed() -> str:
    """Return summaries of the mixing weights."""
    rows = []
    for setting, method, found in (each for each in every() if each[1] in PERM):
        runs = list(found.values())
        mixing = [run["mixing"] for run in runs]
        own, peers = spread([100 * one["own"] for one in mixing]), spread([one["peers"] for one in mixing], 1)
        known = mixing[0]["group"] is not None
        group = spread([100 * one["group"] for one in mixing]) if known else ""
        members = f"{mixing[0]['group_peers']:g}" if known else ""
        visits = [_share(runs, kind) for kind in ("trained", "idle", "capped")]
        lam = spread([one["lam"] for one in mixing], 1)
        rows.append([setting, f"`{method}`", own, peers, group, members, lam, *visits])
    heads = ["setting", "method", "own weight, %", "effective clients", "weight in own group, %", "group size"]
    note = (
        "Mixing weights after the last round, means over clients. The number of effective clients is 1 / sum a^2 for "
        "the weights a. A group is the clients of one population or with the same labels, including the client. "
        "Trained and idle clients are shares of all clients in the rounds after the warm-up. A visit is capped if its "
        "weight grew within an epoch so that its step would be too long."
    )
    heads += ["lambda", "trained, %", "idle, %", "capped, %"]
    return tables.section("Mixing weights", heads, rows, note)


def _share(runs: list[Facts], kind: str) -> str:
    """Format the share of one kind of visits."""
    visits = [run["visits"] for run in runs]
    called = [max(1, each["trained"] + each["skipped"] + each["idle"]) for each in visits]
    return spread([100 * each[kind] / number for each, number in zip(visits, called, strict=True)], 1)


def pictured(setting: str) -> str:
    """Return the plot of the mixing weights of the first seed."""
    run = stored(setting, MAPPED[setting]).get(0)
    if run is None:
        return ""
    order = "in order of their index" if run["mixing"]["groups"] is None else "ordered by group"
    note = f"A row has the weights of one client, clients {order}. Zero is blank (`{MAPPED[setting]}`, seed 0)."
    return f"\n### {MAPS[setting]}\n\n{note}\n\n{tables.picture('Mixing weights', file(setting, 'weights'))}"


# Costs, and step sizes.


def costs() -> str:
    """Return bytes and seconds of a round."""
    rows = []
    for setting, method, found in every():
        one = next(iter(found.values()))
        sent = [size(one["bytes_a_round"][way] / CLIENTS) for way in ("bytes_down", "bytes_up")]
        taken = spread([run["round_seconds"] for run in found.values()], 3)
        rows.append([setting, f"`{method}`", *sent, f"{amount(one['flops'])}FLOP", taken, one["executor"]])
    heads = ["setting", "method", "download", "upload", "all rounds", "seconds per round", "executor"]
    note = (
        "Bytes per client and round, mean over rounds; a visit without weight sends nothing. Seconds are medians of "
        "cells that shared a machine, so rows are not comparable. Fine-tuning for evaluation is not included."
    )
    return tables.section("Costs of a round", heads, rows, note)


def searched(setting: str) -> str:
    """Return the results of the search, with the chosen step size in bold."""
    rows = []
    for method in (each for each in METHODS if each not in TWINS):
        tried = {name: cell(setting, method, SEARCHED_ON, name) for name in choices(setting, method)}
        if all(each.stored for each in tried.values()):
            best = chosen(setting, method)
            found = {name: f"{name}: {cells.read(each)['last']:.2f}" for name, each in tried.items()}
            rows.append([f"`{method}`", ", ".join(f"**{t}**" if name == best else t for name, t in found.items())])
    heads = ["method", "step size: personal accuracy after the last round"]
    return tables.section(f"The search for step sizes, {setting}, seed {SEARCHED_ON}", heads, rows)


# Plots.


def draw() -> None:
    """Draw accuracy and loss by round, and the mixing weights."""
    for setting in SETTINGS:
        for figure, text in FIGURES.items():
            lines = curves(setting, figure)
            if len(lines) > 1:
                plots.curves(file(setting, figure), f"{setting}: {text}", "round", lines)
    for setting in MAPPED:
        _draw_weights(setting)
    if found := errors():
        points = [(math.log2(rounds), math.log10(statistics.mean(each))) for rounds, each in found.items()]
        first = points[0]
        rate = [(at, first[1] - (at - first[0]) * math.log10(2)) for at, _ in points]
        lines = [Curve("measured", points), Curve("1 / R", rate)]
        plots.curves(ERROR_PLOT, "log10 of the squared error of mixing weights", "log2 of rounds of FedAvg", lines)


def file(setting: str, figure: str) -> str:
    """Return the file of a plot: of a value by round, or of weights."""
    return f"perm-{setting}-{figure}.svg"


def curves(setting: str, figure: str) -> list[Curve]:
    """Return a curve per stored method: the mean over seeds."""
    found = {method: stored(setting, method) for method in METHODS}
    return [Curve(method, mean(list(runs.values()), figure)) for method, runs in found.items() if runs]


def mean(runs: list[Facts], figure: str) -> list[tuple[float, float]]:
    """Return the mean over seeds per evaluated round; a loss that is not finite counts as the ceiling."""
    values = [[CEILING if value is None else value for value in run[figure]] for run in runs]
    means = [statistics.mean(column) for column in zip(*values, strict=True)]
    shown = [min(value, CEILING) for value in means] if figure == "loss" else means
    return list(zip(runs[0]["rounds_told"], shown, strict=True))


def _draw_weights(setting: str) -> None:
    run = stored(setting, MAPPED[setting]).get(0)
    if run is not None:
        weights, title = np.array(run["mixing"]["weights"]), f"{setting}, {MAPPED[setting]}: mixing weights"
        labels = "client", "client whose loss it weighs"
        plots.matrix(file(setting, "weights"), title, labels, weights, by_group(run["mixing"]))


def by_group(mixing: Facts) -> list[int]:
    """Return the clients ordered by group, then by index."""
    names = mixing["groups"] or [""] * len(mixing["weights"])
    return sorted(range(len(names)), key=lambda client: (names[client], client))
