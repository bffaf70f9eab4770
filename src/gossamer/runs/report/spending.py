"""Costs that the channel counts, as text: energy, delay and outages, and the clients with the most of them."""

from collections.abc import Sequence
from typing import Any

from gossamer.runs.report.text import BLANK, count, number, percent, seconds, table

Summary = dict[str, Any]

DELAY = "delay"
COMPARED = ("computing J", "sending J", DELAY, "lost")
"""The columns of ``compare`` for costs. Next to virtual time, there is no delay."""

DELIVERY = ("compensated", "dropped")
"""The columns for the outcome of lost messages."""

LISTED = 10
"""The number of clients that are listed one by one, those with the most losses first."""


def rows(summary: Summary) -> list[tuple[str, str]]:
    """Return lines on costs and losses that the channel counts."""
    empty = [("nothing arrived", f"in {count(summary['empty_rounds'], 'round')}: the model did not change")]
    delivery = [("lost messages", text)] if (text := lost(summary)) else []
    return [*_spent(summary), *delivery, *(empty if summary["empty_rounds"] else [])]


def lost(summary: Summary) -> str:
    """Return the number of lost messages and their outcome; empty if none was lost."""
    total, delivery = summary["lost"], summary["delivery"]
    if delivery is None:
        return f"{total:,}, none of them compensated" if total else ""
    compensated, dropped = sum(delivery["retained"]), sum(delivery["forgotten"])
    outcome = f"{compensated:,} compensated by a later one, {dropped:,} dropped"
    waiting = total - compensated - dropped
    more = f", {waiting:,} pending" if waiting > 0 else ""
    return f"{total:,}: {outcome}{more}" if total else outcome


def _spent(summary: Summary) -> list[tuple[str, str]]:
    spent = summary["by_client"]
    if spent is None:
        return [("energy", _uses(summary["energy"]))] if summary["time"] is not None and summary["joules"] else []
    wasted = f", {number(sum(spent['wasted']))} J of it for lost messages" if sum(spent["wasted"]) else ""
    costs = [("energy", _uses(summary["energy"]) + wasted)]
    if summary["time"] is None:
        each = seconds(summary["delay"] / max(1, summary["rounds"]))
        costs.append(("delay", f"{seconds(summary['delay'])} computing and sending, {each} per round"))
    return [*costs, *_outages(spent), ("joules per client", _range(spent["joules"], _active(spent), number))]


def _uses(energy: dict[str, float]) -> str:
    """Return the joules by use; those of receiving and waiting if there are any."""
    received = f", {number(energy['receiving'])} J receiving" if energy["receiving"] else ""
    idle = f", {number(energy['idle'])} J idle" if energy["idle"] else ""
    return f"{number(energy['computing'])} J computing{received}, {number(energy['sending'])} J sending{idle}"


def _outages(spent: dict[str, list[Any]]) -> list[tuple[str, str]]:
    sent, senders = sum(spent["messages"]), [c for c, n in enumerate(spent["messages"]) if n]
    if not sent:
        return []
    shares = [lost / max(1, sent) for lost, sent in zip(spent["lost"], spent["messages"], strict=True)]
    share = percent(sum(spent["lost"]) / sent)
    return [("outages", f"{share} of {count(sent, 'message')}; by client {_range(shares, senders, percent)}")]


def _active(spent: dict[str, list[Any]]) -> list[int]:
    """Return the clients that spent energy."""
    return [client for client, joules in enumerate(spent["joules"]) if joules]


def _range(values: Sequence[float], clients: Sequence[int], write: Any) -> str:
    """Return the smallest and the largest value, with their clients."""
    if not clients:
        return BLANK
    least, most = (choose(clients, key=lambda client: values[client]) for choose in (min, max))
    return f"{write(values[least])} (client {least}) to {write(values[most])} (client {most})"


def by_client(summary: Summary) -> str:
    """Return a table of the clients with the most losses; empty if the channel does not count them."""
    spent = summary["by_client"]
    if spent is None:
        return ""
    shares = [lost / max(1, sent) for lost, sent in zip(spent["lost"], spent["messages"], strict=True)]
    order = sorted(_active(spent), key=lambda client: -shares[client])
    delivery = summary["delivery"]
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
    """Return the cells of a run in the columns of ``DELIVERY``."""
    found = summary["delivery"]
    return tuple(f"{sum(counts):,}" for counts in found.values()) if found else (BLANK,) * len(DELIVERY)


def compared(summary: Summary) -> dict[str, str]:
    """Return the cells of a run, by column; nothing if its channel counts no costs."""
    if summary["by_client"] is None:
        return {}
    energy = summary["energy"]
    cells = (
        number(energy["computing"]),
        number(energy["sending"]),
        seconds(summary["delay"]),
        f"{summary['lost']:,}",
    )
    return dict(zip(COMPARED, cells, strict=True))
