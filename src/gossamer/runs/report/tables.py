"""Tables of runs: one run in full, or several side by side, with the costs that the channel counts."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from gossamer.runs.records import ATTACK_SUCCESS, CLUSTER, DIVERGES, Record
from gossamer.runs.report import timeline
from gossamer.runs.report.base import cells_of, rows_of
from gossamer.runs.report.scores import VALIDATION, Score, column
from gossamer.runs.report.summary import anomaly_table, reasons, summarise, totals
from gossamer.runs.report.text import (
    BLANK,
    amount,
    count,
    duration,
    number,
    pairs,
    percent,
    ranges,
    seconds,
    size,
    table,
)

Summary = dict[str, Any]
VALUES = "values only"
COUNTED = "as FedSpa's paper counts: 4 bytes per held value, uploads and downloads, without masks and headers"
"""The column of bytes without masks and headers, and its meaning."""

BROKEN_DOWN: tuple[tuple[str, str, Callable[[float], str]], ...] = (
    ("uploaded", "bytes_up", size),
    ("downloaded", "bytes_down", size),
    ("added by Flower", "bytes_flower", size),
    ("for evaluation, including what Flower adds", "bytes_evaluation", size),
    ("seconds", "seconds", duration),
)
"""Sums over all rounds that are shown by kind."""


def closing(summary: Summary) -> str:
    """Return the text at the end of a run."""
    return pairs(facts(summary))


def facts(summary: Summary) -> list[tuple[str, str]]:
    """Return the main facts of a run, one pair per line."""
    at_once = "at once" if summary["schedule"] else "per round"
    suspects = (
        ("anomalies", sorted(mine["client"] for mine in summary["anomalies"])),
        ("excluded", summary["excluded"]),
    )
    return [
        ("method", method(summary)),
        *([("server", summary["server"])] if summary["server"] else []),
        ("task", task(summary)),
        ("clients", f"{summary['clients']:,}, {summary['per_round']:,} {at_once}"),
        ("rounds", f"{summary['rounds']:,} of {summary['rounds_asked']:,}, seed {summary['seed']}"),
        *([("stopped", summary["stopped"])] if summary["stopped"] else []),
        *([("warning", summary[DIVERGES])] if summary[DIVERGES] else []),
        ("executor", executor(summary)),
        *attacked(summary),
        *measured(summary),
        *rows_of(summary["figures"]),
        ("uploaded", size(summary["bytes_up"])),
        ("downloaded", size(summary["bytes_down"])),
        ("operations", operations(summary)),
        ("seconds", f"{summary['seconds']:.1f}"),
        *timeline.rows(summary),
        *([] if summary["joules"] == 0 else [("joules", number(summary["joules"]))]),
        *cost_rows(summary),
        ("peak memory", size(summary["memory_bytes"])),
        ("failures", f"{summary['failures']:,}, messages lost {summary['lost']:,}"),
        *[(title, f"client{'s' * (len(who) > 1)} {ranges(who)}") for title, who in suspects if who],
    ]


def headline(summary: Summary) -> str:
    """Return a run in one line: method, task, rounds, primary metric, bytes both ways, failures if any."""
    sent = size(summary["bytes_up"] + summary["bytes_down"])
    score = scores(summary)[0]
    scored = f"{score.words} {score.write(summary[score.name])}"
    done = f"{summary['rounds']} of {count(summary['rounds_asked'], 'round')}"
    failed = f", {count(summary['failures'], 'failure')}" if summary["failures"] else ""
    return f"{method(summary)} on {summary['data']}, {done}, {scored}, {sent} exchanged{failed}"


def scores(summary: Summary) -> list[Score]:
    """Return the metrics of a run, the primary one first."""
    return [Score(**each) for each in summary["metrics"]]


def attacked(summary: Summary) -> list[tuple[str, str]]:
    """Return the attack of a run, its clients, and its success rate if it has one; nothing without an attack."""
    if not (hostile := summary["hostile"]):
        return []
    rate = summary[ATTACK_SUCCESS]
    by = f"{summary['attack']} by {len(hostile)} of {count(summary['clients'], 'client')}: {ranges(hostile)}"
    return [("attack", by), *([] if rate is None else [("attack success", percent(rate))])]


def measured(summary: Summary) -> list[tuple[str, str]]:
    """Return the metrics of the last evaluated round, and the primary one on held-out samples if there are any."""
    rows: list[tuple[str, str]] = []
    for score in scores(summary):
        rows.append((score.words, score.write(summary[score.name])))
        rows += [("loss", number(summary["loss"]))] if len(rows) == 1 else []
        tenth = "worst tenth" if len(rows) == 2 else f"worst tenth, {score.words}"
        rows.append((f"personal {score.words}", f"{score.write(summary[score.over_clients])} (mean over clients)"))
        rows.append((tenth, f"{score.write(summary[score.worst_tenth])} (of clients)"))
    if every := summary["validate"]:
        score = scores(summary)[0]
        value = score.write(summary[f"{VALIDATION}{score.name}"])
        rows.append((f"validation {score.words}", f"{value} (1 of {every} training samples of each client)"))
    return rows


def method(summary: Summary) -> str:
    """Return the name of the method, without the folders of a user's file."""
    return str(summary["method"]).rpartition("/")[2]


def task(summary: Summary) -> str:
    """Return data, network and split; a user's own data and network are called custom."""
    data, model = (
        f"custom {kind}" if summary[name] == "custom" else summary[name]
        for kind, name in (("data", "data"), ("network", "model"))
    )
    frozen = f" and {summary['frozen']:,} frozen" if summary["frozen"] else ""
    return f"{data}, {model} ({summary['parameters']:,} parameters{frozen}), {summary['split']}"


def executor(summary: Summary) -> str:
    """Return the executor, how it trains if not as by default, and the rates and reasons of an automatic choice."""
    rates = ", ".join(f"{name} {rate:,.0f}" for name, rate in (summary["rates"] or {}).items())
    how = "" if summary["train_precision"] == "float32" else f" in {summary['train_precision']}"
    how += " with checkpointing" if summary["checkpointing"] else ""
    cluster = summary[CLUSTER]
    where = f" on {count(cluster['actors'], 'actor')} of {count(cluster['nodes'], 'node')}" if cluster else ""
    chosen = f"{summary['executor']}{how}{where}" + (f" (client steps per second: {rates})" if rates else "")
    reasons: dict[str, list[str]] = {}
    for name, reason in (summary["left_out"] or {}).items():
        reasons.setdefault(reason, []).append(name)
    return "; ".join((chosen, *(f"without {', '.join(names)}: {reason}" for reason, names in reasons.items())))


def operations(summary: Summary) -> str:
    """Return the floating-point operations of all training, and those for parameters that clients hold."""
    done, useful = summary["flops"], summary["useful_flops"]
    return f"{amount(done)}FLOP" + (f", {amount(useful)}FLOP of them useful" if useful < done else "")


def full(
    path: Path, about: dict[str, Any], metrics: Sequence[Record], state: str, blocks: Sequence[Sequence[str]] = ()
) -> str:
    """Return everything about one run; ``blocks`` are lines that reports add from its folder."""
    summary = summarise(about, metrics)
    parts = [pairs([("run", f"{path} ({state})"), *facts(summary)])]
    parts += ["\n  ".join(block) for block in blocks if block]
    parts.append(pairs(list(about["method"].items())))
    parts += [by_client] if (by_client := costs_by_client(summary)) else []
    parts += [named] if (named := anomaly_table(summary["anomalies"])) else []
    parts += [details(metrics, scores(summary)[0])] if metrics else []
    return "\n\n".join(parts)


def details(metrics: Sequence[Record], score: Score, last: int = 10) -> str:
    """Return the last rounds as a table, bytes by kind, seconds by phase, and reasons of failures."""
    head = ("round", score.words, "loss", "personal", "worst tenth", "train loss", "up", "down", "seconds", "failed")
    rows = [
        (
            str(record["round"]),
            score.write(record.get(score.name)),
            number(record.get("loss")),
            *(score.write(record.get(entry)) for entry in score.entries[1:]),
            number(record["train_loss"]),
            size(sum(record["bytes_up"].values())),
            size(sum(record["bytes_down"].values())),
            f"{sum(record['seconds'].values()):.2f}",
            str(len(record["failures"])),
        )
        for record in metrics[-last:]
    ]
    lines = [table(head, rows), ""]
    for title, name, write in BROKEN_DOWN:
        if any(name in record for record in metrics):
            kinds = (f"{kind} {write(n)}" for kind, n in totals(metrics, name).most_common())
            lines.append(f"{title}: {', '.join(kinds) or 'nothing'}")
    lines += [f"failed {count(len(where), 'time')}: {reason}" for reason, where in reasons(metrics)[:5]]
    return "\n".join(lines)


def listed(names: Sequence[str], summaries: Sequence[Summary | None], states: Sequence[str]) -> str:
    """Return the table of ``gossamer runs``; a run without a summary is damaged."""
    known = [summary for summary in summaries if summary]
    primary = [scores(summary)[0] for summary in known]
    values = [summary[score.name] for summary, score in zip(known, primary, strict=True)]
    title, written = column(primary, values)
    head = ("run", "method", "data", "split", "clients", "rounds", "seed", title, "uploaded", "state")
    left = iter(written)
    cells = [
        [
            method(each),
            each["data"],
            each["split"],
            str(each["clients"]),
            f"{each['rounds']}/{each['rounds_asked']}",
            str(each["seed"]),
            next(left),
            size(each["bytes_up"]),
        ]
        if each
        else [BLANK] * (len(head) - 2)
        for each in summaries
    ]
    return table(head, [[name, *cell, state] for name, cell, state in zip(names, cells, states, strict=True)])


def side_by_side(names: Sequence[str], summaries: Sequence[Summary]) -> str:
    """Return a table with one row per run; columns that no run has a value for are left out."""
    counted = [VALUES] if sends_views(summaries) else []
    primary = [scores(summary)[0] for summary in summaries]
    values = [summary[score.name] for summary, score in zip(summaries, primary, strict=True)]
    title, written = column(primary, values)
    head = ["run", "method", "rounds", title, "personal", "worst tenth", "loss", "up", "down", *counted, "operations"]
    rows = []
    for name, summary, score, value in zip(names, summaries, primary, written, strict=True):
        alone = summary["bytes_values"]
        more = [] if not counted else [BLANK if alone is None else size(alone)]
        others = (score.write(summary[entry]) for entry in (score.over_clients, score.worst_tenth))
        costs = (number(summary["loss"]), size(summary["bytes_up"]), size(summary["bytes_down"]), *more)
        rows.append([name, method(summary), str(summary["rounds"]), value, *others, *costs, operations(summary)])
    best = [summary["best"] and summary["best"]["value"] for summary in summaries]
    if any(each is not None and each != value for each, value in zip(best, values, strict=True)):
        head.insert(4, "best")
        rows = [[*row[:4], cell, *row[4:]] for row, cell in zip(rows, column(primary, best)[1], strict=True)]
    for title, write in (("seconds", "{:.1f}".format), ("joules", number)):
        if any(summary[title] for summary in summaries):
            head.append(title)
            rows = [[*row, write(summary[title])] for row, summary in zip(rows, summaries, strict=True)]
    if timed := any(summary["time"] is not None for summary in summaries):
        head += timeline.COMPARED
        rows = [[*row, *timeline.compared(summary)] for row, summary in zip(rows, summaries, strict=True)]
    if any(summary["by_client"] for summary in summaries):
        counts = [name for name in COST_COLUMNS if not (timed and name == DELAY)]
        head += counts
        cells = [cost_cells(summary) for summary in summaries]
        rows = [[*row, *(cell.get(name, BLANK) for name in counts)] for row, cell in zip(rows, cells, strict=True)]
    if any(summary["delivery"] for summary in summaries):
        head += DELIVERY
        rows = [[*row, *delivery_cells(summary)] for row, summary in zip(rows, summaries, strict=True)]
    cells = [cells_of(summary["figures"]) for summary in summaries]
    columns = dict.fromkeys(column for found in cells for column in found)
    head += columns
    return table(head, [[*row, *(cell.get(c, BLANK) for c in columns)] for row, cell in zip(rows, cells, strict=True)])


def sends_views(summaries: Sequence[Summary]) -> bool:
    """Return whether clients of any run send a description of their view, which some papers do not count."""
    return any(summary["bytes_views"] for summary in summaries)


def differences(summaries: Sequence[Summary], methods: Sequence[Mapping[str, str]] = ()) -> list[str]:
    """Return what differs between runs in addition to the method.

    Args:
        summaries: the summaries of the runs
        methods: the parts of each method as text; they are compared if all runs have the same method
    """
    names = ["data", "model", "split", "clients", "per_round", "rounds", "seed", "channel", "schedule", "executor"]
    names += ["train_precision", "checkpointing"]
    found = [name.replace("_", " ") for name in names if len({summary[name] for summary in summaries}) > 1]
    parts = dict.fromkeys(part for parts in methods for part in parts)
    if len({summary["method"] for summary in summaries}) > 1:
        return found
    return found + [part for part in parts if len({parts.get(part) for parts in methods}) > 1]


DELAY = "delay"
COST_COLUMNS = ("computing J", "sending J", DELAY, "lost")
"""The columns of ``compare`` for costs. Next to virtual time, there is no delay."""

DELIVERY = ("compensated", "dropped")
"""The columns for the outcome of lost messages."""

LOSERS = 10
"""The number of clients that are listed one by one, those with the most losses first."""


def cost_rows(summary: Summary) -> list[tuple[str, str]]:
    """Return lines on costs and losses that the channel counts."""
    empty = [("nothing arrived", f"in {count(summary['empty_rounds'], 'round')}: the model did not change")]
    delivery = [("lost messages", text)] if (text := lost_messages(summary)) else []
    return [*_energy_rows(summary), *delivery, *(empty if summary["empty_rounds"] else [])]


def lost_messages(summary: Summary) -> str:
    """Return the number of lost messages and their outcome; empty if none was lost."""
    total, delivery = summary["lost"], summary["delivery"]
    if delivery is None:
        return f"{total:,}, none of them compensated" if total else ""
    compensated, dropped = sum(delivery["retained"]), sum(delivery["forgotten"])
    outcome = f"{compensated:,} compensated by a later one, {dropped:,} dropped"
    waiting = total - compensated - dropped
    more = f", {waiting:,} pending" if waiting > 0 else ""
    return f"{total:,}: {outcome}{more}" if total else outcome


def _energy_rows(summary: Summary) -> list[tuple[str, str]]:
    spent = summary["by_client"]
    if spent is None:
        return [("energy", _uses(summary["energy"]))] if summary["time"] is not None and summary["joules"] else []
    wasted = f", {number(sum(spent['wasted']))} J of it for lost messages" if sum(spent["wasted"]) else ""
    rows = [("energy", _uses(summary["energy"]) + wasted)]
    if summary["time"] is None:
        each = seconds(summary["delay"] / max(1, summary["rounds"]))
        rows.append(("delay", f"{seconds(summary['delay'])} computing and sending, {each} per round"))
    if sent := sum(spent["messages"]):
        shares = [lost / max(1, sent) for lost, sent in zip(spent["lost"], spent["messages"], strict=True)]
        senders = _range(shares, [client for client, number in enumerate(spent["messages"]) if number], percent)
        share = percent(sum(spent["lost"]) / sent)
        rows.append(("outages", f"{share} of {count(sent, 'message')}; by client {senders}"))
    return [*rows, ("joules per client", _range(spent["joules"], _active(spent), number))]


def _uses(energy: dict[str, float]) -> str:
    """Return the joules by use; those of receiving and waiting if there are any."""
    received = f", {number(energy['receiving'])} J receiving" if energy["receiving"] else ""
    idle = f", {number(energy['idle'])} J idle" if energy["idle"] else ""
    return f"{number(energy['computing'])} J computing{received}, {number(energy['sending'])} J sending{idle}"


def _active(spent: dict[str, list[Any]]) -> list[int]:
    """Return the clients that spent energy."""
    return [client for client, joules in enumerate(spent["joules"]) if joules]


def _range(values: Sequence[float], clients: Sequence[int], write: Any) -> str:
    """Return the smallest and the largest value, with their clients."""
    if not clients:
        return BLANK
    least, most = (choose(clients, key=lambda client: values[client]) for choose in (min, max))
    return f"{write(values[least])} (client {least}) to {write(values[most])} (client {most})"


def costs_by_client(summary: Summary) -> str:
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
        for client in order[:LOSERS]
    ]
    more = f"\nand {count(len(order) - LOSERS, 'other client')}" if len(order) > LOSERS else ""
    return table(head, listed) + more


def delivery_cells(summary: Summary) -> tuple[str, ...]:
    """Return the cells of a run in the columns of ``DELIVERY``."""
    found = summary["delivery"]
    return tuple(f"{sum(counts):,}" for counts in found.values()) if found else (BLANK,) * len(DELIVERY)


def cost_cells(summary: Summary) -> dict[str, str]:
    """Return the cells of a run, by column; nothing if its channel counts no costs."""
    if summary["by_client"] is None:
        return {}
    energy = summary["energy"]
    cells = (number(energy["computing"]), number(energy["sending"]), seconds(summary["delay"]), f"{summary['lost']:,}")
    return dict(zip(COST_COLUMNS, cells, strict=True))
