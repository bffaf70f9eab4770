"""The summary of a run: the object that ``gossamer show --json`` prints, and the source of every table.

It includes the costs that the channel counts (energy, seconds on devices, lost messages), and the clients that the
records name because their uploads were far from those of their cohorts. Parts of a method are recorded as text, such as
``Robust(rule=Median(), mean=Mean())``, and read from it.
"""

import ast
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from gossamer.core.delivery import OVERHEAD, Delivery
from gossamer.parts.servers.robust import PLAIN
from gossamer.runs.records import ANOMALIES, ATTACK_SUCCESS, CLUSTER, DIVERGES, EXCLUDED, Record, stop_reason
from gossamer.runs.report.base import summaries_of
from gossamer.runs.report.scores import VALIDATION_LOSS, Score, held_out, scores_of
from gossamer.runs.report.text import count, number, table
from gossamer.runs.report.timeline import summary_of

KINDS = ("seconds", "joules", "messages", "lost", "wasted")
"""The costs that are counted for each client."""

USES = ("computing", "sending", "receiving", "idle")
"""What energy is spent on."""


def by_client(
    metrics: Sequence[Record], clients: int, entry: str = "by_client", kinds: Sequence[str] = KINDS
) -> dict[str, list[float]] | None:
    """Return what an entry of records counts for each client over all rounds, by kind; none if nothing was counted."""
    counted = [record for record in metrics if record.get(entry)]
    if not counted:
        return None
    spent: dict[str, list[float]] = {kind: [0] * clients for kind in kinds}
    for record in counted:
        for kind in kinds:
            for client, amount in zip(record["clients"], record[entry][kind], strict=True):
                spent[kind][client] += amount
    return spent


def empty_rounds(metrics: Sequence[Record]) -> int:
    """Return the number of rounds in which messages were lost, or time went by, and no update was aggregated."""
    waited = (record for record in metrics if record["lost"] or "tasks" in record)
    return sum(not any(exchange["folded"] for exchange in record["exchanges"]) for record in waited)


VALUES = {f"{part}.{name}" for part in ("codec", "down") for name in ("values", "rest.values")}
"""Kinds of bytes that are values of parameters, and nothing else."""

FREE = {OVERHEAD, "loss.labels", "refused"}
"""Kinds of bytes that are not values, in addition to those that describe a client's view."""

CUSTOM = "custom"
"""The name of a method that has none."""


def summarise(about: dict[str, Any], metrics: Sequence[Record]) -> dict[str, Any]:
    """Return metrics of the last evaluated round, and sums of costs; non-finite numbers become ``None``."""
    task, options = about["task"], about["options"]
    both = totals(metrics, "bytes_up") + totals(metrics, "bytes_down")
    scores, held = scores_of(task), held_out(about)
    last: Record = next((record for record in reversed(metrics) if scores[0].name in record), {})
    best, cohort = scores[0].best(metrics), options["per_round"] or task["clients"]
    summary = {
        "method": method_name(about),
        "server": chosen_server(about),
        "data": task["data"],
        "model": task["model"],
        "split": task["split"],
        "clients": task["clients"],
        "per_round": about.get("slots") or (len(metrics[-1]["clients"]) if metrics else cohort),
        "parameters": about["parameters"],
        "frozen": about.get("frozen", 0),
        "rounds": len(metrics),
        "rounds_asked": options["rounds"],
        "stopped": stop_reason(about, metrics),
        "seed": options["seed"],
        "channel": options.get("channel"),
        "attack": options.get("attack"),
        "hostile": about.get("hostile", []),
        ATTACK_SUCCESS: last.get(ATTACK_SUCCESS),
        "executor": about.get("executor", options["executor"]),
        "train_precision": options.get("precision", "float32"),
        "checkpointing": options.get("checkpointing", False),
        CLUSTER: about.get(CLUSTER),
        "rates": about.get("rates"),
        "left_out": about.get("left_out"),
        **{name: last.get(name) for name in _evaluated(scores)},
        **({name: last.get(name) for name in (*_evaluated(held), VALIDATION_LOSS) if name != "loss"} if held else {}),
        "validate": options.get("validate"),
        "evaluated_round": last.get("round"),
        "best": best and {"round": best["round"], "value": best[scores[0].name]},
        "metrics": [score._asdict() for score in scores],
        "figures": summaries_of(metrics, task["clients"]),
        "bytes_up": totals(metrics, "bytes_up").total(),
        "bytes_down": totals(metrics, "bytes_down").total(),
        "bytes_views": sum(n for kind, n in both.items() if kind.startswith("view.")),
        "bytes_values": values(both),
        "flops": sum(record["flops"] for record in metrics),
        "useful_flops": sum(record["useful_flops"] for record in metrics),
        "seconds": float(totals(metrics, "seconds").total()),
        "joules": float(sum(record["joules"] for record in metrics)),
        # records need not have costs of downloads and of waiting
        "energy": {use: float(sum(record["energy"].get(use, 0.0) for record in metrics)) for use in USES},
        "delay": float(sum(record["delay"] for record in metrics)),
        **summary_of(about, metrics),
        "by_client": by_client(metrics, task["clients"]),
        "memory_bytes": max((record["memory_bytes"] for record in metrics), default=0),
        "failures": sum(len(record["failures"]) for record in metrics),
        "lost": sum(len(record["lost"]) for record in metrics),
        DIVERGES: next((record[DIVERGES] for record in metrics if DIVERGES in record), None),
        "anomalies": anomalies_of(metrics),
        "excluded": excluded_of(metrics),
        "delivery": by_client(metrics, task["clients"], "delivery", Delivery._fields),
        "empty_rounds": empty_rounds(metrics),
    }
    return {name: _finite(value) for name, value in summary.items()}


def _evaluated(scores: Sequence[Score]) -> Iterator[str]:
    """Yield the entries of a record that come from its evaluation, those of the primary metric first."""
    for place, score in enumerate(scores):
        yield score.name
        if not place:
            yield "loss"
        yield from (score.over_clients, score.worst_tenth)


def method_name(about: Mapping[str, Any]) -> str:
    """Return the name of a run's method: as typed, that of a deployment, or that of its recipe in Python."""
    request, recipe = about["request"] or {}, about.get("recipe") or {}
    names = (request.get("method"), about.get("name"), recipe.get("name"))
    return next((name for name in names if name and name != CUSTOM), CUSTOM)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _finite(part) for name, part in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value


def totals(metrics: Sequence[Record], name: str) -> Counter[str]:
    """Return the sum over all rounds of each kind of bytes, or of each phase of seconds."""
    total: Counter[str] = Counter()
    for record in metrics:
        total.update(record.get(name, {}))
    return total


def values(total: Mapping[str, int]) -> int | None:
    """Return the bytes of values alone, as FedSpa's paper (https://arxiv.org/abs/2201.11380) counts them.

    Masks and headers do not count. The result is ``None`` if values are encoded in another way, because their number
    is then unknown.
    """
    sent = {kind: n for kind, n in total.items() if kind not in FREE and not kind.startswith("view.")}
    return sum(sent.values()) if sent.keys() <= VALUES else None


def reasons(metrics: Sequence[Record]) -> list[tuple[str, list[tuple[int, int]]]]:
    """Return why clients failed, the most frequent reason first, with pairs of round and client."""
    found: dict[str, list[tuple[int, int]]] = {}
    for record in metrics:
        for failure in record["failures"]:
            found.setdefault(failure["reason"], []).append((record["round"], failure["client"]))
    return sorted(found.items(), key=lambda item: -len(item[1]))


ANOMALY_HEAD = ("client", "rounds", "reasons")

ANOMALY_REASONS = {
    "norm": "norm {} times the cohort's",
    "direction": "cosine {} with the cohort's direction",
    "weight": "samples {} times the cohort's",
}
"""What each entry of an anomaly says, given its most extreme value."""

ANOMALIES_LISTED = 20
"""The number of clients in tables."""


def anomalies_of(metrics: Sequence[Record]) -> list[dict[str, Any]]:
    """Return the named clients, the one with most rounds first.

    Each has its number, the rounds in which it was named, the most extreme value of each reason, and whether it is
    excluded.
    """
    found: dict[int, dict[str, Any]] = {}
    for record in metrics:
        for each in record.get(ANOMALIES, ()):
            mine = found.setdefault(each["client"], {"client": each["client"], "rounds": [], "reasons": {}})
            mine["rounds"].append(record["round"])
            for name in ANOMALY_REASONS.keys() & each.keys():
                worst = min if name == "direction" else max
                mine["reasons"][name] = worst(each[name], mine["reasons"].get(name, each[name]))
    out = excluded_of(metrics)
    ordered = sorted(found.values(), key=lambda mine: (-len(mine["rounds"]), mine["client"]))
    return [{**mine, "excluded": mine["client"] in out} for mine in ordered]


def excluded_of(metrics: Sequence[Record]) -> list[int]:
    """Return the clients that were not sampled in the last round because of earlier anomalies."""
    return list(metrics[-1].get(EXCLUDED, ())) if metrics else []


def anomaly_rows(named: Sequence[Mapping[str, Any]]) -> list[tuple[str, str, str]]:
    """Return the cells of a table of named clients: client, rounds and reasons."""
    rows = []
    for mine in named[:ANOMALIES_LISTED]:
        first, last, worst = mine["rounds"][0], mine["rounds"][-1], mine["reasons"]
        when = f"{len(mine['rounds'])}, from {first} to {last}" if last > first else f"1, in {first}"
        told = [text.format(number(worst[name])) for name, text in ANOMALY_REASONS.items() if name in worst]
        rows.append((str(mine["client"]), when, "; ".join([*told, *(["excluded"] if mine["excluded"] else [])])))
    return rows


def anomaly_table(named: Sequence[Mapping[str, Any]]) -> str:
    """Return the table of named clients for a terminal, below a title; empty if nobody is named."""
    if not named:
        return ""
    more = f"\nand {count(len(named) - ANOMALIES_LISTED, 'other client')}" if len(named) > ANOMALIES_LISTED else ""
    return f"anomalies: clients far from their cohort\n{table(ANOMALY_HEAD, anomaly_rows(named))}{more}"


ROBUST = "Robust"
"""The server with a rule in place of the mean."""


def parsed(text: str) -> ast.expr:
    """Return the expression of a part; a constant with the text if it is none."""
    try:
        return ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # a part of the user's may print anything
        return ast.Constant(text)


def chosen_server(about: Mapping[str, Any]) -> str | None:
    """Return the server that replaces the one of the recipe, with its fields; none if the recipe's own is used.

    Of a robust server it is the rule. A server that Python code has put in, and that is not robust, is not told from
    the recipe's own.
    """
    text, asked = about["method"].get("server", ""), (about["request"] or {}).get("server")
    match parsed(text):
        case ast.Call(func=ast.Name(id=name), keywords=[ast.keyword(arg="rule", value=rule), *_]) if name == ROBUST:
            return ast.get_source_segment(text, rule)
    return text if asked and asked != PLAIN else None
