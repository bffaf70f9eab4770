"""Values stored of a FedSpa run: personal accuracies by round, and costs, actual and as the paper counts them."""

from typing import Any

from gossamer import Task
from gossamer.analysis.theory.costs import fedspa_flops
from gossamer.core.random import key
from gossamer.engines.run import Result
from gossamer.tasks.objective import Objective
from reproduce.common import cells
from reproduce.common.cells import Cell

Record = dict[str, Any]
WAYS = ("bytes_down", "bytes_up")


def facts(cell: Cell, task: Task, result: Result) -> dict[str, Any]:
    """Return all values of the page. ``best`` and ``last`` are personal accuracies, as in the paper."""
    evaluated = [record for record in result.metrics if "personal_accuracy" in record]
    return {
        **cells.personal(result),
        **cells.timed(result),
        "bytes": _running([_bytes(record) for record in result.metrics], evaluated),
        "paper_bytes": _running([_bytes(record, "values") for record in result.metrics], evaluated),
        "useful_flops": sum(record["useful_flops"] for record in result.metrics),
        "paper_flops": paper_flops(cell, task, result.metrics),
        "masks": result.metrics[-1].get("figures", {}).get("masks"),
    }


def _bytes(record: Record, kind: str = "") -> int:
    """Return the bytes of both directions, of the kinds whose names end with ``kind``. The paper only counts values."""
    return sum(size for way in WAYS for name, size in record[way].items() if name.endswith(kind))


def _running(each: list[int], evaluated: list[Record]) -> list[int]:
    """Return the running sum at each evaluated round."""
    return [sum(each[: record["round"]]) for record in evaluated]


def paper_flops(cell: Cell, task: Task, metrics: list[Record]) -> int | None:
    """Return the operations as the paper counts them; None where the size of a mask changes between rounds."""
    return fedspa_flops(cells.method(cell).bind(Objective(task, "cpu", key(cell.seed))), task, metrics)
