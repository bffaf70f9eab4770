"""Times of one client's round by width and choice of channels, in turns on one device.

Tables 5 to 8 give seconds per round. The seconds of cells are not comparable, since cells share a device. Here one
client at a time trains on random images. Medians are stored with the name of the device.
"""

import statistics
from fractions import Fraction
from pathlib import Path

from gossamer import Task
from gossamer.fleet.capacity import SHARES
from reproduce.common import tables, timing
from reproduce.common.store import Facts
from reproduce.common.timing import Times
from reproduce.submodel.studies import recipe

SHAPE = (3, 32, 32)
RACED = ("rolling", "random", "published", "static")
EXECUTOR = "one-by-one"
"""As in the published code. Compiled programs of equal shapes are equal for every choice of channels."""
PLANS = {"cpu": {"samples": 20, "repeats": 3}, "cuda": {"samples": 500, "repeats": 3}}


def race(share: float, task: Task, device: str, repeats: int) -> Times:
    """Return the milliseconds of each method's client, for training, encoding and aggregation together."""
    methods = {name: recipe(name, capacities=(share,)) for name in RACED}
    found = timing.race(methods, task, device, EXECUTOR, repeats, warm_up=1)
    parts = ("train", "encode", "fold")
    return {
        name: timing.median([sum(turn[part] for part in parts) for turn in turns], 2) for name, turns in found.items()
    }


def measure(device: str, plan: Facts) -> dict[str, Times]:
    """Return the times by width."""
    task = timing.images("resnet18", plan["samples"], SHAPE)
    return {str(Fraction(share)): race(share, task, device, plan["repeats"]) for share in SHARES}


def keep(data_dir: Path) -> None:
    """Measure on this machine's device, unless its times are stored."""
    timing.keep("submodel", PLANS, measure)


def section() -> str:
    """Return a table per device."""
    return "\n".join(map(_table, timing.stored("submodel")))


def _table(facts: Facts) -> str:
    note = f"{facts['samples']} images, one client at a time, torch {facts['torch']}, medians of {facts['repeats']}."
    note += " In brackets: relative to `rolling`."
    times: dict[str, Times] = facts["times"]
    means = {name: statistics.mean(row[name] for row in times.values()) for name in RACED}
    rows = [[width, *_row(row)] for width, row in {**times, "mean of the five": means}.items()]
    heads = ["width", *(f"`{name}`" for name in RACED)]
    return tables.section(f"One client's round by width, {facts['device']}", heads, rows, note)


def _row(row: Times) -> list[str]:
    return [f"{row[name]:.1f} ms ({row[name] / row['rolling']:.2f})" for name in RACED]
