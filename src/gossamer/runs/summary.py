"""A run in one object: what ``gossamer show --json`` prints and every table is made of.

What a run spent, as its channel says: joules, seconds on the devices, and messages that never arrived.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from gossamer.core.delivery import Delivery
from gossamer.core.wire import OVERHEAD
from gossamer.runs.report.base import summaries_of

Record = dict[str, Any]

KINDS = ("seconds", "joules", "messages", "lost", "wasted")
"""What is told of each client."""


def energy(metrics: Sequence[Record]) -> dict[str, float]:
    """Joules by what they were for."""
    return {use: float(sum(record["energy"][use] for record in metrics)) for use in ("computing", "sending")}


def delay(metrics: Sequence[Record]) -> float:
    """Seconds that all rounds took on the devices and on the air."""
    return float(sum(record["delay"] for record in metrics))


def by_client(metrics: Sequence[Record], clients: int) -> dict[str, list[float]] | None:
    """What each client spent over all rounds, by its number; ``None`` where the channel does not count that."""
    said = [record for record in metrics if record.get("by_client")]
    if not said:
        return None
    spent: dict[str, list[float]] = {kind: [0] * clients for kind in KINDS}
    for record in said:
        for kind in KINDS:
            for client, number in zip(record["clients"], record["by_client"][kind], strict=True):
                spent[kind][client] += number
    return spent


def delivery(metrics: Sequence[Record], clients: int) -> dict[str, list[int]] | None:
    """How many lost messages of each client were made up for, and how many given up; ``None`` where none was."""
    said = [record for record in metrics if record.get("fates")]
    if not said:
        return None
    found = {name: [0] * clients for name in Delivery._fields}
    for record in said:
        for name, counts in found.items():
            for client, number in zip(record["clients"], record["fates"][name], strict=True):
                counts[client] += number
    return found


def unheard(metrics: Sequence[Record]) -> int:
    """In how many rounds messages were lost, and none was folded in any exchange."""
    return sum(bool(r["lost"]) and not any(exchange["folded"] for exchange in r["exchanges"]) for r in metrics)


VALUES = {f"{part}.{name}" for part in ("codec", "down") for name in ("values", "rest.values")}
"""Kinds of bytes that are values of a model's entries, and nothing else."""
FREE = {OVERHEAD, "loss.labels", "refused"}
"""Kinds that are no values, beside those that tell what a client holds."""

EVALUATED = ("accuracy", "loss", "personal_accuracy", "worst_tenth_accuracy")


def summarise(about: dict[str, Any], metrics: Sequence[Record]) -> dict[str, Any]:
    """Accuracies of the last evaluated round, costs summed over all rounds; what is no finite number is ``None``."""
    task, options, request = about["task"], about["options"], about["request"] or {}
    both = totals(metrics, "bytes_up") + totals(metrics, "bytes_down")
    last: Record = next((record for record in reversed(metrics) if "accuracy" in record), {})
    summary = {
        "method": request.get("method") or about.get("name", "custom"),
        "data": task["data"],
        "model": task["model"],
        "split": task["split"],
        "clients": task["clients"],
        "per_round": len(metrics[-1]["clients"]) if metrics else options["per_round"] or task["clients"],
        "parameters": about["parameters"],
        "rounds": len(metrics),
        "rounds_asked": options["rounds"],
        "seed": options["seed"],
        "channel": options.get("channel"),
        "executor": about.get("executor", options["executor"]),
        "rates": about.get("rates"),
        **{name: last.get(name) for name in EVALUATED},
        "evaluated_round": last.get("round"),
        "figures": summaries_of(metrics, task["clients"]),
        "bytes_up": totals(metrics, "bytes_up").total(),
        "bytes_down": totals(metrics, "bytes_down").total(),
        "bytes_views": sum(n for kind, n in both.items() if kind.startswith("view.")),
        "bytes_values": values(both),
        "flops": sum(record["flops"] for record in metrics),
        "useful_flops": sum(record["useful_flops"] for record in metrics),
        "seconds": float(totals(metrics, "seconds").total()),
        "joules": float(sum(record["joules"] for record in metrics)),
        "energy": energy(metrics),
        "delay": delay(metrics),
        "by_client": by_client(metrics, task["clients"]),
        "memory_bytes": max((record["memory_bytes"] for record in metrics), default=0),
        "failures": sum(len(record["failures"]) for record in metrics),
        "lost": sum(len(record["lost"]) for record in metrics),
        "fates": delivery(metrics, task["clients"]),
        "unheard": unheard(metrics),
    }
    return {name: _finite(value) for name, value in summary.items()}


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _finite(part) for name, part in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value


def totals(metrics: Sequence[Record], name: str) -> Counter[str]:
    """What each kind (of bytes, or each phase of seconds) comes to over all rounds."""
    total: Counter[str] = Counter()
    for record in metrics:
        total.update(record.get(name, {}))
    return total


def values(total: Mapping[str, int]) -> int | None:
    """Bytes of values alone, of bytes by kind: what FedSpa's paper counts, for which masks and headers are free.

    None where something else stands for values, of which nobody can say how many they are.
    """
    sent = {kind: n for kind, n in total.items() if kind not in FREE and not kind.startswith("view.")}
    return sum(sent.values()) if sent.keys() <= VALUES else None


def reasons(metrics: Sequence[Record]) -> list[tuple[str, list[tuple[int, int]]]]:
    """Why clients failed, the most frequent first, with the rounds and clients it happened to."""
    found: dict[str, list[tuple[int, int]]] = {}
    for record in metrics:
        for failure in record["failures"]:
            found.setdefault(failure["reason"], []).append((record["round"], failure["client"]))
    return sorted(found.items(), key=lambda item: -len(item[1]))
