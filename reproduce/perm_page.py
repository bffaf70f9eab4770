"""The PERM tables in Markdown, from the cells that there are."""

from collections.abc import Iterator, Sequence
from typing import Any

import cells
import perm_curves
import submodel_page
from perm_curves import MAPPED, kept
from perm_studies import CLIENTS, METHODS, PERM, SEARCHED_ON, SETTINGS, STUDIES, TRIED, TWINS, cell, choices, chosen
from submodel_page import table

from gossamer.runs.report.text import amount, size

Kept = dict[str, Any]
TITLES = {
    "synthetic": "Figure 1: two populations, labels balanced",
    "literal": "Figure 1: two populations, the paper's generator as it stands",
    "cifar": "Figure 2: CIFAR-10, two classes a client, `cnn2`",
    "cifar-longer": "The same, models going round five times",
    "femnist": "Figure 4: FEMNIST by writer, `mlp`",
}
MAPS = {
    "one-class": "Figure 6: MNIST, one class a client",
    "iid": "Figure 6: MNIST, samples dealt at random",
    "femnist": "Figure 5: FEMNIST by writer",
    "synthetic": "The same of Figure 1's clients",
    "cifar": "The same of Figure 2's clients",
}


def page() -> str:
    """All that is made of cells, part by part."""
    parts = [missing(), *(accuracies(setting) for setting in TITLES), differences(), worked(), mixed()]
    parts += [pictured(setting) for setting in MAPS] + [costs(), *(searched(setting) for setting in TRIED)]
    return "\n".join(part for part in parts if part)


def missing() -> str:
    """What was not run yet."""
    return cells.missing(STUDIES)


def every() -> Iterator[tuple[str, str, dict[int, Kept]]]:
    """All settings and methods of which there is a cell."""
    for setting in SETTINGS:
        for method in METHODS:
            found = kept(setting, method)
            if found:
                yield setting, method, found


def spread(values: Sequence[float], digits: int = 2) -> str:
    """A mean over seeds, with the smallest and the largest where they differ."""
    told = submodel_page.spread(values, digits)
    return told if f"{min(values):.{digits}f}" != f"{max(values):.{digits}f}" else told.partition(" ")[0]


# Figures 1, 2 and 4.


def accuracies(setting: str) -> str:
    """Clients' own models of one setting after the last round, with pictures by round."""
    lines = []
    for _, method, found in (each for each in every() if each[0] == setting):
        runs = list(found.values())
        last, best, worst = (spread([run[which] for run in runs]) for which in ("last", "best", "worst_tenth"))
        lines.append([f"`{method}`", chosen(setting, method), last, best, worst, _loss(runs), f"{len(runs)}"])
    heads = ["method", "step size", "last", "best", "last, worst tenth", "last loss", "seeds"]
    made = table(TITLES[setting], heads, lines, _constant(setting))
    shown = (f"![{said}]({perm_curves.name(setting, figure)})" for figure, said in perm_curves.FIGURES.items())
    return "\n\n".join([made, *(shown if len(lines) > 1 else ())]) if made else ""


def _loss(runs: list[Kept]) -> str:
    """The last loss; a run of which that is no number has none."""
    last = [run["loss"][-1] for run in runs if run["loss"][-1] is not None]
    return spread(last, 3) if len(last) == len(runs) else "not finite"


def _constant(setting: str) -> str:
    """What giving one answer always is worth."""
    found = next((each for name, _, each in every() if name == setting), {})
    if not found:
        return ""
    told = spread([run["constant"] for run in found.values()])
    return f"The best answer to give always, the same for all clients, is right in {told} per cent."


def differences() -> str:
    """How far PERM is above the others, seed by seed."""
    lines = []
    for setting in TITLES:
        for method in PERM:
            mine = kept(setting, method)
            lines += [_above(setting, method, mine, other) for other in METHODS if other not in PERM]
    told = "In points of clients' own accuracy after the last round, seed by seed: a seed decides data and start too."
    heads = ["setting", "method", "above", "points", "lower loss by", "seeds"]
    return table("What the paper says: PERM beside the others", heads, [line for line in lines if line], told)


def _above(setting: str, method: str, mine: dict[int, Kept], other: str) -> list[str]:
    theirs = kept(setting, other)
    both = sorted(mine.keys() & theirs.keys())
    if not both:
        return []
    points = spread([mine[seed]["last"] - theirs[seed]["last"] for seed in both])
    losses = [(theirs[seed]["loss"][-1], mine[seed]["loss"][-1]) for seed in both]
    lower = "" if any(None in pair for pair in losses) else spread([b - a for b, a in losses], 3)
    return [setting, f"`{method}`", f"`{other}`", points, lower, f"{len(both)}"]


def worked() -> str:
    """Figure 2's methods by the work that they did: rounds in which models visit clients in vain cost nothing."""
    lines = []
    for _, method, found in (each for each in every() if each[0].startswith("cifar")):
        runs = list(found.values())
        sent = size(sum(runs[0]["bytes_a_round"].values()) / CLIENTS * runs[0]["rounds"])
        done = f"{amount(runs[0]['flops'])}FLOP"
        last = spread([run["last"] for run in runs])
        lines.append([f"`{method}`", f"{runs[0]['rounds']}", done, sent, last, f"{len(runs)}"])
    heads = ["method", "rounds", "operations", "bytes a client, both ways", "last", "seeds"]
    return table("Figure 2 by work", heads, lines)


# Figures 5 and 6.


def mixed() -> str:
    """Who learns from whom, in figures."""
    lines = []
    for setting, method, found in (each for each in every() if each[1] in PERM):
        runs = list(found.values())
        said = [run["mixing"] for run in runs]
        own, peers = spread([100 * one["own"] for one in said]), spread([one["peers"] for one in said], 1)
        known = said[0]["group"] is not None
        group = spread([100 * one["group"] for one in said]) if known else ""
        many = f"{said[0]['group_peers']:g}" if known else ""
        visits = [_share(runs, kind) for kind in ("trained", "capped")]
        lam = spread([one["lam"] for one in said], 1)
        lines.append([setting, f"`{method}`", own, peers, group, many, lam, *visits])
    heads = ["setting", "method", "own weight, %", "clients learned from", "weight in own group, %", "clients in it"]
    told = (
        "Weights after the last round, means over clients. A client with the weights a learns from 1 / sum a^2 clients "
        "in effect. A group are the clients of one population, or with the same labels, the client itself included. A "
        "visit without weight is skipped; one whose step would be too long is capped."
    )
    return table("Who learns from whom", [*heads, "lambda", "visits trained, %", "visits capped, %"], lines, told)


def _share(runs: list[Kept], kind: str) -> str:
    """Which share of all visits were so."""
    visits = [run["visits"] for run in runs]
    return spread([100 * each[kind] / max(1, each["trained"] + each["skipped"]) for each in visits], 1)


def pictured(setting: str) -> str:
    """The weights of the first seed, drawn."""
    run = kept(setting, MAPPED[setting]).get(0)
    if run is None:
        return ""
    order = "clients in their own order" if run["mixing"]["groups"] is None else "clients of a group side by side"
    told = f"Rows learn from columns, {order}; darker is more, blank is nothing (`{MAPPED[setting]}`, seed 0)."
    return f"\n### {MAPS[setting]}\n\n{told}\n\n![Mixing weights]({perm_curves.name(setting, 'weights')})"


# Costs, and step sizes.


def costs() -> str:
    """What a round is worth of bytes and seconds."""
    lines = []
    for setting, method, found in every():
        one = next(iter(found.values()))
        sent = [size(one["bytes_a_round"][way] / CLIENTS) for way in ("bytes_down", "bytes_up")]
        taken = spread([run["round_seconds"] for run in found.values()], 3)
        lines.append([setting, f"`{method}`", *sent, f"{amount(one['flops'])}FLOP", taken, one["executor"]])
    heads = ["setting", "method", "down", "up", "all rounds", "s a round", "executor"]
    told = (
        "Bytes a client and round, mean over rounds; visits without weight send nothing. Seconds are medians, of cells "
        "that shared a machine with others: between rows they say little. Tuning for evaluation is in none of them."
    )
    return table("What a round costs", heads, lines, told)


def searched(setting: str) -> str:
    """The search, choice by choice; what was chosen stands in bold."""
    lines = []
    for method in (each for each in METHODS if each not in TWINS):
        tried = {name: cell(setting, method, SEARCHED_ON, name) for name in choices(setting, method)}
        if all(each.path.exists() for each in tried.values()):
            best = chosen(setting, method)
            found = {name: f"{name}: {cells.read(each)['last']:.2f}" for name, each in tried.items()}
            told = [f"**{said}**" if name == best else said for name, said in found.items()]
            lines.append([f"`{method}`", ", ".join(told)])
    heads = ["method", "step size: clients' own accuracy after the last round"]
    return table(f"The search for step sizes, {setting}, seed {SEARCHED_ON}", heads, lines)
