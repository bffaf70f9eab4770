"""The sub-model tables in Markdown, from the cells that there are, beside the paper's figures."""

import statistics
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import cells
import submodel_times
from submodel_studies import (
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
    f"{EVERY} rounds, and take `{STATISTICS}` for static norms."
)
Kept = dict[str, Any]
Setting = tuple[str, str, str]
"""Data set, heterogeneity, capacities."""


def page() -> str:
    """All that is made of cells, part by part."""
    parts = [
        missing(),
        SETTING,
        *(accuracies(data, labels) for data, levels in SETS.items() for labels in levels),
    ]
    parts += [differences(), gaps(), static(), costs(), submodel_times.tables(), searched()]
    return "\n".join(part for part in parts if part)


def missing() -> str:
    """What was not run yet."""
    return cells.missing(STUDIES, *([] if submodel_times.tables() else ["times"]))


# Cells and lines.


def kept(data: str, labels: str, capacity: str, method: str) -> dict[int, Kept]:
    """What there is of a method in a setting, by seed."""
    every = {seed: cell(data, labels, capacity, method, seed) for seed in SEEDS}
    return {seed: cells.read(each) for seed, each in every.items() if each.path.exists()}


def settings(methods: Iterable[str] = METHODS) -> Iterator[tuple[Setting, str, dict[int, Kept]]]:
    """All settings and methods of which there is a cell."""
    for data, levels in SETS.items():
        for labels in levels:
            for capacity in CAPACITIES:
                for method in methods:
                    found = kept(data, labels, capacity, method)
                    if found:
                        yield (data, labels, capacity), method, found


def table(title: str, heads: Sequence[str], lines: Iterable[Sequence[str]], told: str = "") -> str:
    """A table in Markdown, or nothing where there is no line."""
    full = [line(each) for each in lines]
    above = [f"\n### {title}\n", *([f"{told}\n"] if told else [])]
    return "\n".join([*above, line(heads), line(["---"] * len(heads)), *full]) if full else ""


def line(pieces: Iterable[str]) -> str:
    """One line of a table."""
    return f"| {' | '.join(pieces)} |"


def spread(values: Sequence[float], digits: int = 2) -> str:
    """A mean over seeds, with the smallest and the largest."""
    middle = f"{statistics.mean(values):.{digits}f}"
    return middle if len(values) == 1 else f"{middle} ({min(values):.{digits}f} to {max(values):.{digits}f})"


def written(capacity: str) -> str:
    """Capacities as one reads them."""
    return "drawn of the five" if capacity == "mixed" else f"all {capacity.replace('-', '/').replace('+', ' or ')}"


def where(setting: Setting) -> list[str]:
    """A setting as the first pieces of a line."""
    data, labels, capacity = setting
    return [data.upper(), f"{SETS[data][labels]}", written(capacity)]


# Figures 1 to 4.


def accuracies(data: str, labels: str) -> str:
    """Best and last evaluated rounds of one data set and heterogeneity."""
    lines = []
    for (_, _, capacity), method, found in _of(data, labels):
        best, last = ([each[which] for each in found.values()] for which in ("best", "last"))
        loss = [each["loss"][-1] for each in found.values()]
        lines.append([written(capacity), f"`{method}`", spread(best), spread(last), spread(loss, 4), f"{len(found)}"])
    title = f"{data.upper()}, {SETS[data][labels]} labels a client ({labels} heterogeneity)"
    return table(title, ["capacities", "channels", "best", "last", "last loss", "seeds"], lines)


def _of(data: str, labels: str) -> Iterator[tuple[Setting, str, dict[int, Kept]]]:
    return (each for each in settings() if each[0][:2] == (data, labels))


def differences() -> str:
    """How far rolling is above the others: the paper's claim, and what is left of it without the published draw."""
    lines = []
    for setting, method, found in settings(name for name in METHODS if name != "rolling"):
        rolling = kept(*setting, "rolling")
        both = sorted(rolling.keys() & found.keys())
        if both:
            above = [spread([rolling[s][which] - found[s][which] for s in both]) for which in ("best", "last")]
            lines.append([*where(setting), f"`{method}`", *above, f"{len(both)}"])
    told = "In points of accuracy, seed by seed: a seed decides split, cohorts and widths too."
    heads = ["data", "labels", "capacities", "`rolling` above", "best", "last", "seeds"]
    return table("Rolling beside the others", heads, lines, told)


# Tables 1 and 2.


def gaps() -> str:
    """Training minus test, beside the paper's."""
    lines = []
    for setting, method, found in settings():
        four = [[each["gap"][name] for each in found.values()] for name in FIGURES]
        paper = PAPER_GAPS.get((setting[1], _row(setting, method)))
        here = [spread(values, 4 if name.endswith("loss") else 2) for name, values in zip(FIGURES, four, strict=True)]
        differ = [_minus(four[0], four[1], 4), _minus(four[2], four[3], 2)]
        beside = [f"{paper[0] - paper[1]:.4f}", f"{paper[2] - paper[3]:.2f}"] if paper else ["", ""]
        lines.append([*where(setting), f"`{method}`", *here, *differ, *beside])
    heads = ["data", "labels", "capacities", "channels", "train loss", "test loss", "train %", "test %"]
    heads += ["loss: train - test", "%: train - test", "paper, loss", "paper, %"]
    return table("Tables 1 and 2: generalisation after the last round", heads, lines)


FIGURES = ("train_loss", "test_loss", "train_accuracy", "test_accuracy")


def _row(setting: Setting, method: str) -> str:
    """The row of the paper's that a cell stands beside, if any."""
    data, _, capacity = setting
    rows = {("1", "rolling"): FULL, ("mixed", "random"): "random", ("mixed", "published"): "random"}
    return rows.get((capacity, method), "") if data == "cifar-10" else ""


def _minus(one: Sequence[float], other: Sequence[float], digits: int) -> str:
    return spread([a - b for a, b in zip(one, other, strict=True)], digits)


# Table 4.


def static() -> str:
    """CIFAR-100 with 1/4 and 1/8, beside HeteroFL."""
    lines = []
    for method, (accuracy, loss) in PAPER_STATIC.items():
        found = kept("cifar-100", "high", "1-4+1-8", method).values()
        if found:
            here = [spread([each["last"] for each in found]), spread([each["loss"][-1] for each in found], 4)]
            lines.append([f"`{method}`", f"{accuracy}", f"{loss}", *here])
    heads = ["channels", "paper, %", "paper, loss", "last %", "last loss"]
    return table("Table 4: CIFAR-100, 20 labels a client, capacities 1/4 or 1/8", heads, lines)


# Tables 5 to 8.


def costs() -> str:
    """Model rate, true bytes and seconds, beside the paper's."""
    lines = []
    for setting, method, found in settings():
        one = next(iter(found.values()))
        rate, seconds = PAPER_COSTS.get((*setting, "random" if method == "published" else method), (None, None))
        sent = [f"{one['bytes_a_client'][way] / 1e6:.2f} MB" for way in ("bytes_down", "bytes_up")]
        beside = [f"{rate:.4f}" if rate else "", f"{seconds:.2f} s" if seconds else ""]
        times = spread([each["round_seconds"] for each in found.values()])
        lines.append([*where(setting), f"`{method}`", f"{one['rate']:.4f}", beside[0], *sent, f"{times} s", beside[1]])
    heads = ["data", "labels", "capacities", "channels", "model rate", "paper", "down a client", "up a client"]
    heads += ["a round", "paper"]
    told = (
        "Seconds of a round are medians, of cells that shared a device with others: between rows they say little. "
        "Expected are a rate of 0.3875 and, of the whole model's bytes, 0.27 where widths are drawn."
    )
    return table("Tables 5 to 8: what a round costs", heads, lines, told)


# Learning rates.


def searched() -> str:
    """The search, cell by cell."""
    found = [(each, cells.read(each)) for each in search() if each.path.exists()]
    lines = [[f"`{each.method}`", f"{each.given['lr']}", spread([k["best"]]), spread([k["last"]])] for each, k in found]
    return table("The search for a learning rate", ["recipe", "rate", "best", "last"], lines)
