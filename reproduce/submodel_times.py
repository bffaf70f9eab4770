"""How long a client of each width takes for one round, by how its channels are chosen: in turns, on one device.

Tables 5 to 8 have seconds a round. Those of cells are no match for them where cells share a device, so here one client
after the other trains on random images, which cost as much as any; medians are kept with the device's name.
"""

import json
import statistics
from fractions import Fraction
from typing import Any

import cells
import torch
from fedmrn_times import entrant
from submodel_studies import recipe

from gossamer import Task
from gossamer.engines.metrics import machine
from gossamer.fleet.capacity import SHARES
from gossamer.tasks.nets import build

SHAPE = torch.Size([3, 32, 32])
RACED = ("rolling", "random", "published", "static")
EXECUTOR = "one-by-one"
"""As in the published code; compiled programs of equal shapes are equal, however the channels were chosen."""
PLANS = {"cpu": {"samples": 20, "repeats": 3}, "cuda": {"samples": 500, "repeats": 3}}


def images(samples: int) -> Task:
    """One client with random images."""
    draw = torch.Generator().manual_seed(0)
    x, y = torch.randn(samples, *SHAPE, generator=draw), torch.randint(10, (samples,), generator=draw)
    return Task.of(lambda: build("resnet18", SHAPE, 10), (x, y), (x[:10], y[:10]), clients=1)


def race(share: float, task: Task, device: str, repeats: int) -> dict[str, float]:
    """Milliseconds of each method's client: training, encoding and folding; medians after one turn to warm up."""
    methods = {name: recipe(name, capacities=(share,)) for name in RACED}
    field = {name: entrant(method, task, device, EXECUTOR) for name, method in methods.items()}
    turns = [{name: _whole(each.measure()) for name, each in field.items()} for _ in range(1 + repeats)][1:]
    return {name: round(statistics.median(turn[name] for turn in turns), 2) for name in field}


def _whole(measured: dict[str, float]) -> float:
    return sum(measured[part] for part in ("train", "encode", "fold"))


def keep() -> None:
    """Measure on the device at hand, unless that is there already."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    path, plan = cells.CELLS / f"submodel-times-{device}.json", PLANS[device]
    if not path.exists():
        task = images(plan["samples"])
        times = {str(Fraction(share)): race(share, task, device, plan["repeats"]) for share in SHARES}
        facts = {name: machine(device)[name] for name in ("device", "torch")}
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({**facts, **plan, "times": times}) + "\n")
    print(f"{path.stem}: {json.loads(path.read_text())['device']}")


def tables() -> str:
    """A table for each kind of device that was measured."""
    kept = [json.loads(path.read_text()) for path in sorted(cells.CELLS.glob("submodel-times-*.json"))]
    return "\n".join(map(_table, kept))


def _table(found: dict[str, Any]) -> str:
    title = f"\n### One client's round by width, {found['device']}\n"
    told = f"{found['samples']} images, one client at a time, torch {found['torch']}, medians of {found['repeats']}."
    told += " In brackets the time beside `rolling`'s.\n"
    lines = [f"| width | {' | '.join(f'`{name}`' for name in RACED)} |", "| --- " * (1 + len(RACED)) + "|"]
    times: dict[str, dict[str, float]] = found["times"]
    means = {name: statistics.mean(row[name] for row in times.values()) for name in RACED}
    lines += [f"| {width} | {_told(row)} |" for width, row in {**times, "mean of the five": means}.items()]
    return "\n".join([title, told, *lines])


def _told(row: dict[str, float]) -> str:
    return " | ".join(f"{row[name]:.1f} ms ({row[name] / row['rolling']:.2f})" for name in RACED)
