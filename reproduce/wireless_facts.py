"""What is kept of a run over radio links: what it had spent by each evaluated round, and how messages fared."""

from itertools import accumulate
from typing import Any

from cells import Cell

from gossamer import Task
from gossamer.engines.run import Result
from gossamer.runs import summary as spending

Record = dict[str, Any]


def facts(cell: Cell, task: Task, result: Result) -> dict[str, Any]:
    """All figures that the page needs; joules and seconds are those of the devices, up to each evaluated round."""
    metrics = result.metrics
    told = [record for record in metrics if "accuracy" in record]
    spent = spending.by_client(metrics, task.clients)
    assert spent is not None
    return {
        "rounds_told": [record["round"] for record in told],
        "losses": [round(record["loss"], 5) for record in told],
        "computing": _running([record["energy"]["computing"] for record in metrics], told),
        "sending": _running([record["energy"]["sending"] for record in metrics], told),
        "delays": _running([record["delay"] for record in metrics], told),
        "seconds": None,
        "messages": sum(spent["messages"]),
        "lost": sum(spent["lost"]),
        "wasted": round(sum(spent["wasted"]), 6),
        "outages": [lost / sent for lost, sent in zip(spent["lost"], spent["messages"], strict=True)],
        "arrays": _mean([record["bytes_up"] for record in metrics], sum(spent["messages"])),
        "unheard": spending.unheard(metrics),
    }


def _running(each: list[float], told: list[Record]) -> list[float]:
    """The sum up to each evaluated round."""
    sums = list(accumulate(each))
    return [round(sums[record["round"] - 1], 6) for record in told]


def _mean(sizes: list[dict[str, int]], messages: float) -> dict[str, float]:
    """Bytes of each array of a message, over all that were sent; all but the overhead are the codec's."""
    names = sorted({name for size in sizes for name in size})
    found = {name: round(sum(size.get(name, 0) for size in sizes) / messages, 1) for name in names}
    return {name.removeprefix("codec."): size for name, size in found.items()}
