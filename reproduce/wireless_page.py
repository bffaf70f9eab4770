"""The wireless tables in Markdown, from the cells that there are."""

import math
import statistics
from collections.abc import Sequence
from typing import Any

import cells
from submodel_page import table
from wireless_studies import COMPARED, RETAINED, SEARCHED, SEEDS, STUDIES, TARGET, best, compared, retained

Kept = dict[str, Any]


def page() -> str:
    """All that is made of cells, part by part."""
    parts = [cells.missing(STUDIES), prices(), searched(), links(), messages(), retentions(), retention_search()]
    return "\n".join(part for part in parts if part)


# Accuracy against joules and seconds.


def spent(found: Kept, axis: str) -> list[float]:
    """What was spent by each evaluated round: for sending, computing, both, or time."""
    if axis == "total":
        return [one + other for one, other in zip(found["computing"], found["sending"], strict=True)]
    told: list[float] = found[axis]
    return told


def reached(found: Kept) -> int | None:
    """Which evaluated round is the first that is accurate enough."""
    return next((at for at, accuracy in enumerate(found["accuracy"]) if accuracy >= TARGET), None)


def tried(name: str) -> dict[float, Kept]:
    """What there is of a row, by step size."""
    every = {lr: compared(name, lr) for lr in sorted(COMPARED[name].rates)}
    return {lr: cells.read(cell) for lr, cell in every.items() if cell.path.exists()}


def price(found: Kept) -> tuple[float, float]:
    """What a step size is judged by: joules in all to the target; where it is never met, accuracy."""
    at = reached(found)
    return (math.inf, -found["best"]) if at is None else (spent(found, "total")[at], 0.0)


def chosen() -> dict[str, Kept]:
    """Of each row the run with the best step size."""
    return {name: min(found.values(), key=price) for name in COMPARED if (found := tried(name))}


def prices() -> str:
    """What each row takes to the target, beside dense gradients."""
    kept, lines = chosen(), []
    dense = kept.get("dense")
    for name, found in kept.items():
        at = reached(found)
        head = [f"`{name}`", f"{found['given']['lr']:g}"]
        if at is None:
            lines.append([*head, f"> {found['rounds']}", *[""] * 7, f"{found['best']:.2f}"])
            continue
        joules = [spent(found, axis)[at] for axis in ("sending", "computing", "total")]
        ratios = [_beside(found, dense, axis) for axis in ("sending", "total")]
        share = f"{joules[1] / joules[2]:.0%}"
        figures = [f"{value:.3g}" for value in (*joules, found["delays"][at])]
        lines.append([*head, f"{found['rounds_told'][at]}", *figures, share, *ratios, f"{found['best']:.2f}"])
    heads = ["row", "step", "rounds", "J sending", "J computing", "J in all", "s", "computing's share"]
    heads += ["sending, `dense` takes", "in all, `dense` takes", "best accuracy, %"]
    told = (
        f"All devices together, up to the first evaluated round with {TARGET:g} % test accuracy, of the step size that "
        "takes the fewest joules. Seconds are those of the slowest device in each round."
    )
    made = table(f"What {TARGET:g} % accuracy takes", heads, lines, told)
    return f"{made}\n\n![Accuracy against joules and seconds](wireless-compare.svg)" if made else ""


def _beside(found: Kept, dense: Kept | None, axis: str) -> str:
    """How many times as much dense gradients take."""
    mine, other = reached(found), reached(dense) if dense else None
    if dense is None or mine is None or other is None:
        return ""
    return f"{spent(dense, axis)[other] / spent(found, axis)[mine]:.3g} x"


def searched() -> str:
    """Every step size that was tried."""
    lines = []
    for name in COMPARED:
        for lr, found in tried(name).items():
            at = reached(found)
            joules = "" if at is None else f"{spent(found, 'total')[at]:.3g}"
            when = f"> {found['rounds']}" if at is None else f"{found['rounds_told'][at]}"
            lines.append([f"`{name}`", f"{lr:g}", when, joules, f"{found['best']:.2f}", f"{found['last']:.2f}"])
    heads = ["row", "step", f"rounds to {TARGET:g} %", "J in all", "best, %", "last, %"]
    return table("The search for step sizes", heads, lines)


def links() -> str:
    """How messages fared, device by device."""
    found = chosen().get("one-bit") or next(iter(chosen().values()), None)
    if found is None:
        return ""
    outages = sorted(found["outages"])
    cut = statistics.quantiles(outages, n=4)
    figures = [outages[0], *cut, outages[-1], statistics.mean(outages)]
    lines = [[f"{100 * share:.0f} %" for share in figures]]
    return table("Lost messages by device", ["least", "a quarter", "half", "three quarters", "most", "mean"], lines)


def messages() -> str:
    """What a message holds, in true bytes."""
    kept, lines = chosen(), []
    for name, found in kept.items():
        sizes = found["arrays"]
        inside = ", ".join(f"`{array}` {size:,.0f}" for array, size in sizes.items() if array != "overhead")
        whole = sum(sizes.values())
        first = sum(kept["dense"]["arrays"].values()) if "dense" in kept else math.nan
        lines.append([f"`{name}`", f"{whole:,.0f}", inside, f"{sizes['overhead']:.0f}", f"{first / whole:.1f}"])
    heads = ["row", "bytes", "arrays", "header and table", "times smaller than `dense`"]
    return table("What a message holds", heads, lines, "Means over all messages that were sent, lost or not.")


# Retention.


def interval(values: Sequence[float], digits: int = 2) -> str:
    """A mean over seeds, and 1.96 standard errors of it."""
    middle = f"{statistics.mean(values):.{digits}f}"
    if len(values) == 1:
        return middle
    return f"{middle} ± {1.96 * statistics.stdev(values) / math.sqrt(len(values)):.{digits}f}"


def seeds(name: str) -> dict[int, Kept]:
    """What there is of a row with the step size that the search found, by seed."""
    lr = best(name)
    every = {} if lr is None else {seed: retained(name, lr, seed) for seed in SEEDS}
    return {seed: cells.read(cell) for seed, cell in every.items() if cell.path.exists()}


def retentions() -> str:
    """Final accuracy and loss of all rows, and by how much they differ from none retained, seed by seed."""
    lines = []
    for name in RETAINED:
        if not (found := seeds(name)):
            continue
        base = seeds("nothing-fixed" if name == "signs" else "nothing")
        lost = sum(one["lost"] for one in found.values()) / sum(one["messages"] for one in found.values())
        accuracy, loss = [one["last"] for one in found.values()], [one["losses"][-1] for one in found.values()]
        both = sorted(found.keys() & base.keys())
        gains = [found[seed]["last"] - base[seed]["last"] for seed in both]
        less = [found[seed]["losses"][-1] - base[seed]["losses"][-1] for seed in both]
        plain = name.startswith("nothing") or not both
        differ = ["", ""] if plain else [interval(gains), interval(less, 3)]
        size = statistics.mean(sum(one["arrays"].values()) for one in found.values())
        lr = f"{found[min(found)]['given']['lr']:g}"
        figures = [interval(accuracy), interval(loss, 3), *differ, f"{size:,.0f}", f"{lost:.0%}", f"{len(found)}"]
        lines.append([f"`{name}`", RETAINED[name].told, lr, *figures])
    heads = ["row", "retained", "step", "accuracy, %", "loss", "accuracy less that without", "loss less that without"]
    told = (
        "After the last round, means over seeds ± 1.96 standard errors. Differences are taken seed by seed, from "
        "`nothing`, and for `signs` from `nothing-fixed`, which measures by one matrix too."
    )
    return table("Retained gradients", [*heads, "bytes a message", "lost", "seeds"], lines, told)


def retention_search() -> str:
    """Losses by step size on the seed of the search."""
    lines = []
    for name, row in RETAINED.items():
        every = {lr: retained(name, lr, SEARCHED) for lr in sorted(row.rates)}
        found = {lr: cells.read(cell)["losses"][-1] for lr, cell in every.items() if cell.path.exists()}
        if found:
            lines.append([f"`{name}`", *(f"{found[lr]:.3f}" if lr in found else "" for lr in sorted(row.rates))])
    rates = sorted(next(iter(RETAINED.values())).rates)
    return table("The search before it: loss by step size", ["row", *(f"{lr:g}" for lr in rates)], lines)
