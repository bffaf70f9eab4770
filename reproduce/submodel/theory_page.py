"""Tables and plots of the theory study: means over seeds, next to the terms of the theorems."""

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from gossamer.analysis.theory import (
    excess_risk,
    random_distance,
    random_distance_printed,
    random_rate,
    random_stationarity,
    residual,
    rolling_distance,
    rolling_stationarity,
)
from reproduce.common import plots, tables
from reproduce.common.store import Facts
from reproduce.submodel.theory_problem import ENTRIES, ZERO, Problem, posed

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Found = dict[str, list[Facts]]
"""Runs by study."""
QUANTILES = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776}
"""Student's t by number of seeds, for a 95 % interval of a mean."""
BOTH = ("random", "rolling")
NAMES = {"random": "random masks", "rolling": "shuffled windows"}


# Means over seeds.


class Mean(NamedTuple):
    """A mean over seeds, and half of its 95 % interval."""

    value: float
    half: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Mean":
        """Return the mean of some values."""
        error = statistics.stdev(values) / math.sqrt(len(values))
        return cls(statistics.mean(values), QUANTILES[len(values)] * error)

    def __str__(self) -> str:
        return f"{self.value:.2e} ± {self.half:.0e}"


def by(rows: list[Facts], across: str, figure: str, **wanted: Any) -> dict[float, Mean]:
    """Return the mean of a figure over seeds, for each value of the field ``across``."""
    mine = [row for row in rows if all(row[name] == value for name, value in wanted.items())]
    points = dict.fromkeys(row[across] for row in mine)
    return {point: Mean.of([row[figure] for row in mine if row[across] == point]) for point in points}


def slope(points: dict[float, float]) -> float:
    """Return the slope of the line through the logarithms, by least squares."""
    xs, ys = [math.log(x) for x in points], [math.log(y) for y in points.values()]
    return statistics.linear_regression(xs, ys).slope


def slopes(rows: list[Facts], figure: str, across: str = "rounds", **wanted: Any) -> Mean:
    """Return the mean slope of a figure over seeds, by rounds or by another field."""
    mine = [row for row in rows if all(row[name] == value for name, value in wanted.items())]
    seeds = dict.fromkeys(row["seed"] for row in mine)
    return Mean.of([slope({row[across]: row[figure] for row in mine if row["seed"] == seed}) for seed in seeds])


# Predictions.


def start(at: Problem) -> float:
    """Return the squared distance of zero from the masked optimum."""
    return float(at.optimum.square().sum())


def predicted(at: Problem, rounds: int) -> dict[str, float]:
    """Return the terms of Theorem 3, or those of Theorem 1 with the omitted one, at the rate of the runs."""
    rate = random_rate(at.setting, rounds)
    if at.rolling:
        return rolling_distance(at.setting, rounds // ENTRIES, start(at), rate)
    masks = 12 * rate * at.setting.steps * at.setting.spread / at.setting.masked_convexity
    return {**random_distance_printed(at.setting, rounds, start(at), rate), "masks": masks}


def bound(at: Problem, rounds: int) -> float | None:
    """Return the leading terms of Theorem 3, or the repaired Theorem 1; None where the rate is too large for it."""
    if at.rolling:
        return sum(predicted(at, rounds).values())
    try:
        return sum(random_distance(at.setting, rounds, start(at)).values())
    except ValueError:
        return None


def stationarity(at: Problem, rounds: int) -> dict[str, float]:
    """Return the terms of Theorem 2 or 4."""
    value = float(at.masked.value(ZERO))
    if at.rolling:
        return rolling_stationarity(at.setting, rounds // ENTRIES, value)
    widest = max(at.masked.spread(w) for w in (ZERO, at.optimum))
    return random_stationarity(replace(at.setting, spread=widest), rounds, value)


# Tables.


def page(found: Found) -> str:
    """Return the generated part of the page."""
    parts = [
        ("Distance to the masked optimum", distance_table(found["distances"]), ""),
        ("Decrease with rounds", slope_table(found["distances"]), "distance"),
        ("Shuffled windows and random masks", against_table(found["distances"]), ""),
        ("Excess risk and residual", residual_table(found["residuals"]), "residual"),
        ("Stationarity", gradient_table(found["gradients"]), "gradient"),
    ]
    pictures = {title: f"\n\n{tables.picture(title, file(plot))}" for title, _, plot in parts if plot}
    return "\n\n".join(f"## {title}\n\n{text}{pictures.get(title, '')}" for title, text, _ in parts)


def distance_table(rows: list[Facts]) -> str:
    """Return the distance to the masked optimum, next to the theorems."""
    body = []
    for noisy in (False, True):
        for masks in BOTH:
            late = by(rows, "rounds", "late", masks=masks, noisy=noisy)
            for rounds, mean in by(rows, "rounds", "distance", masks=masks, noisy=noisy).items():
                at = posed(0.5, masks == "rolling", noisy)
                printed = sum(value for name, value in predicted(at, int(rounds)).items() if name != "masks")
                most = bound(at, int(rounds))
                shown = "rate too large" if most is None else f"{most:.2e}"
                first = [NAMES[masks], _gradients(noisy), str(rounds)]
                body.append([*first, str(mean), str(late[rounds]), f"{printed:.2e}", shown])
    heads = ["masks", "gradients", "rounds", "squared distance", "over the last quarter", "printed terms", "bound"]
    return tables.markdown(heads, body)


def _gradients(noisy: bool) -> str:
    return "noisy" if noisy else "full"


def slope_table(rows: list[Facts]) -> str:
    """Return the slopes of distance and of each term by rounds."""
    body = []
    for noisy in (False, True):
        for masks in BOTH:
            measured = slopes(rows, "late", masks=masks, noisy=noisy)
            at = posed(0.5, masks == "rolling", noisy)
            found = by(rows, "rounds", "late", masks=masks, noisy=noisy)
            terms = {rounds: predicted(at, int(rounds)) for rounds in found}
            steep = [
                f"{name} {slope({rounds: each[name] for rounds, each in terms.items()}):.2f}"
                for name in next(iter(terms.values()))
                if all(each[name] > 0 for each in terms.values())
            ]
            fitted = f"{measured.value:.2f} ± {measured.half:.2f}"
            body.append([NAMES[masks], _gradients(noisy), fitted, ", ".join(steep)])
    return tables.markdown(["masks", "gradients", "measured slope", "slope of each term over the same rounds"], body)


def against_table(rows: list[Facts]) -> str:
    """Return distance and excess risk of both kinds of masks."""
    body = []
    for noisy in (False, True):
        for rounds in (64, 256, 1024):
            for figure, name in (("distance", "squared distance"), ("output", "excess risk of the output")):
                means = [by(rows, "rounds", figure, masks=masks, noisy=noisy)[rounds] for masks in BOTH]
                body.append([_gradients(noisy), str(rounds), name, *map(str, means), _lower(*means)])
    return tables.markdown(["gradients", "rounds", "figure", *NAMES.values(), "lower"], body)


def _lower(random: Mean, rolling: Mean) -> str:
    if abs(random.value - rolling.value) <= random.half + rolling.half:
        return "intervals overlap"
    return NAMES["random" if random.value < rolling.value else "rolling"]


def residual_table(rows: list[Facts]) -> str:
    """Return the excess risk by share, next to the residual term."""
    body = []
    for masks in BOTH:
        for share, mean in by(rows, "share", "output", masks=masks).items():
            at = posed(share, masks == "rolling")
            w = by(rows, "share", "distance", masks=masks)[share].value
            exact, apart = at.excess(at.optimum), float((at.optimum - at.least).norm())
            bounds = (residual(at.setting), excess_risk(at.setting, w))
            figures = [f"{value:.2e}" if value > 1e-12 else "0" for value in (exact, apart, *bounds)]
            body.append([NAMES[masks], f"{share:g}", str(mean), *figures])
    heads = ["masks", "share", "excess risk of the output", "F(w*(p)) - F*", "distance of w*(p) from w*"]
    return tables.markdown([*heads, "residual term", "bound, with the measured distance"], body)


def gradient_table(rows: list[Facts]) -> str:
    """Return the squared gradients, next to the terms of Theorems 2 and 4."""
    body = []
    for masks in BOTH:
        for rounds, mean in by(rows, "rounds", "gradient", masks=masks).items():
            terms = stationarity(posed(0.5, masks == "rolling"), int(rounds))
            shown = ", ".join(f"{name} {value:.1e}" for name, value in terms.items() if value > 0)
            body.append([NAMES[masks], str(rounds), str(mean), f"{sum(terms.values()):.2e}", shown])
        fitted = slopes(rows, "gradient", masks=masks)
        body.append([NAMES[masks], "slope", f"{fitted.value:.2f} ± {fitted.half:.2f}", "", ""])
    return tables.markdown(["masks", "rounds", "mean squared gradient", "sum of terms", "terms"], body)


# Plots, both axes logarithmic.


def draw(found: Found) -> None:
    """Draw all plots."""
    _plot("distance", lambda axes: _distance(axes, found["distances"]))
    _plot("residual", lambda axes: _residual(axes, found["residuals"]))
    _plot("gradient", lambda axes: _gradient(axes, found["gradients"]))


def file(plot: str) -> str:
    """Return the file of a plot."""
    return f"submodel-theory-{plot}.svg"


def _plot(name: str, fill_axes: "Callable[[Axes], None]") -> None:
    def fill(figure: "Figure") -> None:
        axes = figure.subplots()
        fill_axes(axes)
        axes.set(xscale="log", yscale="log")
        plots.dress(axes)
        figure.legend(loc="outside right center", frameon=False)

    plots.draw(file(name), (7.2, 4.2), fill)


def _distance(axes: "Axes", rows: list[Facts]) -> None:
    kinds = [(masks, noisy) for noisy in (False, True) for masks in BOTH]
    for (masks, noisy), colour in zip(kinds, plots.COLOURS, strict=False):
        found = by(rows, "rounds", "late", masks=masks, noisy=noisy)
        errors(axes, found, colour, f"{NAMES[masks]}, {_gradients(noisy)} gradients")
        if not noisy:
            at = posed(0.5, masks == "rolling")
            for line, name in (("--", "masks" if masks == "random" else "order"), (":", "drift")):
                ys = [predicted(at, int(rounds))[name] for rounds in found]
                theorem = "Theorem 3" if at.rolling else "repaired" if name == "masks" else "Theorem 1"
                axes.plot(list(found), ys, line, color=colour, linewidth=1, label=f"{theorem}, {name}")
    axes.set(xlabel="rounds", ylabel="squared distance to the masked optimum")


def _residual(axes: "Axes", rows: list[Facts]) -> None:
    for masks, colour in zip(BOTH, plots.COLOURS, strict=False):
        found = {1 - s: mean for s, mean in by(rows, "share", "output", masks=masks).items() if s < 1}
        errors(axes, found, colour, f"{NAMES[masks]}: excess risk")
        problems = [posed(1 - missing, masks == "rolling") for missing in found]
        exact = [at.excess(at.optimum) for at in problems]
        axes.plot(list(found), exact, ":", color=colour, linewidth=1.2, label="at the masked optimum")
    terms = [residual(at.setting) for at in problems]
    axes.plot(list(found), terms, "--", color="#6b6b6b", linewidth=1, label="residual term")
    axes.set(xlabel="masked share, 1 - p", ylabel="F - F*")


def _gradient(axes: "Axes", rows: list[Facts]) -> None:
    for masks, colour in zip(BOTH, plots.COLOURS, strict=False):
        found = by(rows, "rounds", "gradient", masks=masks)
        errors(axes, found, colour, NAMES[masks])
        sums = [sum(stationarity(posed(0.5, masks == "rolling"), int(r)).values()) for r in found]
        axes.plot(list(found), sums, "--", color=colour, linewidth=1, label=f"Theorem {4 if masks == 'rolling' else 2}")
    axes.set(xlabel="rounds", ylabel="mean squared gradient of the masked objective")


def errors(axes: "Axes", found: dict[float, Mean], colour: str, label: str) -> None:
    """Plot means with their intervals."""
    # A logarithmic scale cannot show an interval that reaches below zero.
    low = [min(mean.half, 0.9 * mean.value) for mean in found.values()]
    bars = [low, [mean.half for mean in found.values()]]
    means = [mean.value for mean in found.values()]
    axes.errorbar(list(found), means, bars, fmt="o-", color=colour, markersize=4, linewidth=1.6, capsize=3, label=label)
