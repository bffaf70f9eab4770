"""Means over the runs of reproduce/submodel_theory.py that are kept, and what is predicted of them."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from submodel_theory_problem import ENTRIES, ZERO, Problem

from gossamer.analysis.theory import (
    random_distance,
    random_distance_printed,
    random_rate,
    random_stationarity,
    rolling_distance,
    rolling_stationarity,
)

Row = dict[str, Any]
Found = dict[str, list[Row]]

QUANTILES = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776}
"""Of Student's t: a 95 % interval of a mean over so many seeds."""

BOTH = ("random", "rolling")
NAMES = {"random": "random masks", "rolling": "shuffled windows"}


class Mean(NamedTuple):
    """A mean over seeds, and half of its 95 % interval."""

    value: float
    half: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Mean":
        spread = statistics.stdev(values) / math.sqrt(len(values))
        return cls(statistics.mean(values), QUANTILES[len(values)] * spread)

    def __str__(self) -> str:
        return f"{self.value:.2e} ± {self.half:.0e}"


def by(rows: list[Row], across: str, what: str, **wanted: Any) -> dict[float, Mean]:
    """The mean of a figure over seeds, for each value of one of the names of a row."""
    mine = [row for row in rows if all(row[name] == value for name, value in wanted.items())]
    places = dict.fromkeys(row[across] for row in mine)
    return {place: Mean.of([row[what] for row in mine if row[across] == place]) for place in places}


def slope(points: dict[float, float]) -> float:
    """Of the line through the logarithms, by least squares."""
    xs, ys = [math.log(x) for x in points], [math.log(y) for y in points.values()]
    return statistics.linear_regression(xs, ys).slope


def slopes(rows: list[Row], what: str, **wanted: Any) -> Mean:
    """The slope of a figure against rounds, over seeds."""
    mine = [row for row in rows if all(row[name] == value for name, value in wanted.items())]
    seeds = dict.fromkeys(row["seed"] for row in mine)
    return Mean.of([slope({row["rounds"]: row[what] for row in mine if row["seed"] == seed}) for seed in seeds])


# What is predicted.


def start(at: Problem) -> float:
    return float(at.optimum.square().sum())


def predicted(at: Problem, rounds: int) -> dict[str, float]:
    """The terms of Theorem 3, or of Theorem 1 as printed and what it leaves out, at the rate of the runs."""
    rate = random_rate(at.setting, rounds)
    if at.rolling:
        return rolling_distance(at.setting, rounds // ENTRIES, start(at), rate)
    masks = 12 * rate * at.setting.steps * at.setting.spread / at.setting.masked_convexity
    return {**random_distance_printed(at.setting, rounds, start(at), rate), "masks": masks}


def bound(at: Problem, rounds: int) -> float | None:
    """The repaired Theorem 1, where its condition on the rate holds; Theorem 3's leading terms."""
    if at.rolling:
        return sum(predicted(at, rounds).values())
    try:
        return sum(random_distance(at.setting, rounds, start(at)).values())
    except ValueError:
        return None


def stationarity(at: Problem, rounds: int) -> dict[str, float]:
    value = float(at.masked.value(ZERO))
    if at.rolling:
        return rolling_stationarity(at.setting, rounds // ENTRIES, value)
    widest = max(at.masked.spread(w) for w in (ZERO, at.optimum))
    return random_stationarity(replace(at.setting, spread=widest), rounds, value)
