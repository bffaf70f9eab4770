"""What a run spent as its channel says, in words: energy, delay and outages, and who had the most of them."""

from collections.abc import Sequence
from typing import Any

from gossamer.runs.report.text import BLANK, count, number, percent, seconds, table

Summary = dict[str, Any]

COMPARED = ("computing J", "sending J", "delay", "lost")
"""The columns that say what runs spent, side by side."""

DELIVERY = ("made up for", "given up")
"""The columns that say what became of lost messages."""

LISTED = 10
"""So many clients are listed one by one, those first of which most was lost."""


def rows(summary: Summary) -> list[tuple[str, str]]:
    """What was spent and lost, where the channel counts it."""
    heard = [("nothing arrived", f"in {count(summary['unheard'], 'round')}: the model stayed as it was")]
    delivery = [("lost messages", said)] if (said := lost(summary)) else []
    return [*_spent(summary), *delivery, *(heard if summary["unheard"] else [])]


def lost(summary: Summary) -> str:
    """How many messages were lost, and what became of them; nothing where none was."""
    many, delivery = summary["lost"], summary["fates"]
    if delivery is None:
        return f"{many:,}, none of them made up for" if many else ""
    made_up, given_up = sum(delivery["retained"]), sum(delivery["forgotten"])
    told = f"{made_up:,} made up for by a later one, {given_up:,} given up"
    waiting = many - made_up - given_up
    more = f", {waiting:,} still open" if waiting > 0 else ""
    return f"{many:,}: {told}{more}" if many else told


def _spent(summary: Summary) -> list[tuple[str, str]]:
    spent, energy = summary["by_client"], summary["energy"]
    if spent is None:
        return []
    uses = f"{number(energy['computing'])} J computing, {number(energy['sending'])} J sending"
    wasted = f", {number(sum(spent['wasted']))} J of it for what was lost" if sum(spent["wasted"]) else ""
    each = seconds(summary["delay"] / max(1, summary["rounds"]))
    told = [
        ("energy", uses + wasted),
        ("delay", f"{seconds(summary['delay'])} on the devices and on the air, {each} a round"),
    ]
    return [*told, *_outages(spent), ("joules a client", _range(spent["joules"], _active(spent), number))]


def _outages(spent: dict[str, list[Any]]) -> list[tuple[str, str]]:
    sent, senders = sum(spent["messages"]), [c for c, n in enumerate(spent["messages"]) if n]
    if not sent:
        return []
    shares = [lost / max(1, sent) for lost, sent in zip(spent["lost"], spent["messages"], strict=True)]
    share = percent(sum(spent["lost"]) / sent)
    return [("outages", f"{share} of {count(sent, 'message')}; by client {_range(shares, senders, percent)}")]


def _active(spent: dict[str, list[Any]]) -> list[int]:
    """Who spent anything at all."""
    return [client for client, joules in enumerate(spent["joules"]) if joules]


def _range(values: Sequence[float], clients: Sequence[int], write: Any) -> str:
    """From the least to the most, and who has them."""
    if not clients:
        return BLANK
    least, most = (choose(clients, key=lambda client: values[client]) for choose in (min, max))
    return f"{write(values[least])} (client {least}) to {write(values[most])} (client {most})"


def by_client(summary: Summary) -> str:
    """A row for each of the clients of which most was lost; nothing where the channel does not count that."""
    spent = summary["by_client"]
    if spent is None:
        return ""
    shares = [lost / max(1, sent) for lost, sent in zip(spent["lost"], spent["messages"], strict=True)]
    order = sorted(_active(spent), key=lambda client: -shares[client])
    delivery = summary["fates"]
    head = ("client", "messages", "lost", "share", *(DELIVERY if delivery else ()), "joules", "seconds")
    listed = [
        (
            str(client),
            f"{spent['messages'][client]:,}",
            f"{spent['lost'][client]:,}",
            percent(shares[client]),
            *(f"{counts[client]:,}" for counts in (delivery or {}).values()),
            number(spent["joules"][client]),
            number(spent["seconds"][client]),
        )
        for client in order[:LISTED]
    ]
    more = f"\nand {count(len(order) - LISTED, 'other client')}" if len(order) > LISTED else ""
    return table(head, listed) + more


def delivery(summary: Summary) -> tuple[str, ...]:
    """A run's cells in the columns of ``DELIVERY``."""
    found = summary["fates"]
    return tuple(f"{sum(counts):,}" for counts in found.values()) if found else (BLANK,) * len(DELIVERY)


def compared(summary: Summary) -> tuple[str, ...]:
    """A run's cells in the columns of ``COMPARED``."""
    if summary["by_client"] is None:
        return (BLANK,) * len(COMPARED)
    energy = summary["energy"]
    return (
        number(energy["computing"]),
        number(energy["sending"]),
        seconds(summary["delay"]),
        f"{summary['lost']:,}",
    )
