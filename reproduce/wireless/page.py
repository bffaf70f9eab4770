"""Tables and the plot of the wireless experiments, from the stored cells."""

import math
import statistics
from dataclasses import replace
from typing import TYPE_CHECKING

from gossamer import Wireless
from gossamer.core.channel import Cost
from gossamer.core.random import key
from gossamer.core.types import Clock
from gossamer.fleet.fleet import Fleet
from reproduce.common import cells, plots, seeds, tables
from reproduce.common.seeds import interval
from reproduce.common.store import Facts
from reproduce.wireless import convex
from reproduce.wireless.studies import (
    COMPARED,
    DEVICES,
    RETAINED,
    SEARCHED,
    SEEDS,
    STUDIES,
    TARGET,
    VARIED,
    best,
    compared,
    retained,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PLOT = "wireless-compare.svg"
AXES = {"sending": "sending (J)", "computing": "computing (J)", "total": "both (J)", "delays": "time (s)"}
ROWS = {**COMPARED, **VARIED}
DOWN_BANDWIDTH, RECEIVE_POWER = 20e6, 0.5
"""Of ``downloads``: hertz and watts, with a station of 1 W."""
LOWER = 75.0
MEASURING = ("one-bit-0.05", "one-bit-0.1", "one-bit-0.25", "one-bit", "one-bit-retry", "z-sign")
"""Target and rows of ``measurements``."""
FLOOR = 50.0
"""Lower accuracies are not drawn."""


def page() -> str:
    """Return the generated part of the page."""
    runs = [prices(), measurements(), downloads(), searched(), links(), messages(), retentions(), retention_search()]
    return tables.joined([tables.missing(STUDIES), *runs, convex.page()])


# Accuracy by energy and time.


def spent(found: Facts, axis: str) -> list[float]:
    """Return the energy or time spent by each evaluated round."""
    if axis == "total":
        return [one + other for one, other in zip(found["computing"], found["sending"], strict=True)]
    values: list[float] = found[axis]
    return values


def reached(found: Facts, target: float = TARGET) -> int | None:
    """Return the index of the first evaluated round that reaches a target; None if no round does."""
    first = cells.first_round(found, target)
    return None if first is None else found["rounds_told"].index(first)


def tried(name: str) -> dict[float, Facts]:
    """Return the stored cells of a row by step size."""
    every = {lr: compared(name, lr) for lr in sorted(ROWS[name].rates)}
    return {lr: cells.read(cell) for lr, cell in every.items() if cell.stored}


def price(found: Facts, target: float = TARGET) -> tuple[float, float]:
    """Return the criterion for step sizes: total energy to a target, or accuracy if no round reaches it."""
    at = reached(found, target)
    return (math.inf, -found["best"]) if at is None else (spent(found, "total")[at], 0.0)


def chosen() -> dict[str, Facts]:
    """Return the run with the best step size of each row."""
    return {name: min(found.values(), key=price) for name in ROWS if (found := tried(name))}


def prices() -> str:
    """Return energy and time to the target, relative to dense gradients."""
    stored, rows = chosen(), []
    dense = stored.get("dense")
    for name, found in stored.items():
        at = reached(found)
        head = [f"`{name}`", f"{found['given']['lr']:g}"]
        if at is None:
            rows.append([*head, f"> {found['rounds']}", *[""] * 7, f"{found['best']:.2f}"])
            continue
        joules = [spent(found, axis)[at] for axis in ("sending", "computing", "total")]
        ratios = [_relative(found, dense, axis) for axis in ("sending", "total")]
        share = f"{joules[1] / joules[2]:.0%}"
        figures = [f"{value:.3g}" for value in (*joules, found["delays"][at])]
        rows.append([*head, f"{found['rounds_told'][at]}", *figures, share, *ratios, f"{found['best']:.2f}"])
    heads = ["row", "step", "rounds", "J sending", "J computing", "J total", "s", "computing share"]
    heads += ["sending, `dense` takes", "total, `dense` takes", "best accuracy, %"]
    note = (
        f"All devices together, up to the first evaluated round with {TARGET:g} % test accuracy, with the step size "
        "that takes the least energy. Seconds are those of the slowest device in each round."
    )
    made = tables.section(f"Energy and time to {TARGET:g} % accuracy", heads, rows, note)
    return f"{made}\n\n{tables.picture('Accuracy by energy and time', PLOT)}" if made else ""


def measurements() -> str:
    """Return energy to a lower target by the number of measurements, each row with its cheapest step size."""
    stored, rows = {name: list(tried(name).values()) for name in MEASURING}, []
    if not all(stored.values()):
        return ""
    for name, every in stored.items():
        found = min(every, key=lambda one: price(one, LOWER))
        at = reached(found, LOWER)
        if at is None:
            return ""
        joules = [f"{spent(found, axis)[at]:.3g}" for axis in ("sending", "computing", "total")]
        measured = f"{found['given'].get('measurements', '')}"
        size = f"{sum(found['arrays'].values()):,.0f}"
        rows.append([f"`{name}`", measured, f"{found['given']['lr']:g}", size, f"{found['rounds_told'][at]}", *joules])
    heads = ["row", "measurements per weight", "step", "bytes", "rounds", "J sending", "J computing", "J total"]
    note = f"As above, to {LOWER:g} %, which all of these rows reach. Bytes are those of a message."
    return tables.section(f"Fewer measurements and retransmission: energy to {LOWER:g} % accuracy", heads, rows, note)


def _relative(found: Facts, dense: Facts | None, axis: str) -> str:
    """Format the energy of dense gradients as a multiple of a row's energy."""
    mine, other = reached(found), reached(dense) if dense else None
    if dense is None or mine is None or other is None:
        return ""
    return f"{spent(dense, axis)[other] / spent(found, axis)[mine]:.3g} x"


def downloads() -> str:
    """Return the energy of receiving up to the target: the rounds of each row, by the channel's formula."""
    stored = {name: (found, at) for name, found in chosen().items() if (at := reached(found)) is not None}
    if "dense" not in stored:
        return ""
    each, rows = _received(sum(stored["dense"][0]["arrays"].values())), []
    for name, (found, at) in stored.items():
        rounds, total = found["rounds_told"][at], spent(found, "total")[at]
        joules = rounds * sum(cost.joules for cost in each)
        late = rounds * max(cost.seconds for cost in each)
        rows.append([f"`{name}`", f"{joules:.3g}", f"{total:.3g}", f"{joules / (joules + total):.0%}", f"{late:.3g}"])
    note = (
        "Computed from the rounds above, not run again: losses and models do not depend on the downlink. A station of "
        "1 W sends the whole model in 20 MHz, and a receiver takes 0.5 W. Seconds are those of the slowest download."
    )
    heads = ["row", "J receiving", "J computing and sending", "receiving share", "s receiving"]
    return tables.section(f"Downlink: energy of receiving to {TARGET:g} % accuracy", heads, rows, note)


def _received(size: float) -> list[Cost]:
    """Return what each device spends on a download."""
    fleet = Fleet.read(cells.FLEETS / "wireless_cell.toml")
    paid = [replace(d, down_bandwidth=DOWN_BANDWIDTH, receive_power=RECEIVE_POWER) for d in fleet.devices]
    cell = Wireless(Fleet(tuple(paid))).fit(DEVICES, key(0))
    return [cell.receive(round(size), Clock(0, 1, client), key(0)) for client in range(DEVICES)]


def searched() -> str:
    """Return the results of all step sizes."""
    rows = []
    for name in ROWS:
        for lr, found in tried(name).items():
            at = reached(found)
            joules = "" if at is None else f"{spent(found, 'total')[at]:.3g}"
            when = f"> {found['rounds']}" if at is None else f"{found['rounds_told'][at]}"
            rows.append([f"`{name}`", f"{lr:g}", when, joules, f"{found['best']:.2f}", f"{found['last']:.2f}"])
    heads = ["row", "step", f"rounds to {TARGET:g} %", "J total", "best, %", "last, %"]
    return tables.section("The search for step sizes", heads, rows)


def links() -> str:
    """Return the share of lost messages over devices."""
    found = chosen().get("one-bit") or next(iter(chosen().values()), None)
    if found is None:
        return ""
    outages = sorted(found["outages"])
    cut = statistics.quantiles(outages, n=4)
    figures = [outages[0], *cut, outages[-1], statistics.mean(outages)]
    rows = [[f"{100 * share:.0f} %" for share in figures]]
    heads = ["minimum", "lower quartile", "median", "upper quartile", "maximum", "mean"]
    return tables.section("Lost messages per device", heads, rows)


def messages() -> str:
    """Return the content of a message in bytes."""
    stored, rows = chosen(), []
    for name, found in stored.items():
        sizes = found["arrays"]
        inside = ", ".join(f"`{array}` {size:,.0f}" for array, size in sizes.items() if array != "overhead")
        whole = sum(sizes.values())
        first = sum(stored["dense"]["arrays"].values()) if "dense" in stored else math.nan
        rows.append([f"`{name}`", f"{whole:,.0f}", inside, f"{sizes['overhead']:.0f}", f"{first / whole:.1f}"])
    heads = ["row", "bytes", "arrays", "header and table", "times smaller than `dense`"]
    return tables.section("Content of a message", heads, rows, "Means over all messages sent, including lost ones.")


# Retention.


def by_seed(name: str) -> dict[int, Facts]:
    """Return the stored cells of a row with the step size of the search, by seed."""
    lr = best(name)
    return {} if lr is None else seeds.by_seed(lambda seed: retained(name, lr, seed), SEEDS)


def retentions() -> str:
    """Return the final accuracy and loss of all rows, and the differences from the row without retention."""
    rows = []
    for name in RETAINED:
        if not (found := by_seed(name)):
            continue
        base = by_seed("nothing-fixed" if name == "signs" else "nothing")
        lost = sum(one["lost"] for one in found.values()) / sum(one["messages"] for one in found.values())
        gains, less = (seeds.paired(found, base, value) for value in (_accuracy, _loss))
        plain = name.startswith("nothing") or not gains
        differ = ["", ""] if plain else [interval(gains), interval(less, 3)]
        here = [interval(list(map(_accuracy, found.values()))), interval(list(map(_loss, found.values())), 3)]
        size = statistics.mean(sum(one["arrays"].values()) for one in found.values())
        lr = f"{found[min(found)]['given']['lr']:g}"
        figures = [*here, *differ, f"{size:,.0f}", f"{lost:.0%}", f"{len(found)}"]
        rows.append([f"`{name}`", RETAINED[name].text, lr, *figures])
    heads = ["row", "retained", "step", "accuracy, %", "loss", "change in accuracy", "change in loss"]
    note = (
        "After the last round, means over seeds ± 1.96 standard errors. Changes are differences from `nothing`, seed "
        "by seed; for `signs` from `nothing-fixed`, which also uses one matrix."
    )
    return tables.section("Retained gradients", [*heads, "bytes per message", "lost", "seeds"], rows, note)


def _accuracy(facts: Facts) -> float:
    return float(facts["last"])


def _loss(facts: Facts) -> float:
    return float(facts["losses"][-1])


def retention_search() -> str:
    """Return the losses of the search by step size."""
    rows = []
    for name, row in RETAINED.items():
        every = {lr: retained(name, lr, SEARCHED) for lr in sorted(row.rates)}
        found = {lr: _loss(cells.read(cell)) for lr, cell in every.items() if cell.stored}
        if found:
            rows.append([f"`{name}`", *(f"{found[lr]:.3f}" if lr in found else "" for lr in sorted(row.rates))])
    rates = sorted(next(iter(RETAINED.values())).rates)
    return tables.section("The search for step sizes of retention: loss", ["row", *(f"{lr:g}" for lr in rates)], rows)


# The plot.


def draw() -> None:
    """Draw accuracy by energy and time, if there is a stored cell. Axes are logarithmic: rows differ by magnitudes."""
    stored = chosen()
    if not stored:
        return

    def fill(figure: "Figure") -> None:
        for axes, (axis, name) in zip(figure.subplots(2, 2, sharey=True).flat, AXES.items(), strict=True):
            for number, (row, found) in enumerate(stored.items()):
                axes.plot(spent(found, axis), found["accuracy"], linewidth=1.3, label=row, **plots.style(number))
            axes.axhline(TARGET, color="#6b6b6b", linewidth=0.8, linestyle=":")
            axes.set(xscale="log", xlabel=name, ylim=(FLOOR, 85))
            plots.dress(axes)
        figure.supylabel("test accuracy (%)")
        figure.legend(*axes.get_legend_handles_labels(), loc="outside right center", frameon=False)

    plots.draw(PLOT, (9.6, 6.4), fill)
