"""Values stored of a sub-model run: losses, widths, bytes, seconds of a round, and the generalization gap."""

import statistics

import numpy as np
import torch

from gossamer import LargestWeights, Task, WidthSlice
from gossamer.core.jobs import own_key
from gossamer.core.random import fold, key
from gossamer.core.types import Clock
from gossamer.engines.run import Result
from gossamer.fleet.capacity import capacity
from gossamer.tasks.objective import Objective
from reproduce.common import cells
from reproduce.common.cells import Cell
from reproduce.common.store import Facts


def facts(cell: Cell, task: Task, result: Result) -> Facts:
    """Return losses, model rate (mean width), bytes per client, median seconds of a round, and generalization gap."""
    device = result.about["options"]["device"]
    found = widths(cell, result.metrics)
    sent = {way: sum(sum(record[way].values()) for record in result.metrics) for way in ("bytes_up", "bytes_down")}
    return {
        "loss": [round(record["loss"], 4) for record in result.metrics if "loss" in record],
        "rate": round(statistics.mean(found), 6),
        "bytes_a_client": {way: round(total / len(found)) for way, total in sent.items()},
        **cells.timed(result),
        "gap": gap(cell, task, result, device),
    }


def widths(cell: Cell, metrics: list[Facts]) -> list[float]:
    """Return the capacities of all clients of all rounds: widths, or FIARSE's shares of the weights."""
    view, found = cells.method(cell).view, []
    assert isinstance(view, WidthSlice | LargestWeights)
    for record in metrics:
        for client in record["clients"]:
            clock = Clock(record["round"] - 1, cell.rounds, client)
            at = own_key(fold(key(cell.seed), "round", clock.round), clock)
            found.append(capacity(view.capacities, view.drawn, clock, fold(at, "view")))
    return found


def gap(cell: Cell, task: Task, result: Result, device: str) -> dict[str, float]:
    """Return loss and accuracy of the last model, on the training samples without augmentation and on the test set."""
    objective, params = Objective(task, device, key(cell.seed)), dict(result.model.state_dict())
    rows = torch.from_numpy(np.sort(task.split.train_index)).to(device)
    test = task.data.test
    found: dict[str, float] = {}
    for name, (x, y) in (("train", objective.samples.read(rows)), ("test", test.to(device).read(slice(None)))):
        judged = objective.evaluate(params, x, y)
        (accuracy,) = judged.values()
        found |= {f"{name}_loss": round(judged.loss, 4), f"{name}_accuracy": round(100 * accuracy, 3)}
    return found
