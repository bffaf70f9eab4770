"""Values over seeds: collect them, compare them seed by seed, and format mean and spread."""

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar

from reproduce.common import cells
from reproduce.common.cells import Cell
from reproduce.common.store import Facts

T = TypeVar("T")


def by_seed(cell: Callable[[int], Cell], seeds: Iterable[int]) -> dict[int, Facts]:
    """Return the stored results of a cell by seed."""
    every = {seed: cell(seed) for seed in seeds}
    return {seed: cells.read(each) for seed, each in every.items() if each.stored}


def paired(first: Mapping[int, T], second: Mapping[int, T], value: Callable[[T], float]) -> list[float]:
    """Return the differences first - second over the seeds that both have."""
    return [value(first[seed]) - value(second[seed]) for seed in sorted(first.keys() & second.keys())]


def spread(values: Sequence[float], digits: int = 2, unit: str = "") -> str:
    """Format a mean over seeds, with the smallest and the largest value in brackets."""
    mean, low, high = (f"{v:.{digits}f}{unit}" for v in (statistics.mean(values), min(values), max(values)))
    return mean if len(values) == 1 else f"{mean} ({low} to {high})"


def interval(values: Sequence[float], digits: int = 2) -> str:
    """Format a mean over seeds, with 1.96 standard errors."""
    mean = f"{statistics.mean(values):.{digits}f}"
    if len(values) == 1:
        return mean
    return f"{mean} ± {1.96 * statistics.stdev(values) / math.sqrt(len(values)):.{digits}f}"
