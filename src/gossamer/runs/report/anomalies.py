"""The clients that the records of a run name: their uploads were far from those of their cohorts."""

from collections.abc import Mapping, Sequence
from typing import Any

from gossamer.runs.records import ANOMALIES, EXCLUDED, Record
from gossamer.runs.report.text import count, number, table

HEAD = ("client", "rounds", "reasons")

REASONS = {
    "norm": "norm {} times the cohort's",
    "direction": "cosine {} with the cohort's direction",
    "weight": "samples {} times the cohort's",
}
"""What each entry of an anomaly says, given its most extreme value."""

LISTED = 20
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
            for name in REASONS.keys() & each.keys():
                worst = min if name == "direction" else max
                mine["reasons"][name] = worst(each[name], mine["reasons"].get(name, each[name]))
    out = excluded_of(metrics)
    ordered = sorted(found.values(), key=lambda mine: (-len(mine["rounds"]), mine["client"]))
    return [{**mine, "excluded": mine["client"] in out} for mine in ordered]


def excluded_of(metrics: Sequence[Record]) -> list[int]:
    """Return the clients that were not sampled in the last round because of earlier anomalies."""
    return list(metrics[-1].get(EXCLUDED, ())) if metrics else []


def rows(named: Sequence[Mapping[str, Any]]) -> list[tuple[str, str, str]]:
    """Return the cells of a table of named clients: client, rounds and reasons."""
    return [(str(mine["client"]), _rounds(mine), _reasons(mine)) for mine in named[:LISTED]]


def _rounds(mine: Mapping[str, Any]) -> str:
    first, last = mine["rounds"][0], mine["rounds"][-1]
    return f"{len(mine['rounds'])}, from {first} to {last}" if last > first else f"1, in {first}"


def _reasons(mine: Mapping[str, Any]) -> str:
    told = [text.format(number(mine["reasons"][name])) for name, text in REASONS.items() if name in mine["reasons"]]
    return "; ".join([*told, *(["excluded"] if mine["excluded"] else [])])


def shown(named: Sequence[Mapping[str, Any]]) -> str:
    """Return the table of named clients for a terminal, below a title; empty if nobody is named."""
    if not named:
        return ""
    more = f"\nand {count(len(named) - LISTED, 'other client')}" if len(named) > LISTED else ""
    return f"anomalies: clients far from their cohort\n{table(HEAD, rows(named))}{more}"
