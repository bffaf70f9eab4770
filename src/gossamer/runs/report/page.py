"""A run as one page: ``report.html``, which stands on its own and can be mailed to anybody.

Whatever a user may have typed (names, reasons of failures, fields of parts) is escaped where it is written.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape
from itertools import accumulate
from pathlib import Path
from types import MappingProxyType
from typing import Any

from gossamer.core import files
from gossamer.runs.folder import read_about, read_metrics
from gossamer.runs.report import spending, tables
from gossamer.runs.report.base import Folder, reports_of
from gossamer.runs.report.holdings import holdings
from gossamer.runs.report.skin import PAGE, STYLE
from gossamer.runs.report.svg import Series, chart
from gossamer.runs.report.text import count, duration, number, percent, size
from gossamer.runs.summary import reasons, summarise, totals
from gossamer.tasks.data.partition import Split
from gossamer.tasks.data.samples import Data

Record = dict[str, Any]

NONE: Mapping[str, str] = MappingProxyType({})

SPENT = (
    ("Accuracy (%) by energy", "joules", "spent by clients so far (J)"),
    ("Accuracy (%) by time", "delay", "on the devices and on the air so far (s)"),
)
"""Curves over what the channel counts: their titles, fields of a record, and what is said below them."""

NAMED = 8
"""So many clients are named beside a reason for failures."""


def write(folder: Folder) -> Path:
    """Write the page of a run; where its data is known, the split is drawn by class."""
    about, metrics = read_about(folder.path), read_metrics(folder.path)
    page = folder.path / "report.html"
    drawn = {report.heading: report.picture(folder, metrics) for report in reports_of(metrics)}
    pictures = {title: picture for title, picture in drawn.items() if picture}
    with files.told(f"{page} was not written"):
        name = folder.path.resolve().name
        files.write(page, render(name, about, metrics, folder.split, folder.data, pictures).encode())
    return page


def render(
    name: str,
    about: dict[str, Any],
    metrics: Sequence[Record],
    split: Split,
    data: Data | None,
    pictures: Mapping[str, str] = NONE,
) -> str:
    """The page as text; ``pictures`` of reports have sections of their own, by title."""
    summary = summarise(about, metrics)
    parts = [
        _header(name, summary),
        _cards(summary),
        _section("Learning", "three", _curves(metrics)),
        _section("Costs", "three", _costs(metrics)),
        _section("Failures", "", [_failures(metrics, summary)]),
        _section("Who holds what", "", [_holdings(split, data)]),
        *(_section(title, "", [picture]) for title, picture in pictures.items()),
        _section("Settings", "two", _settings(about)),
        f"<footer>Written by gossamer {escape(str(about['machine']['gossamer']))}.</footer>",
    ]
    return PAGE.format(title=escape(name), style=STYLE, body="\n".join(parts))


def _header(name: str, summary: dict[str, Any]) -> str:
    facts = dict(tables.facts(summary))
    line = f"{facts['task']} · clients: {facts['clients']} · rounds: {facts['rounds']}"
    title = f"{escape(tables.method(summary))} <small>{escape(name)}</small>"
    return f"<header><h1>{title}</h1><p>{escape(line)}</p></header>"


def _section(title: str, layout: str, cards: Iterable[str]) -> str:
    content = "".join(card for card in cards if card) or '<div class="card">Nothing yet.</div>'
    return f'<h2>{escape(title)}</h2><div class="grid {layout}">{content}</div>'


def _cards(summary: dict[str, Any]) -> str:
    """The numbers that people ask for first."""
    at = f"test set, round {summary['evaluated_round']}" if summary["evaluated_round"] else "not evaluated yet"
    shown = [
        ("accuracy", percent(summary["accuracy"]), at),
        ("personal accuracy", percent(summary["personal_accuracy"]), "mean over clients"),
        ("worst tenth", percent(summary["worst_tenth_accuracy"]), "of clients, personal"),
        ("loss", number(summary["loss"]), at),
        ("sent up", size(summary["bytes_up"]), "by clients"),
        ("sent down", size(summary["bytes_down"]), "to clients"),
        ("operations", tables.operations(summary), "training"),
        ("time", duration(summary["seconds"]), f"{size(summary['memory_bytes'])} of memory at most"),
    ]
    if summary["joules"]:
        computing = f"{number(summary['energy']['computing'])} J of it on computing"
        used = computing if summary["energy"]["computing"] else "spent on sending"
        shown.append(("energy", f"{number(summary['joules'])} J", used))
    if summary["delay"]:
        shown.append(("delay", duration(summary["delay"]), "on the devices and on the air"))
    cards = (f'<div class="card"><span>{n}</span><b>{value}</b><small>{note}</small></div>' for n, value, note in shown)
    return f'<div class="grid cards">{"".join(cards)}</div>'


def _curves(metrics: Sequence[Record]) -> list[str]:
    by_round = [record["round"] for record in metrics]
    sent = list(accumulate(sum(record["bytes_up"].values()) for record in metrics))
    unit, scale = next(((u, s) for u, s in (("GB", 1e9), ("MB", 1e6)) if sent and sent[-1] >= s), ("kB", 1e3))
    accuracies = (("test set", "accuracy"), ("personal", "personal_accuracy"), ("worst tenth", "worst_tenth_accuracy"))
    curves = [chart("Accuracy (%)", "round", [_series(metrics, by_round, *both, 100) for both in accuracies])]
    if sent and sent[-1]:
        across = [total / scale for total in sent]
        lines = [_series(metrics, across, *both, 100) for both in accuracies]
        curves.append(chart("Accuracy (%) by what it cost", f"sent by clients so far ({unit})", lines))
    for title, field, across_it in SPENT:
        spent = list(accumulate(record[field] for record in metrics))
        if spent and spent[-1]:
            curves.append(chart(title, across_it, [_series(metrics, spent, *both, 100) for both in accuracies]))
    losses = (("test set", "loss"), ("in training", "train_loss"))
    curves.append(chart("Loss", "round", [_series(metrics, by_round, *both) for both in losses]))
    return curves + [drawn for report in reports_of(metrics) for drawn in report.charts(metrics)]


def _series(metrics: Sequence[Record], across: Sequence[float], name: str, field: str, times: float = 1) -> Series:
    found = [(x, record.get(field)) for x, record in zip(across, metrics, strict=True)]
    return Series(name, [(x, times * y) for x, y in found if y is not None])


def _costs(metrics: Sequence[Record]) -> list[str]:
    return [
        _bars("Seconds by phase", totals(metrics, "seconds"), duration),
        _bars("Sent up, by kind", totals(metrics, "bytes_up"), size),
        _bars("Sent down, by kind", totals(metrics, "bytes_down"), size),
    ]


def _bars(title: str, total: Counter[str], write: Callable[[float], str]) -> str:
    most = max(total.values(), default=0)
    rows = "".join(
        f'<tr><th>{escape(kind)}</th><td class="bar"><div style="width:{100 * n / most:.1f}%"></div></td>'
        f'<td class="n">{write(n)}</td></tr>'
        for kind, n in total.most_common()
        if n
    )
    return f'<div class="card"><h3>{title}</h3>{f"<table>{rows}</table>" if rows else "Nothing."}</div>'


def _failures(metrics: Sequence[Record], summary: dict[str, Any]) -> str:
    said = spending.lost(summary)
    lost = f"Lost messages: {said}." if said else "No message was lost."
    if summary["unheard"]:
        lost += f" In {count(summary['unheard'], 'round')} nothing arrived, and the model stayed as it was."
    rows = "".join(_reason(reason, who) for reason, who in reasons(metrics))
    table = f"<table>{rows}</table>" if rows else "No client failed."
    return f'<div class="card">{table}<div>{lost}</div></div>'


def _reason(reason: str, who: Sequence[tuple[int, int]]) -> str:
    clients = sorted({client for _, client in who})
    named = ", ".join(map(str, clients[:NAMED])) + (" and others" if len(clients) > NAMED else "")
    rounds = sorted({round_ for round_, _ in who})
    when = f"round {rounds[0]}" if len(rounds) == 1 else f"rounds {rounds[0]} to {rounds[-1]}"
    said = f"{escape(reason)}<br/><small>clients {named}; {when}</small>"
    return f"<tr><th>{count(len(who), 'time')}</th><td>{said}</td></tr>"


def _holdings(split: Split, data: Data | None) -> str:
    said = "Samples by client" + (" and class, and by client above" if data else "")
    return f"<figure><figcaption>{said}</figcaption>{holdings(split, data)}</figure>"


def _settings(about: dict[str, Any]) -> list[str]:
    titles = (("Method", "method"), ("Task", "task"), ("Options", "options"), ("Machine", "machine"))
    return [_facts(title, about[name]) for title, name in titles]


def _facts(title: str, facts: dict[str, Any]) -> str:
    rows = "".join(
        f"<tr><th>{escape(name.replace('_', ' '))}</th><td>{escape('none' if value is None else str(value))}</td></tr>"
        for name, value in facts.items()
    )
    return f'<div class="card"><h3>{title}</h3><table>{rows}</table></div>'
