"""What is kept of a FedSpa run: personal accuracies by round, and costs as they are and as the paper counts them."""

from typing import Any

import cells
from cells import Cell
from fedspa_studies import EPOCHS

from gossamer import Pruned, Task
from gossamer.analysis.theory.costs import paper_forward_flops, paper_round_flops
from gossamer.core.random import key
from gossamer.engines.run import Result
from gossamer.parts.views import masks
from gossamer.parts.views.personal_mask import BoundPersonalMask
from gossamer.tasks.objective import Objective

Record = dict[str, Any]
WAYS = ("bytes_down", "bytes_up")


def facts(cell: Cell, task: Task, result: Result) -> dict[str, Any]:
    """All figures that the page needs; ``best`` and ``last`` are those of clients' own models, as in the paper."""
    told = [record for record in result.metrics if "personal_accuracy" in record]
    return {
        **cells.personal(result),
        **cells.timed(result),
        "bytes": _running([_bytes(record) for record in result.metrics], told),
        "paper_bytes": _running([_bytes(record, "values") for record in result.metrics], told),
        "useful_flops": sum(record["useful_flops"] for record in result.metrics),
        "paper_flops": paper_flops(cell, task, result.metrics),
        "masks": result.metrics[-1].get("figures", {}).get("masks"),
    }


def _bytes(record: Record, kind: str = "") -> int:
    """Bytes both ways; or of those kinds alone whose names end so: the paper counts values, and nothing else."""
    return sum(size for way in WAYS for name, size in record[way].items() if name.endswith(kind))


def _running(each: list[int], told: list[Record]) -> list[int]:
    """The sum up to each evaluated round."""
    return [sum(each[: record["round"]]) for record in told]


def paper_flops(cell: Cell, task: Task, metrics: list[Record]) -> int | None:
    """Operations as the paper counts them; none where a mask's size changes from round to round.

    A batch by which masks are moved is charged to every run with masks, whether these move or not.
    """
    view = cells.method(cell).bind(Objective(task, "cpu", key(cell.seed))).training.view
    if isinstance(view, Pruned):
        return None
    module, sample = task.model(), task.data.train.x[0]
    dense = forward = paper_forward_flops(module, sample)
    screened = 0
    if isinstance(view, BoundPersonalMask):
        held = view.first(0)["mask"]
        forward = paper_forward_flops(module, sample, {name: masks.count(packed) for name, packed in held.items()})
        screened = cell.given["batch"]
    sizes = task.split.sizes()
    return sum(
        paper_round_flops(forward, int(sizes[client]), EPOCHS, screened, dense)
        for record in metrics
        for client in record["clients"]
    )
