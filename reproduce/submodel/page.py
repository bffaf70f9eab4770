"""Tables of the sub-model experiments, from the stored cells, next to the published values."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import product

from reproduce.common import cells, seeds, tables
from reproduce.common.seeds import spread
from reproduce.common.store import Facts
from reproduce.submodel import curves, times
from reproduce.submodel.studies import (
    CAPACITIES,
    EVERY,
    FULL,
    METHODS,
    PAPER_COSTS,
    PAPER_GAPS,
    PAPER_STATIC,
    RATE,
    ROUNDS,
    SCHEDULE,
    SEEDS,
    SETS,
    STATISTICS,
    STUDIES,
    cell,
    search,
)

SETTING = (
    f"\nCells have {ROUNDS} rounds at a learning rate of {RATE:g} with the schedule `{SCHEDULE}`, are evaluated every "
    f"{EVERY} rounds, and use `{STATISTICS}` for static norms."
)
Setting = tuple[str, str, str]
"""Data set, heterogeneity, capacities."""


def page() -> str:
    """Return the generated part of the page."""
    parts = [missing(), SETTING, *(accuracies(data, labels) for data, levels in SETS.items() for labels in levels)]
    parts += [curves.section(), differences(), gaps(), static(), costs(), times.section(), searched()]
    return tables.joined(parts)


def missing() -> str:
    """Name the studies that are incomplete."""
    return tables.missing(STUDIES, *([] if times.section() else ["times"]))


# Settings.


def stored(data: str, labels: str, capacity: str, method: str) -> dict[int, Facts]:
    """Return the stored cells of a method in a setting, by seed."""
    return seeds.by_seed(lambda seed: cell(data, labels, capacity, method, seed), SEEDS)


def settings(methods: Iterable[str] = tuple(METHODS)) -> Iterator[tuple[Setting, str, dict[int, Facts]]]:
    """Return all settings and methods with a stored cell."""
    methods = tuple(methods)
    for data, levels in SETS.items():
        for labels, capacity, method in product(levels, CAPACITIES, methods):
            found = stored(data, labels, capacity, method)
            if found:
                yield (data, labels, capacity), method, found


def written(capacity: str) -> str:
    """Format capacities."""
    return "drawn" if capacity == "mixed" else f"all {capacity.replace('-', '/').replace('+', ' or ')}"


def where(setting: Setting) -> list[str]:
    """Return a setting as the first columns of a row."""
    data, labels, capacity = setting
    return [data.upper(), f"{SETS[data][labels]}", written(capacity)]


# Figures 1 to 4.


def accuracies(data: str, labels: str) -> str:
    """Return best and last evaluated rounds of one data set and heterogeneity."""
    rows = []
    for (_, _, capacity), method, found in _of(data, labels):
        best, last = ([each[which] for each in found.values()] for which in ("best", "last"))
        loss = [each["loss"][-1] for each in found.values()]
        rows.append([written(capacity), f"`{method}`", spread(best), spread(last), spread(loss, 4), f"{len(found)}"])
    title = f"{data.upper()}, {SETS[data][labels]} labels per client ({labels} heterogeneity)"
    return tables.section(title, ["capacities", "channels", "best", "last", "last loss", "seeds"], rows)


def _of(data: str, labels: str) -> Iterator[tuple[Setting, str, dict[int, Facts]]]:
    return (each for each in settings() if each[0][:2] == (data, labels))


def differences() -> str:
    """Return the differences of rolling from the other choices of channels."""
    rows = []
    for setting, method, found in settings(name for name in METHODS if name != "rolling"):
        rolling = stored(*setting, "rolling")
        best, last = (_paired(rolling, found, which) for which in ("best", "last"))
        if best:
            rows.append([*where(setting), f"`{method}`", spread(best), spread(last), f"{len(best)}"])
    note = "In points of accuracy, seed by seed: a seed also determines split, cohorts and widths."
    heads = ["data", "labels", "capacities", "`rolling` above", "best", "last", "seeds"]
    return tables.section("Rolling and the other choices", heads, rows, note)


def _paired(one: dict[int, Facts], other: dict[int, Facts], which: str) -> list[float]:
    return seeds.paired(one, other, lambda facts: float(facts[which]))


# Tables 1 and 2.


def gaps() -> str:
    """Return training and test values, and their differences next to the published ones."""
    rows = []
    for setting, method, found in settings():
        four = [[each["gap"][name] for each in found.values()] for name in FIGURES]
        paper = PAPER_GAPS.get((setting[1], _row(setting, method)))
        here = [spread(values, 4 if name.endswith("loss") else 2) for name, values in zip(FIGURES, four, strict=True)]
        differ = [_minus(four[0], four[1], 4), _minus(four[2], four[3], 2)]
        published = [f"{paper[0] - paper[1]:.4f}", f"{paper[2] - paper[3]:.2f}"] if paper else ["", ""]
        rows.append([*where(setting), f"`{method}`", *here, *differ, *published])
    heads = ["data", "labels", "capacities", "channels", "train loss", "test loss", "train %", "test %"]
    heads += ["loss: train - test", "%: train - test", "paper, loss", "paper, %"]
    return tables.section("Tables 1 and 2: generalization after the last round", heads, rows)


FIGURES = ("train_loss", "test_loss", "train_accuracy", "test_accuracy")


def _row(setting: Setting, method: str) -> str:
    """Return the row of the paper that corresponds to a cell, if any."""
    data, _, capacity = setting
    rows = {("1", "rolling"): FULL, ("mixed", "random"): "random", ("mixed", "published"): "random"}
    return rows.get((capacity, method), "") if data == "cifar-10" else ""


def _minus(one: Sequence[float], other: Sequence[float], digits: int) -> str:
    return spread([a - b for a, b in zip(one, other, strict=True)], digits)


# Table 4.


def static() -> str:
    """Return the runs with 1/4 and 1/8, rolling and HeteroFL; the paper has CIFAR-100."""
    rows = []
    for data, (method, paper) in product(("cifar-100", "cifar-10"), PAPER_STATIC.items()):
        found = stored(data, "high", "1-4+1-8", method).values()
        if found:
            here = [spread([each["last"] for each in found]), spread([each["loss"][-1] for each in found], 4)]
            published = [f"{value}" if data == "cifar-100" else "" for value in paper]
            rows.append([data.upper(), f"`{method}`", *published, *here, f"{len(found)}"])
    heads = ["data", "channels", "paper, %", "paper, loss", "last %", "last loss", "seeds"]
    return tables.section("Table 4: high heterogeneity, capacities 1/4 or 1/8, drawn", heads, rows)


# Tables 5 to 8.


def costs() -> str:
    """Return model rate, actual bytes and seconds, next to the published ones."""
    rows = []
    for setting, method, found in settings():
        one = next(iter(found.values()))
        rate, seconds = PAPER_COSTS.get((*setting, "random" if method == "published" else method), (None, None))
        sent = [f"{one['bytes_a_client'][way] / 1e6:.2f} MB" for way in ("bytes_down", "bytes_up")]
        published = [f"{rate:.4f}" if rate else "", f"{seconds:.2f} s" if seconds else ""]
        times = spread([each["round_seconds"] for each in found.values()])
        rows.append(
            [*where(setting), f"`{method}`", f"{one['rate']:.4f}", published[0], *sent, f"{times} s", published[1]]
        )
    heads = ["data", "labels", "capacities", "channels", "model rate", "paper, rate", "download per client"]
    heads += ["upload per client", "per round", "paper, per round"]
    note = (
        "Seconds of a round are medians of cells that shared a device, so rows are not comparable. With drawn "
        "widths, the expected rate is 0.3875, and the expected share of the whole model's bytes 0.27."
    )
    return tables.section("Tables 5 to 8: costs of a round", heads, rows, note)


# Learning rates.


def searched() -> str:
    """Return the results of the search."""
    found = [(each, cells.read(each)) for each in search() if each.stored]
    rows = [[f"`{each.method}`", f"{each.given['lr']}", spread([k["best"]]), spread([k["last"]])] for each, k in found]
    return tables.section("The search for a learning rate", ["recipe", "rate", "best", "last"], rows)
