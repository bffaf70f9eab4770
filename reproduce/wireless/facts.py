"""Values stored of a run over radio links: energy and time by evaluated round, and lost messages."""

from itertools import accumulate

from gossamer import Task
from gossamer.engines.run import Result
from gossamer.runs.report import summary
from reproduce.common.cells import Cell
from reproduce.common.store import Facts


def facts(cell: Cell, task: Task, result: Result) -> Facts:
    """Return all values of the page. Energy and time are those of the devices, summed up to each evaluated round."""
    metrics = result.metrics
    evaluated = [record for record in metrics if "accuracy" in record]
    spent = summary.by_client(metrics, task.clients)
    assert spent is not None
    return {
        "rounds_told": [record["round"] for record in evaluated],
        "losses": [round(record["loss"], 5) for record in evaluated],
        "computing": _running([record["energy"]["computing"] for record in metrics], evaluated),
        "sending": _running([record["energy"]["sending"] for record in metrics], evaluated),
        "delays": _running([record["delay"] for record in metrics], evaluated),
        "seconds": None,
        "messages": sum(spent["messages"]),
        "lost": sum(spent["lost"]),
        "wasted": round(sum(spent["wasted"]), 6),
        "outages": [lost / sent for lost, sent in zip(spent["lost"], spent["messages"], strict=True)],
        "arrays": _mean([record["bytes_up"] for record in metrics], sum(spent["messages"])),
        "unheard": summary.empty_rounds(metrics),
    }


def _running(each: list[float], evaluated: list[Facts]) -> list[float]:
    """Return the running sum at each evaluated round."""
    sums = list(accumulate(each))
    return [round(sums[record["round"] - 1], 6) for record in evaluated]


def _mean(sizes: list[dict[str, int]], messages: float) -> dict[str, float]:
    """Return the mean bytes of each array of a message, over all messages sent."""
    names = sorted({name for size in sizes for name in size})
    found = {name: round(sum(size.get(name, 0) for size in sizes) / messages, 1) for name in names}
    return {name.removeprefix("codec."): size for name, size in found.items()}
