"""What is kept of a sub-model run besides its accuracy: what it sends, how long a round takes, how it overfits."""

import statistics
from typing import Any

import cells
import numpy as np
import torch
from cells import Cell

from gossamer import Task, WidthSlice
from gossamer.core.jobs import own_key
from gossamer.core.random import fold, key
from gossamer.core.types import Clock
from gossamer.engines.run import Result
from gossamer.fleet.capacity import capacity
from gossamer.tasks.objective import Objective

Record = dict[str, Any]


def facts(cell: Cell, task: Task, result: Result) -> dict[str, Any]:
    """Losses by evaluated round, model rate (the mean width), bytes a client, seconds of a round (median), the gap."""
    device = result.about["options"]["device"]
    held = widths(cell, result.metrics)
    sent = {way: sum(sum(record[way].values()) for record in result.metrics) for way in ("bytes_up", "bytes_down")}
    return {
        "loss": [round(record["loss"], 4) for record in result.metrics if "loss" in record],
        "rate": round(statistics.mean(held), 6),
        "bytes_a_client": {way: round(total / len(held)) for way, total in sent.items()},
        **cells.timed(result),
        "gap": gap(cell, task, result, device),
    }


def widths(cell: Cell, metrics: list[Record]) -> list[float]:
    """The widths of all clients of all rounds, as they were drawn."""
    view, found = cells.method(cell).view, []
    assert isinstance(view, WidthSlice)
    for record in metrics:
        for client in record["clients"]:
            clock = Clock(record["round"] - 1, cell.rounds, client)
            at = own_key(fold(key(cell.seed), "round", clock.round), clock)
            found.append(capacity(view.capacities, view.drawn, clock, fold(at, "view")))
    return found


def gap(cell: Cell, task: Task, result: Result, device: str) -> dict[str, float]:
    """Loss and accuracy of the last model on the clients' training samples as they are, and on the test set."""
    objective, params = Objective(task, device, key(cell.seed)), dict(result.model.state_dict())
    rows = torch.from_numpy(np.sort(task.split.train_index)).to(device)
    test = task.data.test
    found: dict[str, float] = {}
    for name, x, y in (("train", objective.x[rows], objective.y[rows]), ("test", test.x.to(device), test.y.to(device))):
        loss, right = objective.evaluate(params, x, y)
        found |= {f"{name}_loss": round(loss, 4), f"{name}_accuracy": round(100 * float(right.float().mean()), 3)}
    return found
