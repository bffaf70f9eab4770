"""The FedSpa tables in Markdown, from the cells that there are, beside the paper's figures."""

from collections.abc import Iterator
from typing import Any

import cells
import fedspa_curves
import fedspa_paper as paper
from fedspa_studies import (
    ALONE_EVERY,
    EVERY,
    LONGER,
    METHODS,
    PATIENT,
    PRUNINGS,
    ROUNDS,
    SEEDS,
    SETS,
    SETTINGS,
    STUDIES,
    VARIANTS,
    cell,
    split,
)
from submodel_page import spread, table

SETTING = (
    f"\nCells have {ROUNDS} rounds and are evaluated every {EVERY}, `local` every {ALONE_EVERY}. Sub-FedAvg prunes as "
    f"much at a time as leads to its target in {PRUNINGS} prunings."
)
Kept = dict[str, Any]
EVERYTHING = {**METHODS, **VARIANTS}


def page() -> str:
    """All that is made of cells, part by part."""
    parts = [missing(), SETTING, claims(), longer()]
    parts += [accuracies(data, setting) for data in SETS for setting in SETTINGS]
    parts += [speeds(data) for data in SETS] + [ablations(), globals_(), exchanged(), costs()]
    return "\n".join(part for part in parts if part)


def missing() -> str:
    """What was not run yet."""
    return cells.missing(STUDIES)


def kept(data: str, setting: str, method: str, rounds: int = ROUNDS) -> dict[int, Kept]:
    """What there is of a method in a setting, by seed."""
    every = {seed: cell(data, setting, method, seed, rounds) for seed in SEEDS}
    return {seed: cells.read(each) for seed, each in every.items() if each.path.exists()}


def every() -> Iterator[tuple[str, str, str, list[Kept]]]:
    """All data sets, settings and methods of which there is a cell."""
    for data in SETS:
        for setting in SETTINGS:
            for method in EVERYTHING:
                found = kept(data, setting, method)
                if found:
                    yield data, setting, method, list(found.values())


def published(data: str, setting: str, method: str) -> float | None:
    """The paper's accuracy, if it has one."""
    found = paper.ACCURACIES.get(data, {}).get(method)
    return None if found is None else found[SETTINGS.index(setting)]


def shown(value: float | None, digits: int = 1) -> str:
    """A figure of the paper's, or nothing."""
    return "" if value is None else f"{value:.{digits}f}"


# Table 1 and Figure 3.


def accuracies(data: str, setting: str) -> str:
    """Clients' own models of one data set and setting, with a picture."""
    lines = []
    for _, _, method, found in (each for each in every() if each[:2] == (data, setting)):
        best, last, worst = (spread([one[which] for one in found]) for which in ("best", "last", "worst_tenth"))
        lines.append([f"`{method}`", shown(published(data, setting, method)), best, last, worst, f"{len(found)}"])
    title = f"Table 1: {data.upper()} with `{SETS[data].model}`, setting {setting.upper()} (`{split(data, setting)}`)"
    theirs = f"paper, {paper.ROUNDS[data]} rounds" if data in paper.ROUNDS else "paper"
    made = table(title, ["method", theirs, "best", "last", "last, worst tenth of clients", "seeds"], lines)
    return _pictured(made, data, setting, ROUNDS)


def _pictured(made: str, data: str, setting: str, rounds: int) -> str:
    """A table with its pictures, if there is one."""
    pictures = (f"![By {axis}]({fedspa_curves.name(data, setting, axis, rounds)})" for axis in fedspa_curves.AXES)
    return "\n\n".join([made, *pictures]) if made else ""


# What the paper says above all.

CLAIMS: list[tuple[str, tuple[str, ...], str, str]] = [
    ("moving masks beat static ones where labels differ", ("a", "b"), "dst", "rsm"),
    ("moving masks beat FedAvg where labels differ", ("a", "b"), "dst", "fedavg"),
    ("static masks match FedAvg where they do not", ("iid",), "rsm", "fedavg"),
    ("ERK beats uniform densities", SETTINGS, "dst", "dst-uniform"),
]


def claims() -> str:
    """Differences that the paper's claims are about, seed by seed."""
    lines = []
    for said, settings, one, other in CLAIMS:
        for data in SETS:
            for setting in settings:
                for rounds in (ROUNDS, LONGER):
                    lines += _claim(said, data, setting, one, other, rounds)
    told = "In points of accuracy of clients' own models after the last round: a seed decides split and cohorts too."
    heads = ["claim", "data", "setting", "of", "paper", "here", "rounds", "seeds"]
    return table("What the paper says above all", heads, lines, told)


def _claim(said: str, data: str, setting: str, one: str, other: str, rounds: int = ROUNDS) -> list[list[str]]:
    first, second = kept(data, setting, one, rounds), kept(data, setting, other, rounds)
    both = sorted(first.keys() & second.keys())
    if not both:
        return []
    theirs = [published(data, setting, method) for method in (one, other)]
    beside = "" if None in theirs else f"{theirs[0] - theirs[1]:.1f}"  # type: ignore[operator]
    here = spread([first[seed]["last"] - second[seed]["last"] for seed in both])
    return [[said, data.upper(), setting.upper(), f"`{one}` - `{other}`", beside, here, f"{rounds}", f"{len(both)}"]]


def longer(data: str = "cifar-10", setting: str = "b") -> str:
    """The same claims after more rounds, with a picture."""
    lines, targets = [], (*SETS[data].targets, 75)
    for method in PATIENT:
        found = list(kept(data, setting, method, LONGER).values())
        if found:
            own, whole = (spread([one[which][-1] for one in found]) for which in ("personal", "accuracy"))
            here = [reached(found, target) for target in targets]
            theirs, _ = paper.SPEED[setting].get(method, (None, None))
            lines.append([f"`{method}`", shown(published(data, setting, method)), own, whole, *here, shown(theirs, 0)])
    heads = ["method", f"paper, {paper.ROUNDS[data]} rounds", "last", "global model"]
    heads += [*(f"{target} %" for target in targets), "paper, 75 %"]
    told = "Of clients' own models, also the first evaluated rounds in which they are that good."
    made = table(f"{LONGER} rounds: {data.upper()}, setting {setting.upper()}", heads, lines, told)
    return _pictured(made, data, setting, LONGER)


# Table 2.


def speeds(data: str) -> str:
    """Rounds to fixed accuracies, means over seeds; the paper's, to higher ones, beside."""
    lines = []
    for _, setting, method, found in (each for each in every() if each[0] == data and each[2] in METHODS):
        here = [reached(found, target) for target in SETS[data].targets]
        theirs = paper.SPEED[setting].get(method) if data == "cifar-10" else None
        beside = [f"{at:.0f}" if at else "> 1000" for at in theirs] if theirs else ["", ""]
        lines.append([setting.upper(), f"`{method}`", *here, *(beside if data == "cifar-10" else [])])
    heads = ["setting", "method", *(f"{target} %" for target in SETS[data].targets)]
    heads += ["paper, 75 %", "paper, 80 %"] if data == "cifar-10" else []
    told = f"The first evaluated round, one in {EVERY}, in which clients' own models are that good."
    return table(f"Table 2: rounds to fixed accuracies, {data.upper()}", heads, lines, told)


def reached(found: list[Kept], target: float) -> str:
    """The first evaluated round that reaches an accuracy; a run that never does makes it more than all rounds."""
    first = [
        next((at for at, own in zip(one["rounds_told"], one["personal"], strict=True) if own >= target), None)
        for one in found
    ]
    if None in first:
        return f"> {found[0]['rounds']}"
    return spread([at for at in first if at is not None], 0)


# Ablations: Figures 4 to 8.


def ablations() -> str:
    """Each variant beside the method that it is a variant of, in setting and seed alike."""
    lines = []
    for data, setting, method, _ in (each for each in every() if each[2] in VARIANTS):
        base, more = VARIANTS[method]
        changed = ", ".join(f"{name}={value}" for name, value in more.items())
        lines += [[f"`{base}`", changed, *line[1:]] for line in _claim("", data, setting, method, base)]
    heads = ["method", "with", "data", "setting", "of", "paper", "here", "rounds", "seeds"]
    told = "Last round, clients' own models, in points. The paper has figures of its ablations for CIFAR-100 alone."
    return table("Ablations: density, initial masks, regrowth", heads, lines, told)


def globals_() -> str:
    """Figure 8: the server's model on the whole test set beside clients' own on theirs."""
    lines = []
    for data, setting, method, found in (each for each in every() if each[2] != "local"):
        whole, own = (spread([one[which][-1] for one in found]) for which in ("accuracy", "personal"))
        moved, density, overlap = (_mask(found[0], name) for name in ("moved", "density", "overlap"))
        lines.append([data.upper(), setting.upper(), f"`{method}`", whole, own, density, overlap, moved])
    heads = ["data", "setting", "method", "global model", "own models", "mask density", "mask overlap", "mask moved"]
    told = (
        "Last round. Masks, where there are some, are those of the last round's clients, in tensors not held whole: "
        "density, what two have in common of what either holds, and the share let go in that round."
    )
    return table("Figure 8: global against personal models", heads, lines, told)


def _mask(found: Kept, name: str) -> str:
    return shown((found["masks"] or {}).get(name), 3)


# Figure 1 and costs.


def exchanged() -> str:
    """Figure 1: accuracy by what was sent."""
    lines = []
    for data, setting, method, found in (each for each in every() if each[3][0]["bytes"][-1]):
        counted, true = (found[0][which][-1] / 1e9 for which in ("paper_bytes", "bytes"))
        last = spread([one["last"] for one in found])
        lines.append([data.upper(), setting.upper(), f"`{method}`", f"{counted:.3f}", f"{true:.3f}", last])
    heads = ["data", "setting", "method", "GB, 4 bytes a held value", "GB, all bytes", "last"]
    return table("Figure 1: accuracy and what was sent, both ways, all rounds", heads, lines)


def costs() -> str:
    """Costs of Table 1, scaled to the paper's number of rounds; what was executed beside."""
    lines = []
    for data, setting, method, found in every():
        one, longer = found[0], paper.ROUNDS.get(data, found[0]["rounds"]) / found[0]["rounds"]
        size, work = paper.COSTS.get(data, {}).get(method, (None, None))
        counted = one["paper_flops"] and one["paper_flops"] * longer / 1e14
        done, useful = (one[which] * longer / 1e14 for which in ("flops", "useful_flops"))
        sent = [f"{one[which][-1] * longer / 1e9:.1f}" for which in ("paper_bytes", "bytes")]
        executed = [f"{done:.1f}", f"{useful:.1f}", f"{one['round_seconds']:.2f} s"]
        where = [data.upper(), setting.upper(), f"`{method}`"]
        lines.append([*where, shown(size), *sent, shown(work), shown(counted), *executed])
    heads = ["data", "setting", "method", "GB, paper", "GB, counted so", "GB, all bytes", "10^14 FLOP, paper"]
    heads += ["counted so", "executed", "executed on held weights", "a round"]
    told = (
        "Bytes and operations are scaled to the paper's number of rounds, where it has one, so that they can be "
        "compared; of Sub-FedAvg, whose masks shrink, that says little. The paper's are those of setting B. Seconds "
        "are medians, of cells that shared a device with others: between rows they say little."
    )
    return table("Costs, as the paper counts them and as they are", heads, lines, told)
