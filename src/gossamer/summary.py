"""A run in one object: what ``gossamer show --json`` prints and every table is made of."""

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

from gossamer import spending
from gossamer.wire import OVERHEAD

Record = dict[str, Any]

VALUES = {f"{part}.{name}" for part in ("codec", "down") for name in ("values", "rest.values")}
"""Kinds of bytes that are values of a model's entries, and nothing else."""
FREE = {OVERHEAD, "loss.labels", "refused"}
"""Kinds that are no values, beside those that tell what a client holds."""

VISITS = ("trained", "skipped", "capped")
"""What becomes of visits of models to clients, where models go round."""

EVALUATED = ("accuracy", "loss", "personal_accuracy", "worst_tenth_accuracy")


def summarise(about: dict[str, Any], metrics: Sequence[Record]) -> dict[str, Any]:
    """Accuracies of the last evaluated round, costs summed over all rounds; what is no finite number is ``None``."""
    task, options, request = about["task"], about["options"], about["request"] or {}
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
        "masks": masks(metrics, task["clients"]),
        "mixing": next((record["mixing"] for record in reversed(metrics) if record.get("mixing")), None),
        "visits": visits(metrics),
        "bytes_up": totals(metrics, "bytes_up").total(),
        "bytes_down": totals(metrics, "bytes_down").total(),
        "bytes_values": values(metrics),
        "flops": sum(record["flops"] for record in metrics),
        "useful_flops": sum(record.get("useful_flops") or record["flops"] for record in metrics),
        "seconds": float(totals(metrics, "seconds").total()),
        "joules": float(sum(record["joules"] for record in metrics)),
        "energy": spending.energy(metrics),
        "delay": spending.delay(metrics),
        "by_client": spending.by_client(metrics, task["clients"]),
        "memory_bytes": max((record["memory_bytes"] for record in metrics), default=0),
        "failures": sum(len(record["failures"]) for record in metrics),
        "lost": sum(len(record["lost"]) for record in metrics),
        "fates": spending.fates(metrics, task["clients"]),
        "unheard": spending.unheard(metrics),
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


def values(metrics: Sequence[Record]) -> int | None:
    """Bytes of values alone, both ways: what FedSpa's paper counts, for which masks and headers are free.

    None where something else stands for values, of which nobody can say how many they are.
    """
    total = totals(metrics, "bytes_up") + totals(metrics, "bytes_down")
    sent = {kind: n for kind, n in total.items() if kind not in FREE and not kind.startswith("view.")}
    return sum(sent.values()) if sent.keys() <= VALUES else None


def masks(metrics: Sequence[Record], clients: int) -> dict[str, float | None] | None:
    """Masks of clients' own, as of the last round that says something of them; ``None`` where there are none.

    ``moved_in_all`` is the sum over a client's rounds, on average over all clients.
    """
    said = [record for record in metrics if record.get("masks")]
    if not said:
        return None
    heard = [record["masks"] for record in said if record["masks"]["density"] is not None]
    moves = sum((record["masks"]["moved"] or 0.0) * _folded(record) for record in said)
    return {**(heard[-1] if heard else said[-1]["masks"]), "moved_in_all": moves / clients}


def masked(metrics: Sequence[Record]) -> bool:
    """Whether clients have masks of their own that somebody heard of."""
    return any((record.get("masks") or {}).get("density") is not None for record in metrics)


def visits(metrics: Sequence[Record]) -> dict[str, int] | None:
    """Visits of models to clients in the last round that had some, and over the run; ``None`` where there are none."""
    said = [record["visits"] for record in metrics if record.get("visits")]
    if not said:
        return None
    return {**said[-1], **{f"{kind}_in_all": sum(visit[kind] for visit in said) for kind in VISITS}}


def _folded(record: Record) -> int:
    """Of how many clients a message arrived and was folded in, in the last exchange."""
    if exchanges := record.get("exchanges"):
        return int(exchanges[-1]["folded"])
    return len(set(record["clients"]) - {failure["client"] for failure in record["failures"]} - set(record["lost"]))


def reasons(metrics: Sequence[Record]) -> list[tuple[str, list[tuple[int, int]]]]:
    """Why clients failed, the most frequent first, with the rounds and clients it happened to."""
    found: dict[str, list[tuple[int, int]]] = {}
    for record in metrics:
        for failure in record["failures"]:
            found.setdefault(failure["reason"], []).append((record["round"], failure["client"]))
    return sorted(found.items(), key=lambda item: -len(item[1]))
