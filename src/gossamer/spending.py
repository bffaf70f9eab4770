"""What a run spent, as its channel says: joules, seconds on the devices, and messages that never arrived."""

from collections.abc import Sequence
from typing import Any

from gossamer.fates import Fate

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


def fates(metrics: Sequence[Record], clients: int) -> dict[str, list[int]] | None:
    """How many lost messages of each client were made up for, and how many given up; ``None`` where none was."""
    said = [record for record in metrics if record.get("fates")]
    if not said:
        return None
    found = {name: [0] * clients for name in Fate._fields}
    for record in said:
        for name, counts in found.items():
            for client, number in zip(record["clients"], record["fates"][name], strict=True):
                counts[client] += number
    return found


def unheard(metrics: Sequence[Record]) -> int:
    """In how many rounds messages were lost, and none was folded in any exchange."""
    return sum(bool(r["lost"]) and not any(exchange["folded"] for exchange in r["exchanges"]) for r in metrics)
